"""A trainer that does what it is told to, so that its use of the machine is known.

    python using.py work:5 sleep:20 work:5      (in one argument or in several)

Each word is something to do and for how many seconds:

    work        steps of hard work
    sleep       steps in which it only waits: they go on, the processor is idle; with a path instead
                of seconds, until that file is there
    spin        hard work without a step
    loading, saving, evaluating     waits, and says what it does

Log lines: ``work at=2026-03-01T22:00:00.000000+00:00 step=12``, ``end``.
"""

import os
import sys
import time
from datetime import datetime, timezone

WORK_S, SLEEP_S = 0.05, 0.2
FOREVER_S = 600.0  # of a test


def main():
    import ffdl  # found on the path that the agent sets

    found = ffdl.resume()
    step = found.step if found else 0
    for word in " ".join(sys.argv[1:]).split():
        what, seconds = word.split(":")
        at = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        say(f"{what} at={at} step={step}")
        until_file = seconds if seconds.startswith("/") else None
        step = do(ffdl, what, FOREVER_S if until_file else float(seconds), step, until_file)
    save(ffdl, step)
    say("end")


def do(ffdl, what, seconds, step, until_file=None):
    """Return the last step that was done."""
    until = time.monotonic() + seconds
    if what in ("loading", "saving", "evaluating"):
        with ffdl.doing(what):
            time.sleep(seconds)
        return step
    while time.monotonic() < until and not (until_file and os.path.exists(until_file)):
        if what == "sleep":
            time.sleep(SLEEP_S)
        else:
            spin(WORK_S)
        if what != "spin":
            step += 1
            ffdl.progress(step)
        if ffdl.should_save():
            save(ffdl, step)
    return step


def save(ffdl, step):
    with ffdl.checkpoint(step) as folder, open(os.path.join(folder, "weights.txt"), "w") as file:
        file.write(str(step))


def spin(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def say(line):
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()

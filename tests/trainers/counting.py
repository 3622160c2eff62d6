"""A trainer without mathematics: each step hashes the last one's result.

For: tests that start many gangs, kill them, and ask whether anything was lost or done twice. It
starts in a few hundredths of a second, its "weights" after step n follow from the seed alone, and
its log has one line a step. Not for: showing how to write a trainer (example_dags/digits).

    python counting.py [--option value …] [--flag …]

    --steps 20           last step
    --every 5            steps between checkpoints of rank 0
    --seed 0
    --step-delay 0       seconds that each step takes
    --bytes 64           size of the weights file
    --fail-at STEP:CODE  exit with CODE once STEP is done; a code below 0 is a signal to itself
    --sleep-at STEP      never finish STEP
    --memory-at STEP:MIB take so much memory once STEP is done
    --ignore-sigterm     go on when asked to end
    --spawn-children N   leave N children in sessions of their own that ignore SIGTERM
    --beats FOLDER       touch FOLDER/<attempt>-<rank>-<pid> ten times a second while this lives
    --only-rank R        misbehave on this rank only
    --only-attempt A     misbehave in this attempt only

Log lines: ``start rank=0 pid=12 attempt=1 resumed=0``, ``step=1 weights=… attempt=1``,
``children=34,35``, ``end weights=…``. Tests import `weights_after` to know what is right.
"""

import os
import signal
import sys
import time
from hashlib import sha256

DEFAULTS = {
    "steps": "20",
    "every": "5",
    "seed": "0",
    "step-delay": "0",
    "bytes": "64",
    "fail-at": "",
    "sleep-at": "",
    "spawn-children": "0",
    "beats": "",
    "memory-at": "",
    "only-rank": "",
    "only-attempt": "",
}
FLAGS = ("ignore-sigterm",)
WEIGHTS_FILE = "weights.txt"
FOREVER_S = 600.0  # of a test: long enough to be found, short enough to end if nobody looks


def weights_after(step, *, seed=0, start=""):
    """Return the weights after a step (64 hex digits); ``start`` is what step 0 has."""
    weights = start or first_weights(seed)
    for number in range(1, step + 1):
        weights = next_weights(weights, number)
    return weights


def first_weights(seed):
    return sha256(f"seed {seed}".encode()).hexdigest()


def next_weights(weights, step):
    return sha256(f"{weights} {step}".encode()).hexdigest()


def main():
    import ffdl  # found on the path that the agent sets

    options = parse(sys.argv[1:])
    rank, attempt = os.environ.get("RANK", "0"), os.environ.get("FFDL_ATTEMPT", "0")
    if options["beats"]:
        beat(os.path.join(options["beats"], f"{attempt}-{rank}-{os.getpid()}"))
    bad = options["only-rank"] in ("", rank) and options["only-attempt"] in ("", attempt)
    if bad:
        misbehave_from_the_start(options)
    weights, step = first_weights(options["seed"]), 0
    found = ffdl.resume()
    if found is not None:
        weights, step = read_weights(found.path), found.step
    say(f"start rank={rank} pid={os.getpid()} attempt={attempt} resumed={step}")
    steps, every, delay = int(options["steps"]), int(options["every"]), float(options["step-delay"])
    while step < steps:
        step += 1
        if bad and options["sleep-at"] == str(step):
            time.sleep(FOREVER_S)
        if delay:
            time.sleep(delay)
        weights = next_weights(weights, step)
        say(f"step={step} weights={weights[:12]} attempt={attempt}")
        ffdl.progress(step, loss=1.0 / step, samples=1)
        if rank == "0" and (step % every == 0 or step == steps or ffdl.should_save()):
            with ffdl.checkpoint(step) as folder:
                write_weights(folder, weights, int(options["bytes"]))
        if bad and options["memory-at"].startswith(f"{step}:"):
            taken = bytearray(b"x") * (int(options["memory-at"].partition(":")[2]) << 20)
            say(f"has {len(taken)} bytes")
        if bad and options["fail-at"].startswith(f"{step}:"):
            end_with(int(options["fail-at"].partition(":")[2]))
    finish(rank, weights)


def beat(path):
    """Say from when to when this process was there: the file's content, and its modification time.

    A thread, so that it goes on during a long step; SIGSTOP and SIGKILL end it.
    """
    import threading

    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(str(time.time()))

    def forever():
        while True:
            os.utime(path)
            time.sleep(0.1)

    threading.Thread(target=forever, daemon=True).start()


def parse(words):
    """Return the options by name. argparse alone would take half of the start-up time."""
    options = dict(DEFAULTS, **dict.fromkeys(FLAGS, False))
    words = list(words)
    while words:
        name = words.pop(0)[2:]
        if name not in options:
            raise SystemExit(f"unknown option --{name}; known: {', '.join(sorted(options))}")
        options[name] = True if name in FLAGS else words.pop(0)
    return options


def misbehave_from_the_start(options):
    if options["ignore-sigterm"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children = [detached_child() for _ in range(int(options["spawn-children"]))]
    if children:
        say(f"children={','.join(children)}")


def detached_child():
    """Fork twice, as daemons do, and return the pid of the one that stays."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle:
        os.close(writer)
        os.waitpid(middle, 0)
        with os.fdopen(reader) as pipe:
            return pipe.read()
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(writer, str(os.getpid()).encode())
    os.close(writer)
    time.sleep(FOREVER_S)
    os._exit(0)


def end_with(code):
    if code < 0:
        os.kill(os.getpid(), -code)
        time.sleep(FOREVER_S)
    say(f"failing with {code}")
    raise SystemExit(code)


def finish(rank, weights):
    say(f"end weights={weights}")
    output = os.environ.get("FFDL_OUTPUT_DIR")
    if rank == "0" and output:
        with open(os.path.join(output, "metrics.json"), "w") as file:
            file.write('{"accuracy": 1.0}\n')


def read_weights(folder):
    with open(os.path.join(folder, WEIGHTS_FILE)) as file:
        return file.read(64)


def write_weights(folder, weights, size):
    with open(os.path.join(folder, WEIGHTS_FILE), "w") as file:
        file.write(weights + "\n" * (size - len(weights)))


def say(line):
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()

"""One thread, one loop: sockets, timers, signals and finished side work, in that order.

For: an agent without locks and without polling, whose idle cost is close to nothing. Not for:
blocking work; that goes through :meth:`Loop.in_thread`, and its result comes back here.
``asyncio`` was the alternative; importing it costs more CPU than an agent uses in a minute.

Sockets are served before timers that are due, so that news that already lies in a socket counts
before a time-out does.
"""

import contextlib
import heapq
import os
import selectors
import signal
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

Callback = Callable[[], object]


class Timer:
    """A callback that waits for its time; ``cancel`` may be called any number of times."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callback) -> None:
        self.when = when
        self.callback: Optional[Callback] = callback

    def cancel(self) -> None:
        """Forget the callback."""
        self.callback = None


class Timers:
    """Timers that are given up together."""

    def __init__(self, loop: "Loop") -> None:
        self._loop = loop
        self._timers: List[Timer] = []

    def later(self, delay_s: float, callback: Callback) -> None:
        """Run ``callback`` once, ``delay_s`` seconds from now."""
        self._timers.append(self._loop.call_later(delay_s, callback))

    def cancel(self) -> None:
        """Forget all of them."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


class Loop:
    """Runs callbacks until :meth:`stop`. An exception of a callback ends :meth:`run` with it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: List[Tuple[float, int, Timer]] = []
        self._count = 0
        self._posted: Deque[Callback] = deque()
        self._signals: Dict[int, Callback] = {}
        self._stopped = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_wake)

    @staticmethod
    def now() -> float:
        """Seconds of the clock that timers use; only differences mean anything."""
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        """Run ``callback`` once, ``delay_s`` seconds from now."""
        timer = Timer(self.now() + max(0.0, delay_s), callback)
        self._count += 1
        heapq.heappush(self._timers, (timer.when, self._count, timer))
        return timer

    def soon(self, callback: Callback) -> None:
        """Run ``callback`` in the next round. May be called from any thread."""
        self._posted.append(callback)
        self._wake()

    def in_thread(
        self, work: Callable[[], Any], done: Callable[[Any, Optional[BaseException]], None]
    ) -> None:
        """Run ``work`` beside the loop, then ``done(result, error)`` in the loop."""

        def body() -> None:
            result: Any = None
            error: Optional[BaseException] = None
            try:
                result = work()
            except Exception as caught:  # noqa: BLE001 - handed to the loop, which judges it
                error = caught
            self.soon(lambda: done(result, error))

        threading.Thread(target=body, daemon=True).start()

    def watch(
        self, descriptor: int, *, read: Optional[Callback] = None, write: Optional[Callback] = None
    ) -> None:
        """Call ``read``/``write`` whenever the descriptor is ready; replaces what was watched."""
        mask = (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
        handler = _Ready(read, write)
        if not mask:
            self.unwatch(descriptor)
        elif descriptor in self._selector.get_map():
            self._selector.modify(descriptor, mask, handler)
        else:
            self._selector.register(descriptor, mask, handler)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching; harmless where nothing was watched."""
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def on_signal(self, number: int, callback: Callback) -> None:
        """Run ``callback`` in the loop after the signal came; several may be served as one."""
        self._signals[number] = callback
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def stop(self) -> None:
        """Let :meth:`run` return after the current callback."""
        self._stopped = True
        self._wake()

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        while not self._stopped:
            self._serve_sockets()
            self._run_posted()
            self._run_timers()

    def _serve_sockets(self) -> None:
        for key, mask in self._selector.select(self._patience_s()):
            if key.fileobj in self._selector.get_map() and not self._stopped:
                key.data(mask)

    def _patience_s(self) -> Optional[float]:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if self._posted:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - self.now())

    def _run_posted(self) -> None:
        for _ in range(len(self._posted)):
            if self._stopped:
                return
            self._posted.popleft()()

    def _run_timers(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now and not self._stopped:
            timer = heapq.heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full, so the loop wakes anyhow
            os.write(self._wake_write, b"\0")

    def _on_wake(self, _mask: int) -> None:
        try:
            numbers = set(os.read(self._wake_read, 4096))
        except BlockingIOError:
            return
        for number in numbers - {0}:
            if number in self._signals:
                self._signals[number]()


class _Ready:
    """Chooses the callback for what the selector says."""

    __slots__ = ("read", "write")

    def __init__(self, read: Optional[Callback], write: Optional[Callback]) -> None:
        self.read = read
        self.write = write

    def __call__(self, mask: int) -> None:
        if mask & selectors.EVENT_READ and self.read is not None:
            self.read()
        elif mask & selectors.EVENT_WRITE and self.write is not None:
            self.write()

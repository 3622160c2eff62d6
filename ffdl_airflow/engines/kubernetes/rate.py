"""A limit on our own request rate."""

import threading
import time


class RateLimit:
    """A token bucket: ``rate`` a second, at most ``burst`` at once. Waits, never refuses."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._left, self._at = self._burst, time.monotonic()
        self._lock = threading.Lock()

    def take(self) -> None:
        """One request is about to be sent: wait until it may be."""
        with self._lock:
            now = time.monotonic()
            self._left = min(self._burst, self._left + (now - self._at) * self._rate)
            self._at = now
            self._left -= 1
            wait_s = -self._left / self._rate
        if wait_s > 0:
            time.sleep(wait_s)

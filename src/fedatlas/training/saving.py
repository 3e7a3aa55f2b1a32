"""When a checkpoint is due, and how it is written beside the training.

Without ``checkpoint_every`` a checkpoint is due by the clock: saving takes at most a twentieth of the time, and is done
about every second where that allows it. A run that is killed loses the rounds since the last checkpoint that was
finished: the work of ``most_to_lose`` seconds at most, and the round that was going on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LEAST_SECONDS = 1.0
"""Between two checkpoints that nobody asked for."""
SHARE = 0.05
"""Of the time, that such checkpoints may take."""


class Saver:
    """Runs saves, one at a time, and measures them."""

    def __init__(self, *, every: int | None, beside: bool) -> None:
        """Take the rounds between forced saves, if any, and whether others may be finished in a thread."""
        self._every, self._beside = every, beside
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._took, self._ended = 0.0, time.monotonic()
        self._untold = 0.0

    def is_forced(self, round: int) -> bool:
        """Return whether a round must be saved before the next one begins."""
        return self._every is not None and round % self._every == 0

    def is_due(self) -> bool:
        """Return whether a save may begin now, by the clock; raise the error of one that failed."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()
        if self._every is not None or self._thread is not None:
            return False
        return time.monotonic() - self._ended >= self.pause

    @property
    def pause(self) -> float:
        """Seconds from the end of a save to the begin of the next one."""
        return max(LEAST_SECONDS, self._took * (1 / SHARE - 1))

    @property
    def most_to_lose(self) -> float:
        """Seconds of work that a kill now can cost, beside the round that is going on: a pause and two saves."""
        return self.pause + 2 * self._took

    def save(self, begin: Callable[[], Callable[[], None]], *, wait: bool) -> None:
        """Begin a save, and finish it here or, where that need not be waited for, in a thread."""
        self.wait()
        began = time.monotonic()
        finish = begin()
        if wait or not self._beside:
            finish()
            self._note(began)
            return

        def run() -> None:
            start = time.monotonic()
            try:
                finish()
            except BaseException as error:
                self._error = error
            self._note(began)
            self._untold += time.monotonic() - start

        self._thread = threading.Thread(target=run, name="fedatlas checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until no save is going on; raise the error of one that failed."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def seconds_beside(self) -> float:
        """Return the seconds that threads took since this was last asked."""
        told, self._untold = self._untold, 0.0
        return told

    def _note(self, began: float) -> None:
        self._ended = time.monotonic()
        self._took = self._ended - began

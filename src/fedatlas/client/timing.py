"""Seconds by stage, on the server and as clients measure them."""

import time
from collections.abc import Sequence

from fedatlas.parts.types import Upload

PREFIX = "seconds/"
"""Before the stages of a client's training among what it measures."""


class Stopwatch:
    """Seconds by stage: a lap is the time since the last one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Count the time since the last lap to a stage."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def taken(self) -> dict[str, float]:
        """Return the seconds so far, and begin anew."""
        seconds, self.seconds = self.seconds, {}
        return seconds


def client_seconds(uploads: Sequence[Upload]) -> dict[str, float]:
    """Return the seconds that clients measured, all clients together, by stage."""
    total: dict[str, float] = {}
    for upload in uploads:
        for name, value in upload.metrics.items():
            if name.startswith(PREFIX):
                stage = name.removeprefix(PREFIX)
                total[stage] = total.get(stage, 0.0) + value
    return total

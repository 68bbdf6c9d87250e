"""A server that did not answer is left alone for a while."""

from __future__ import annotations

import time


class Quiet:
    """True while the server is left alone. Whoever asks it then takes a miss, and waits for nothing.

    Any thread may use it.
    """

    seconds = 5.0

    def __init__(self) -> None:
        self._until = 0.0

    def __bool__(self) -> bool:
        return time.monotonic() < self._until

    def begin(self) -> None:
        """The server did not answer now."""
        self._until = time.monotonic() + self.seconds

    def end(self) -> None:
        """The server answered."""
        self._until = 0.0

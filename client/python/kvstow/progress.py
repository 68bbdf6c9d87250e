"""Says how far a run is: a bar at a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

_SECONDS_BETWEEN_LINES = 30.0
_WIDTH = 30


class Progress:
    """Steps that follow each other, each with a number of parts."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._begin = time.monotonic()
        self._step_begin = self._told = self._begin
        self._open = False  # a bar stands on the last line
        self._name, self._done, self._already, self._all = "", 0, 0, 0

    def step(self, name: str, parts: int, done: int = 0) -> None:
        """Begins a step. `done`: parts that an earlier run did."""
        self.end()
        self._step_begin = self._told = time.monotonic()
        self._name, self._done, self._already, self._all = name, done, done, parts
        self._tell()

    def advance(self) -> None:
        """One part more is done."""
        self._done += 1
        now = time.monotonic()
        over = now - self._told >= _SECONDS_BETWEEN_LINES
        if self._terminal or over or self._done == self._all:
            self._told = now
            self._tell()

    def end(self) -> None:
        """Leaves the last line as it is."""
        if self._open:
            self._out.write("\n")
            self._open = False

    def _tell(self) -> None:
        took = time.monotonic() - self._step_begin
        text = f"{self._name}: {self._done} of {self._all}"
        if self._done == self._all:
            text += f", {took:.0f} s"
        elif self._done > self._already:
            left = took / (self._done - self._already) * (self._all - self._done)
            text += f", {left:.0f} s left"
        if not self._terminal:
            self._out.write(f"[{time.monotonic() - self._begin:6.0f} s] {text}\n")
        else:
            full = _WIDTH * self._done // max(self._all, 1)
            self._out.write(f"\r\x1b[K[{'#' * full}{'.' * (_WIDTH - full)}] {text}")
            self._open = True
        self._out.flush()

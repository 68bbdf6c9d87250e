"""The programs of the package: kvstowd and the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def program(name: str) -> Path:
    """The path of `kvstow` or `kvstowd` as this package brought it."""
    path = Path(__file__).parent / "bin" / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: this build of the package has no programs")
    return path


def _run(name: str) -> NoReturn:
    path = str(program(name))
    os.execv(path, [path, *sys.argv[1:]])


def kvstow() -> NoReturn:
    """The console script `kvstow`."""
    _run("kvstow")


def kvstowd() -> NoReturn:
    """The console script `kvstowd`."""
    _run("kvstowd")

"""The programs of the package: kvstowd and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


def program(name: str) -> Path:
    """The path of `kvstow` or `kvstowd` as this package brought it."""
    path = Path(__file__).parent / "bin" / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: this build of the package has no programs")
    return path


def ask(verb: Sequence[str], *arguments: str) -> str:
    """Runs a verb of `kvstow`. Returns what it prints.

    Raises RuntimeError, with what it said, where it fails.
    """
    command = [str(program("kvstow")), *verb, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = done.stderr.strip() or done.stdout.strip()
        raise RuntimeError(f"kvstow {' '.join(verb)}: {why}")
    return done.stdout


def _run(name: str) -> NoReturn:
    path = str(program(name))
    os.execv(path, [path, *sys.argv[1:]])


def kvstow() -> NoReturn:
    """The console script `kvstow`."""
    _run("kvstow")


def kvstowd() -> NoReturn:
    """The console script `kvstowd`."""
    _run("kvstowd")

"""The folder of what a run has done so far, so that a run that was broken off goes on.

It holds settings.json, and arrays that are there whole or not at all.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

_SETTINGS = "settings.json"
_LOCK = "lock"


class Work:
    """A folder of one run. One process has it at a time.

    Raises ValueError where another process has it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None

    def __enter__(self) -> Work:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.folder / _LOCK, "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ValueError(f"--work: another process is at work in {self.folder}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.close()

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Keeps the settings, or compares them with those that the folder was begun with.

        Each is known by the argument that sets it. Raises ValueError, which names the first that
        differs.
        """
        path = self.folder / _SETTINGS
        if path.exists():
            begun = json.loads(path.read_text())
            for name in [*settings, *begun]:
                if settings.get(name) != begun.get(name):
                    raise ValueError(
                        f"{name}: {settings.get(name)}, but {self.folder} was begun with "
                        f"{begun.get(name)}; give that, or remove the folder to begin anew"
                    )
            return
        for old in self.folder.iterdir():
            if old.name != _LOCK and not old.name.endswith(".tmp"):
                raise ValueError(f"--work: {self.folder} holds other files, {old.name} for one")
        part = self.folder / (_SETTINGS + ".tmp")
        part.write_text(json.dumps(dict(settings), indent=1))
        os.replace(part, path)

    def path(self, name: str) -> Path:
        return self.folder / name

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.npy").exists()

    def save(self, name: str, array: npt.NDArray[Any]) -> None:
        """Keeps an array. Whoever looks sees all of it or nothing."""
        path = self.folder / f"{name}.npy"
        part = self.folder / f"{name}.tmp.npy"
        np.save(part, array)
        os.replace(part, path)

    def load(self, name: str) -> npt.NDArray[Any]:
        """An array that was kept: read from the file as it is looked at, never written back."""
        found: npt.NDArray[Any] = np.load(self.folder / f"{name}.npy", mmap_mode="c")
        return found

    def need(self, more_bytes: int) -> None:
        """Raises ValueError where the file system lacks room for so many bytes more."""
        free = shutil.disk_usage(self.folder).free
        if free < more_bytes:
            raise ValueError(
                f"--work: {self.folder} needs {more_bytes / 1e9:.1f} GB more, and its file system "
                f"has {free / 1e9:.1f} GB left"
            )

    def remove(self) -> None:
        """Removes the folder, and nothing that this module does not know."""
        for path in [*self.folder.glob("*.npy"), self.folder / "stats.safetensors"]:
            path.unlink(missing_ok=True)
        for name in (_SETTINGS, _LOCK):
            (self.folder / name).unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

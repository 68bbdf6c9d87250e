"""The calibration of a model, from its own statistics: the console script `kvstow-calibrate`.

    kvstow-calibrate MODEL --out model.kvcal

It runs the model over texts, takes what the model feels of errors in its K and V, and lets
`kvstow codec calibrate` fit the recipe's tables (docs/CODECS.md says how a calibration is used).
The modules `model` and `statistics` need torch and transformers: `pip install kvstow[hf]`. The
others do not import them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvstow.calibrate.plan import parse
from kvstow.calibrate.progress import Progress
from kvstow.calibrate.work import Work

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Returns its exit code: 0, 1 for what went wrong, 2 for wrong use."""
    progress = Progress(sys.stderr)
    try:
        plan = parse(arguments)
        if problem := _missing_packages():
            raise ValueError(problem)
        from kvstow.calibrate.run import calibrate

        with Work(plan.work) as work:
            print(calibrate(plan, work, progress))
            if not plan.keep:
                work.remove()
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        progress.end()
        print(f"kvstow-calibrate: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        progress.end()
        print("kvstow-calibrate: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _missing_packages() -> str:
    """What to install; "" where nothing is missing."""
    import importlib.util

    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return f"{' and '.join(missing)}: not installed; pip install 'kvstow[hf]'"

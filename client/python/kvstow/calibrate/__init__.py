"""The calibration of a model, from its own statistics: the console script `kvstow-calibrate`.

    kvstow-calibrate MODEL --out model.kvcal

It runs the model over texts, takes what the model feels of errors in its K and V, and lets
`kvstow codec calibrate` fit the recipe's tables (docs/CODECS.md says how a calibration is used).
The modules `model` and `statistics` need torch and transformers, which the extra `hf` brings. The
others do not import them.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstow import console
from kvstow.calibrate.plan import parse
from kvstow.calibrate.work import Work
from kvstow.progress import Progress

__all__ = ["main"]

_AGAIN = "the same command goes on from here"


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Returns its exit code: 0, 1 for what went wrong, 2 for wrong use."""
    return console.run("kvstow-calibrate", lambda progress: _calibrate(arguments, progress), _AGAIN)


def _calibrate(arguments: Sequence[str] | None, progress: Progress) -> str:
    plan = parse(arguments)
    console.need("torch", "transformers")
    from kvstow.calibrate.run import calibrate

    with Work(plan.work) as work:
        said = calibrate(plan, work, progress)
        if not plan.keep:
            work.remove()
    return said

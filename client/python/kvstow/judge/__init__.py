"""What recipes cost a model, judged by the model itself: the console script `kvstow-judge`.

    kvstow-judge MODEL --texts FILES

K and V of the beginning of each text go through a server as pages of a recipe. The model then reads
on behind what came back, and behind K and V as they were. How far its next tokens differ, and how
many bytes the server stored, is the verdict on the recipe.

The modules `measure`, `places` and `run` need torch and transformers, which the extra `hf` brings.
The others do not import them.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstow import console
from kvstow.judge.plan import parse
from kvstow.progress import Progress

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Returns its exit code: 0, 1 for what went wrong, 2 for wrong use."""
    return console.run("kvstow-judge", lambda progress: _judge(arguments, progress))


def _judge(arguments: Sequence[str] | None, progress: Progress) -> str:
    plan = parse(arguments)
    console.need("torch", "transformers")
    from kvstow.judge.run import judge

    return judge(plan, progress)

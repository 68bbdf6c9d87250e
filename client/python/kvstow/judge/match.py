"""The step at which a recipe costs what another one does."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

from kvstow import _native
from kvstow.judge.verdict import Verdict

_FIRST_STEP = 1.0
_POWER = 1.7  # of the step, that costs grow by, until two steps were tried
_LEAST_POWER, _MOST_POWER = 1.0, 3.0  # beyond these, chance spoke
_CLOSE = 0.02  # of the cost that is wanted
_MOST_TRIES = 8


@dataclasses.dataclass(frozen=True)
class Trial:
    """A step, and what it did."""

    step: float
    verdict: Verdict


def with_step(recipe: str, step: float) -> str:
    """The recipe with this step. Raises ValueError for one that has none."""
    with_divergence = _native.recipe_with_divergence(recipe, 1.0)
    return re.sub(r"divergence=[^,)]*", f"step={step:.4g}", with_divergence)


def search(target: float, judge: Callable[[float], Verdict]) -> Trial:
    """The step of which `judge` says that it costs `target` nats, or nearly.

    Costs grow nearly as a power of the step. So each step follows from the two before. `judge` raises
    ValueError for a step beyond what the recipe takes: the way to it is halved then. Where no step
    costs that much, or that little, the closest one is the answer.
    """
    best = last = Trial(_FIRST_STEP, judge(_FIRST_STEP))
    power = _POWER
    for _ in range(_MOST_TRIES - 1):
        if _away(best, target) <= _CLOSE or last.verdict.divergence <= 0:
            break
        step = last.step * (target / last.verdict.divergence) ** (1 / power)
        try:
            trial = Trial(step, judge(step))
        except ValueError:
            power *= 2
            continue
        rise = math.log(max(trial.verdict.divergence, 1e-9) / last.verdict.divergence)
        power = min(max(rise / math.log(step / last.step), _LEAST_POWER), _MOST_POWER)
        last = trial
        best = min(best, trial, key=lambda one: _away(one, target))
    return best


def _away(trial: Trial, target: float) -> float:
    return abs(math.log(max(trial.verdict.divergence, 1e-9) / target))

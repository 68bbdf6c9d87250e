"""What a recipe cost: for one text, and for all of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a recipe did to one text."""

    share: float  # stored bytes, over K and V in 16 bits
    divergence: float  # KL divergence of the next tokens: the mean, in nats
    same: float  # how many tokens of the window have the same most likely successor


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What one recipe did to all texts."""

    ratio: float  # K and V in 16 bits over stored bytes
    divergence: float
    same: float


def verdict_of(costs: Sequence[Cost]) -> Verdict:
    """The mean: of bytes, not of ratios."""

    def mean(values: Iterable[float]) -> float:
        return math.fsum(values) / len(costs)

    return Verdict(
        1 / mean(cost.share for cost in costs),
        mean(cost.divergence for cost in costs),
        mean(cost.same for cost in costs),
    )

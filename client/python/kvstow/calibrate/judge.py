"""What codes of a new calibration cost the model, judged by the model itself.

Statistics of a model say what errors of K and V cost, and pages may ask for a divergence by that
(docs/CODECS.md). They tell well which error costs more than another, and less well how much all of
them cost. So texts are coded with the calibration, finely and coarsely, and the model reads on
behind them. The costs in the calibration get the scale and the power that its answers have.

Needs torch.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence

from kvstow import _native
from kvstow.calibrate.model import Subject
from kvstow.calibrate.plan import Plan
from kvstow.judge import measure, places
from kvstow.judge.measure import Text
from kvstow.judge.verdict import Verdict, verdict_of
from kvstow.progress import Progress
from kvstow.statistics import PIVOT, STRANGERS

_TARGETS = (0.005, 0.02)  # nats
_ROUNDS = 2
_PAGE_TOKENS = 256
_LEAST_POWER, _MOST_POWER = 0.8, 1.6  # beyond these, chance spoke


def judge(
    plan: Plan, subject: Subject, texts: Sequence[Sequence[int]], progress: Progress
) -> list[Verdict]:
    """Judges the calibration `plan.out`, as it was fitted, at each target, and puts its costs right.

    texts: tokens, at least `plan.prefixes[0] + plan.window` of each.

    Returns nothing for a recipe that is not `joint` alone, as `kvstow-cal` is: others cannot ask
    for a divergence, or need more than a page. Raises RuntimeError where a page does not come back.
    """
    if not _is_joint(plan.recipe):
        return []
    prefix = plan.prefixes[0]
    progress.step("judging", len(texts) * (1 + _ROUNDS * len(_TARGETS)))
    read = []
    for tokens in texts:
        read.append(measure.read(subject, "", tokens[: prefix + plan.window], prefix))
        progress.advance()
    verdicts: list[Verdict] = []
    power = 1.0
    for _ in range(_ROUNDS):  # the first round may code far from the targets
        verdicts = _judge_once(plan, subject, read, progress)
        if not all(verdict.divergence > 0 for verdict in verdicts):
            break  # nothing to go by
        power = _put_right(plan, verdicts, power)
    progress.end()
    return verdicts


def _is_joint(recipe: str) -> bool:
    try:
        return _native.recipe_with_divergence(recipe, _TARGETS[0]).startswith("joint(")
    except ValueError:  # it has no step
        return False


def _judge_once(
    plan: Plan, subject: Subject, texts: Sequence[Text], progress: Progress
) -> list[Verdict]:
    size = min(_PAGE_TOKENS, texts[0].tokens)
    spec = dataclasses.replace(subject.spec, dtype="float16", page_tokens=size)
    room = sum(text.kv.nbytes for text in texts)
    verdicts = []
    for target in _TARGETS:
        recipe = _native.recipe_with_divergence(plan.recipe, target)
        costs = []
        with places.own_server(recipe, spec, room, [plan.out]) as place:
            for number, text in enumerate(texts):
                keys = measure.put(place.space, text.kv, str(number))
                costs.append(measure.cost(subject, place.space, text, keys))
                progress.advance()
        verdicts.append(verdict_of(costs))
    return verdicts


def _put_right(plan: Plan, verdicts: Sequence[Verdict], power: float) -> float:
    """Gives the costs in a calibration the scale and the power that foretell what was judged.

    power: what they had. Returns what they have now.
    """
    asked = [math.log(target / PIVOT) / power for target in _TARGETS]  # what all errors cost
    more = 1.0 if plan.texts else STRANGERS  # pieces of the mix are of kinds that were fitted
    found = [math.log(verdict.divergence * more / PIVOT) for verdict in verdicts]
    steepness = (found[1] - found[0]) / (asked[1] - asked[0])
    power = min(max(steepness, _LEAST_POWER), _MOST_POWER)
    factor = math.exp((found[0] + found[1]) / (2 * power) - (asked[0] + asked[1]) / 2)
    fresh = plan.out.with_name(f"{plan.out.name}.new")
    fresh.write_bytes(_native.scaled_costs(plan.out.read_bytes(), factor, power))
    os.replace(fresh, plan.out)
    return power

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
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from kvstow import _native
from kvstow.calibrate.blob import PATIENCE
from kvstow.calibrate.model import Subject
from kvstow.calibrate.plan import Plan
from kvstow.calibrate.progress import Progress
from kvstow.client import Client, Space
from kvstow.server import Server
from kvstow.statistics import PIVOT, STRANGERS
from kvstow.types import KvSpec, Page

_TARGETS = (0.005, 0.02)  # nats
_ROUNDS = 2
_PAGE_TOKENS = 256
_LEAST_POWER, _MOST_POWER = 0.8, 1.6  # beyond these, chance spoke


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What one recipe did to all texts."""

    ratio: float  # raw over stored bytes
    divergence: float  # KL divergence of the next tokens: the mean, in nats


@dataclasses.dataclass(frozen=True)
class _Text:
    """A text, and what the model makes of it."""

    kv: npt.NDArray[np.float16]
    window: Sequence[int]  # tokens that follow
    log_p: torch.Tensor  # of what comes next in the window, with K and V as they are


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
        kv = subject.states(tokens[:prefix])
        window = tokens[prefix : prefix + plan.window]
        read.append(_Text(kv, window, subject.log_probs(window, subject.past(kv, prefix))))
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
    plan: Plan, subject: Subject, texts: Sequence[_Text], progress: Progress
) -> list[Verdict]:
    tokens = texts[0].kv.shape[2]
    size = min(_PAGE_TOKENS, tokens)
    spec = dataclasses.replace(subject.spec, dtype="float16", page_tokens=size)
    room = len(texts) * len(_TARGETS) * tokens * subject.token_bytes
    verdicts = []
    with (
        tempfile.TemporaryDirectory() as folder,  # that of a large model is too large to be sent
        Server(f"{room + (256 << 20)}", local_bytes=0, calibrations=folder) as server,
        Client(server.address, timeout=PATIENCE) as client,
    ):
        os.symlink(plan.out.absolute(), Path(folder) / plan.out.name)  # read when a space is opened
        for target in _TARGETS:
            recipe = _native.recipe_with_divergence(plan.recipe, target)
            space = client.open_space(f"at-{target}", spec, recipe=recipe)
            shares, divergences = [], []
            for number, text in enumerate(texts):
                coded, stored = _through(space, text.kv, number)
                log_p = subject.log_probs(text.window, subject.past(coded, tokens))
                divergences.append((text.log_p.exp() * (text.log_p - log_p)).sum(-1).mean().item())
                shares.append(stored / text.kv.nbytes)
                progress.advance()
            count = len(texts)
            verdicts.append(Verdict(count / math.fsum(shares), math.fsum(divergences) / count))
    return verdicts


def _through(
    space: Space, kv: npt.NDArray[np.float16], text: int
) -> tuple[npt.NDArray[np.float16], int]:
    """Puts K and V of a text, and gets them back. Returns that, and the bytes that were stored."""
    spec: KvSpec = space.spec
    firsts = range(0, kv.shape[2], spec.page_tokens)
    cuts = [np.ascontiguousarray(kv[:, :, at : at + spec.page_tokens]) for at in firsts]
    keys = [b"%d %d" % (text, at) for at in firsts]
    pages = [
        Page(key, cut, first_position=at) for key, cut, at in zip(keys, cuts, firsts, strict=True)
    ]
    back = [np.empty_like(cut) for cut in cuts]
    for put in space.put(pages):
        if not put.stored:
            raise RuntimeError(f"a page was not stored: {put.outcome}: {put.message}")
    stored = 0
    for got in space.get(keys, back):
        if not got.hit:
            raise RuntimeError(f"a page did not come back: {got.outcome}: {got.message}")
        stored += got.stored_bytes
    return np.concatenate(back, axis=2), stored


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

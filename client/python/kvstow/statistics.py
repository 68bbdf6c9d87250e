"""What a model feels of errors in its K and V, as a server takes it (Space.send_statistics)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvstow import _native
from kvstow.client import Space
from kvstow.types import KvSpec

_PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED")  # of a server that may take statistics later
_LEAST = 1e-6  # of the mean cost: what a model feels nothing of at all
# Of SmolLM2-135M (docs/decisions/0091-power-of-the-divergence.md). A KL divergence grows with this
# power of the sum of what errors cost, and is that sum at PIVOT nats (docs/FORMAT.md, "stats").
# Texts of other kinds than those that statistics are of cost so many times as much.
POWER, PIVOT, STRANGERS = 1.27, 0.01, 1.3
# Of Gemma-3-270M, which norms its keys (docs/decisions/0104-first-tokens-in-8-bits.md): forward
# passes foretell so many times too little.
NORMED = 2.1
ENOUGH = 4096  # tokens of texts: statistics of fewer foretell less than codes cost


def model_statistics(
    spec: KvSpec,
    cost_k: npt.NDArray[np.floating],
    cost_v: npt.NDArray[np.floating] | None = None,
    slope_k: npt.NDArray[np.floating] | None = None,
    slope_v: npt.NDArray[np.floating] | None = None,
    entropy: npt.NDArray[np.floating] | None = None,
    queries: Mapping[int, npt.NDArray[np.floating]] | None = None,
) -> bytes:
    """The statistics of a model, for spaces of recipe auto with this spec.

    cost_k: `[layers, kv_heads, head_dim, head_dim]`, symmetric. x @ cost @ x is what an error x of
        K before RoPE, of one token, costs: a KL divergence of the next tokens, in nats.
    cost_v: the same of V; None for a spec without V.
    slope_k: `[layers, kv_heads, head_dim]`: how the logarithm of what all errors of a token cost
        grows with its K before RoPE. Tokens that cost more then get finer steps. None: not known.
    slope_v: the same of V; given where slope_k and cost_v are.
    entropy: `[values + 1]`: entropy @ [K before RoPE, V, 1] of a token in the last layer foretells
        the entropy of the next token, over its mean. Errors of a text cost more with it. Given
        where slopes are. None: not known.
    queries: the mean query of each of some heads, of some layers: `[heads, head_dim]`, before RoPE
        and scaled as logits are. Heads are as many for each KV head, and stand together. Tokens
        that they attend to get finer steps. None: not known.

    kvstow.hf.statistics_of makes all of them for a model of transformers. Raises ValueError for a
    shape that is not the spec's, and for values that are not finite.
    """
    parts: list[bytes] = []
    for name, cost in (("cost_k", cost_k), ("cost_v", cost_v)):
        if cost is None:
            parts += [b"", b""]
            continue
        if cost.ndim != 4 or not np.isfinite(cost).all():
            raise ValueError(f"{name}: is not a finite array [layers, kv_heads, d, d]")
        found = cost.astype(np.float64)
        trace = np.trace(found, axis1=2, axis2=3)
        if not trace.mean() > 0:
            raise ValueError(f"{name}: costs nothing at all")
        trace = np.maximum(trace, _LEAST * trace.mean())
        metric = found * (cost.shape[2] / trace)[..., None, None]
        parts += [metric.astype("<f4").tobytes(), np.sqrt(trace).astype("<f4").tobytes()]
    for name, slope in (("slope_k", slope_k), ("slope_v", slope_v)):
        if slope is not None and (slope.ndim != 3 or not np.isfinite(slope).all()):
            raise ValueError(f"{name}: is not a finite array [layers, kv_heads, d]")
        parts.append(b"" if slope is None else slope.astype("<f4").tobytes())
    if entropy is not None and (entropy.ndim != 1 or not np.isfinite(entropy).all()):
        raise ValueError("entropy: is not a finite array [values + 1]")
    parts.append(b"" if entropy is None else entropy.astype("<f4").tobytes())
    asked: dict[int, bytes] = {}
    for layer, mean in (queries or {}).items():
        if mean.ndim != 2 or not np.isfinite(mean).all():
            raise ValueError(f"queries: those of layer {layer} are no finite array [heads, d]")
        asked[layer] = np.ascontiguousarray(mean, "<f4").tobytes()
    return _native.model_statistics(spec.native(), asked, *parts)


def with_power(statistics: bytes, more: float) -> bytes:
    """Statistics with the usual power, where no model can judge what codes cost.

    more: every divergence is so many times as large.
    """
    return _native.scaled_costs(statistics, more ** (1 / POWER), POWER)


def margin_of(tokens: int, normed_keys: bool) -> float:
    """How many times what they foretell statistics of so many tokens may cost, where none judges.

    docs/decisions/0098-statistics-of-several-prompts.md has what one prompt and more tell.
    normed_keys: whether the model's keys pass a norm (kvstow.models.norms_keys).
    """
    margin = STRANGERS * math.sqrt(max(1.0, ENOUGH / tokens))
    return NORMED * margin if normed_keys else margin


def rank_statistics(
    statistics: bytes,
    spec: KvSpec,
    *,
    first_layer: int = 0,
    tensor_rank: int = 0,
    tensor_size: int = 1,
) -> bytes:
    """A rank's part of the statistics of its model: for a space that holds this rank's pages.

    Its errors cost as if the whole model had them: the mean over ranks is what the model loses.

    statistics: of the whole model, as `kvstow-calibrate --statistics` writes them.
    spec: of the rank's pages.
    first_layer: of the model, that the rank has.
    tensor_rank, tensor_size: the rank has this part of each layer's KV heads. Where ranks are more
        than heads, a rank has one head.

    Raises ValueError where the rank's layers, heads, widths or RoPE are not the model's.
    """
    return _native.rank_statistics(
        statistics, spec.native(), first_layer, tensor_rank, tensor_size
    )


def send_file(
    space: Space,
    path: str,
    *,
    first_layer: int,
    tensor_rank: int,
    tensor_size: int,
) -> str:
    """Sends a rank's part of a file of statistics, where the server wants them.

    Returns why it could not, for an engine's log; "" where all is well. Never raises. The space
    still wants statistics where the server did not answer: call it again then.
    """
    if not path or not space.wants_statistics:
        return ""
    space.wants_statistics = False  # one trial, where the server answers
    try:
        part = rank_statistics(
            Path(path).read_bytes(),
            space.spec,
            first_layer=first_layer,
            tensor_rank=tensor_rank,
            tensor_size=tensor_size,
        )
        if space.send_statistics(part):
            return ""
        space.wants_statistics = space.message.startswith(_PASSING)
        return f"statistics: {path}: {space.message}"
    except OSError as error:
        return f"statistics: {error}"
    except ValueError as error:
        return f"statistics: {path}: {error}"

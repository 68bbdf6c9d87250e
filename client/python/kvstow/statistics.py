"""What a model feels of errors in its K and V, as a server takes it (Space.send_statistics)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstow import _native
from kvstow.types import KvSpec

_LEAST = 1e-6  # of the mean cost: what a model feels nothing of at all


def model_statistics(
    spec: KvSpec,
    cost_k: npt.NDArray[np.floating],
    cost_v: npt.NDArray[np.floating] | None = None,
    slope_k: npt.NDArray[np.floating] | None = None,
    slope_v: npt.NDArray[np.floating] | None = None,
) -> bytes:
    """The statistics of a model, for spaces of recipe auto with this spec.

    cost_k: `[layers, kv_heads, head_dim, head_dim]`, symmetric. x @ cost @ x is what an error x of
        K before RoPE, of one token, costs: a KL divergence of the next tokens, in nats.
    cost_v: the same of V; None for a spec without V.
    slope_k: `[layers, kv_heads, head_dim]`: how the logarithm of what all errors of a token cost
        grows with its K before RoPE. Tokens that cost more then get finer steps. None: not known.
    slope_v: the same of V; given where slope_k and cost_v are.

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
    return _native.model_statistics(spec.native(), *parts)

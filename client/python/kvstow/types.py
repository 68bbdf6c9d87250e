"""The values that calls take and give: what a page is, and what became of it.

All of them are immutable. Sizes are in bytes, positions and counts in tokens.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kvstow import _native

Buffer: TypeAlias = Any
"""Anything with the buffer protocol or DLPack: bytes, numpy arrays, torch and JAX tensors."""

Event: TypeAlias = Any
"""A `torch.cuda.Event`, or anything with a CUDA event's handle as `cuda_event`: the call keeps it
until it has ended. Or the handle, an int, of an event that lives that long. 0: nothing to wait for."""

Ack: TypeAlias = Literal["default", "memory", "process", "durable"]
Fidelity: TypeAlias = Literal["", "exact", "dense", "sparse"]
Payload: TypeAlias = Literal["raw", "encoded", "auto"]
Outcome: TypeAlias = str
"""HIT, STORED and ALREADY_THERE are good; MISS, CORRUPT, EXPIRED, UNAVAILABLE, NOT_COMPATIBLE,
CONFLICT and REFUSED are not, and `message` says why."""

_NUMPY_TYPES: Mapping[str, npt.DTypeLike] = {
    "float16": np.float16,
    "bfloat16": np.uint16,  # numpy has no bfloat16: the bits
    "float32": np.float32,
    "float8_e4m3fn": np.uint8,
    "float8_e5m2": np.uint8,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How positions are rotated into K. It changes bytes, so it is part of a space's identity."""

    layout: Literal["none", "half", "interleaved"] = "half"
    theta: float = 10000.0
    scaling: Literal["none", "linear", "ntk", "yarn", "llama3", "longrope"] = "none"
    k_after_rope: bool = True
    rotary_dims: int = 0  # leading channels that are rotated; 0 = all
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 0.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    mrope_sections: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KvSpec:
    """Everything about a model's KV cache that changes bytes.

    A raw page of `tokens` tokens is `[layers, 2, tokens, kv_heads, head_dim]` in row-major order:
    layer after layer K, then V. With `head_dim_v=0` (MLA) there is no V.
    """

    model: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype: Literal["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"]
    page_tokens: int
    revision: str = "unversioned"  # of the weights: a commit or a digest
    head_dim_v: int | None = None  # None: as head_dim
    rope: Rope = Rope()
    rank: int = 0
    world_size: int = 1
    engine: str = ""
    weight_quantization: str = ""
    adapter: str = ""
    kv_scales: str = ""
    sliding_window: int = 0
    layer_layout: str = ""
    other_rope: Rope | None = None  # of the layers below; None: all layers have `rope`
    other_rope_layers: tuple[int, ...] = ()  # ascending

    def native(self) -> _native.Spec:
        """The native form. Raises ValueError that names a field out of range."""
        return _native.Spec(self)

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token, in all layers."""
        return self.native().token_bytes

    def page_shape(self, tokens: int | None = None) -> tuple[int, ...]:
        """The axes of a raw page. Raises ValueError where K and V have different widths."""
        count = self.page_tokens if tokens is None else tokens
        if self.head_dim_v == 0:
            return (self.layers, count, self.kv_heads, self.head_dim)
        if self.head_dim_v not in (None, self.head_dim):
            raise ValueError("page_shape: K and V have different widths; a page is flat bytes")
        return (self.layers, 2, count, self.kv_heads, self.head_dim)

    def numpy_dtype(self) -> np.dtype[Any]:
        """numpy's name of the dtype; bfloat16 is uint16, float8 is uint8: the bits."""
        return np.dtype(_NUMPY_TYPES[self.dtype])

    def empty(self, pages: int, tokens: int | None = None) -> npt.NDArray[Any]:
        """An uninitialised array for `pages` pages: `[pages, *page_shape]`."""
        return np.empty((pages, *self.page_shape(tokens)), self.numpy_dtype())


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """The attention that the tokens of a page received, under a name that policies know.

    `scores` is `[layers, tokens, kv_heads]`, in any real dtype: it goes as float16.
    """

    name: str
    scores: npt.NDArray[Any]
    queries: int = 1  # that the scores sum over
    context: int = 0  # tokens that each query could see; 0 = up to the page's end

    @property
    def _scores(self) -> bytes:
        scores = np.asarray(self.scores)
        if scores.ndim != 3:
            raise ValueError(f"scores: has {scores.ndim} axes, not [layers, tokens, kv_heads]")
        return scores.clip(-65504.0, 65504.0).astype("<f2").tobytes()


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A page to put. `data` must not change until the put has ended.

    `ready` is for data on a GPU, which is complete once the event has passed. 0: it is complete.
    """

    key: bytes
    data: Buffer
    first_position: int = 0
    ack: Ack = "default"
    columns: Sequence[Column] = ()
    ready: Event = 0

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes) or not 1 <= len(self.key) <= 64:
            raise ValueError(f"key: must be 1 to 64 bytes, not {self.key!r}")
        if self.first_position < 0:
            raise ValueError(f"first_position: {self.first_position} is less than 0")


class PutResult(NamedTuple):
    """The result of putting a page."""

    outcome: Outcome
    message: str = ""
    stored_bytes: int = 0
    recipe: str = ""
    fell_back: bool = False
    ack: Ack = "default"

    @property
    def stored(self) -> bool:
        """Whether the server has the page now."""
        return self.outcome in ("STORED", "ALREADY_THERE")


class GetResult(NamedTuple):
    """The result of asking for a page, and how faithful it is. Only a hit has data."""

    outcome: Outcome
    message: str = ""
    tokens: int = 0
    first_position: int = 0
    page_bytes: int = 0
    tier: str = ""
    recipe: str = ""
    exact: bool = False
    levels: int = 0
    levels_stored: int = 0
    estimated_error: float = math.inf
    stored_bytes: int = 0
    keep_bytes: bytes | None = None
    kept_share: float = 1.0
    raw_digest: bytes = b""
    data: Buffer = None

    @property
    def hit(self) -> bool:
        return self.outcome == "HIT"

    def keep(self, layers: int) -> npt.NDArray[np.bool_] | None:
        """The tokens of a sparse page that are there: `[layers, tokens, kv_heads]`. None: all.

        K and V of the others are zeros; attention must mask them.
        """
        if self.keep_bytes is None:
            return None
        return np.frombuffer(self.keep_bytes, np.bool_).reshape(layers, self.tokens, -1)


class PrefixHit(NamedTuple):
    """How many leading keys are stored. False where none is."""

    pages: int = 0
    tokens: int = 0
    lease: int = 0
    tiers: tuple[str, ...] = ()
    message: str = ""  # why there is nothing, when the call itself failed

    def __bool__(self) -> bool:
        return self.pages > 0


class Serving(NamedTuple):
    """The server that serves a client now, of those that its address names."""

    address: str
    changes: int = 0  # how often another server took over


class ReportResult(NamedTuple):
    """Whether a report of attention was taken (HIT), or why not."""

    outcome: Outcome
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """The demands of a get on each page (client/pages.h, PageGet)."""

    max_levels: int = 0
    min_levels: int = 0
    max_error: float = math.inf
    first_layer: int = 0
    layer_count: int = 0
    first_token: int = 0
    token_count: int = 0
    again: bool = False
    ready: Event = 0


class SpaceMismatch(ValueError):
    """A space of this name exists and holds other pages: another model, layout or fidelity."""


def trouble_of(results: Iterable[PutResult | GetResult]) -> str:
    """Why the server did not answer for a page; "" where it answered for all."""
    return next((r.message or r.outcome for r in results if r.outcome == "UNAVAILABLE"), "")


def page_keys(
    tokens: Sequence[int] | npt.NDArray[Any],
    page_tokens: int,
    extras: Sequence[bytes] = (),
    page_extras: Sequence[Sequence[bytes]] = (),
) -> list[bytes]:
    """The chained keys of the pages of a prompt: equal keys mean equal prefixes.

    A last, shorter page has a key too. `extras` name what token ids do not (an adapter, a salt);
    `page_extras` do so for each page (the digests of its images). docs/FORMAT.md specifies keys.
    """
    if page_tokens < 1:
        raise ValueError(f"page_tokens: {page_tokens} is less than 1")
    ids = np.asarray(tokens)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise ValueError("tokens: must be a flat sequence of token ids")
    return _native.page_keys(ids.tolist(), page_tokens, list(extras), [list(p) for p in page_extras])

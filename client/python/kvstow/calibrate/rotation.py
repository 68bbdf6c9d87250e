"""The rotary positions that codecs take off K, and put back: those of kernels/transform/rope.cc.

A model may rotate otherwise (LongRoPE). What counts here is K as a codec sees it.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import torch

from kvstow.types import KvSpec, Rope

_TWO_PI = 2 * math.pi


@dataclasses.dataclass(frozen=True)
class Rotation:
    """RoPE of vectors of `head_dim` channels."""

    rope: Rope
    head_dim: int

    def turn(self, x: torch.Tensor, first: int = 0, *, back: bool = False) -> torch.Tensor:
        """Rotates x `[tokens, heads, head_dim]`, whose first token is at position `first`.

        back: takes the rotation off.
        """
        positions = torch.arange(first, first + len(x), device=x.device)
        return self._turn(x, positions[:, None], back)

    def seen_before_rope(self, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """A query `[..., head_dim]` after RoPE, as it meets K before RoPE of tokens `[...]`."""
        return self._turn(q, positions, back=True) * _magnitude(self.rope) ** 2

    def _turn(self, x: torch.Tensor, positions: torch.Tensor, back: bool) -> torch.Tensor:
        frequencies = torch.from_numpy(_frequencies(self.rope, self.head_dim)).to(x.device)
        angles = positions.double()[..., None] * frequencies
        magnitude = _magnitude(self.rope)
        scale = 1 / magnitude if back else magnitude
        cos = (angles.cos() * scale).to(x.dtype)
        sin = (angles.sin() * (-scale if back else scale)).to(x.dtype)
        pairs = len(frequencies)
        a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * pairs :]], -1)

    def turn_gradient_back(self, g: torch.Tensor) -> torch.Tensor:
        """The gradient by K before RoPE, of the gradient by K after it."""
        return self.turn(g, back=True) * _magnitude(self.rope) ** 2

    def seen_from_afar(self, qq: torch.Tensor) -> torch.Tensor:
        """How an error of K before RoPE shows in logits: the mean over distances to the query.

        qq: E[q q^T] of queries before RoPE, `[..., head_dim, head_dim]`.
        """
        distances = np.unique(np.round(np.geomspace(1, 2048, 48)).astype(int))
        eye = torch.eye(self.head_dim, dtype=qq.dtype, device=qq.device)[None]
        out = torch.zeros_like(qq)
        for distance in distances:
            r = self.turn(eye, -int(distance))[0].T
            out += r.T @ qq @ r
        return out / len(distances)


def rotations_of(spec: KvSpec) -> list[Rotation]:
    """Of each layer."""
    out = [Rotation(spec.rope, spec.head_dim)] * spec.layers
    for layer in spec.other_rope_layers:
        assert spec.other_rope is not None
        out[layer] = Rotation(spec.other_rope, spec.head_dim)
    return out


def _magnitude(rope: Rope) -> float:
    if rope.scaling == "yarn" and rope.factor > 1:
        return 0.1 * math.log(rope.factor) + 1
    return 1.0


def _frequencies(rope: Rope, head_dim: int) -> npt.NDArray[np.float64]:
    """By pair of channels: the angle from one position to the next."""
    dims = rope.rotary_dims or head_dim
    exponents = -2 * np.arange(dims // 2) / dims
    plain = rope.theta**exponents
    if rope.scaling == "linear":
        return plain / rope.factor
    if rope.scaling == "ntk" and dims > 2:
        base = rope.theta * rope.factor ** (dims / (dims - 2))
        return np.asarray(base**exponents, np.float64)
    if rope.scaling == "yarn":
        share = _yarn_share(rope, dims)
        return plain * share + plain / rope.factor * (1 - share)
    if rope.scaling == "llama3":
        return _llama3(rope, plain)
    return plain


def _yarn_share(rope: Rope, dims: int) -> npt.NDArray[np.float64]:
    """By pair: how much keeps its frequency."""

    def dimension(turns: float) -> float:
        pairs = math.log(rope.original_context / (turns * _TWO_PI)) / math.log(rope.theta)
        return dims * pairs / 2

    low = max(math.floor(dimension(rope.high_freq_factor)), 0.0)
    high = min(math.ceil(dimension(rope.low_freq_factor)), dims - 1.0)
    if low == high:
        high += 0.001
    return np.asarray(1 - np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1), np.float64)


def _llama3(rope: Rope, plain: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    turns = rope.original_context * plain / _TWO_PI
    low, high = rope.low_freq_factor, rope.high_freq_factor
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - smooth) * plain / rope.factor + smooth * plain

"""Where an attention backend keeps K and V of a token, found by asking the backend.

Backends lay out a block as they like: the CPU backend keeps K channel by channel and V token by
token. `probe` has the layer's own code write numbered elements into a scratch block, and reads
where they went. It describes the places with strides, so a copy between a block and a page is a
plain strided copy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

_BASE = 128  # of the digits that number elements: each is exact in every dtype


class UnknownLayout(ValueError):
    """A backend's layout cannot be found, or has no strides."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """K or V in a block: (size, stride) of the parts of the axes token, head and channel."""

    offset: int
    axes: tuple[tuple[int, int], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for size, _ in self.axes)

    def view(self, cache: torch.Tensor) -> torch.Tensor:
        """All blocks of a layer's cache: [blocks, *sizes]."""
        return cache.as_strided(
            (cache.shape[0], *self.sizes),
            (cache.stride(0), *(stride for _, stride in self.axes)),
            cache.storage_offset() + self.offset,
        )


def split_alike(k: Layout, v: Layout) -> tuple[Layout, Layout]:
    """The same places with axes of the same sizes. Raises UnknownLayout.

    A backend may tile K and V differently, as vLLM's does for AMX: the finer split serves both.
    """
    left, right = list(k.axes), list(v.axes)
    alike: list[tuple[tuple[int, int], tuple[int, int]]] = []
    while left or right:
        n, step = left.pop() if left else (1, 0)
        m, other = right.pop() if right else (1, 0)
        size = min(n, m)
        if n % size or m % size:
            raise UnknownLayout(f"K is split by {k.sizes}, V by {v.sizes}: no split serves both")
        alike.append(((size, step), (size, other)))
        if n > size:
            left.append((n // size, step * size))
        if m > size:
            right.append((m // size, other * size))
    alike.reverse()
    return (
        Layout(k.offset, tuple(axis for axis, _ in alike)),
        Layout(v.offset, tuple(axis for _, axis in alike)),
    )


def probe(layer: Any, cache: torch.Tensor, heads: int, head_dim: int) -> tuple[Layout, Layout]:
    """The layouts of K and V in a layer's cache. Raises UnknownLayout."""
    name = type(layer.impl).__name__
    if cache.dim() != 4 or not hasattr(layer.impl, "do_kv_cache_update"):
        raise UnknownLayout(f"the cache of {name} has {cache.dim()} axes, or no way to fill it")
    tokens = cache.numel() // cache.shape[0] // (2 * heads * head_dim)
    shape = (tokens, heads, head_dim)
    slots = torch.arange(tokens, dtype=torch.int64, device=cache.device)
    found = []
    for which in (0, 1):
        places = torch.zeros(0)
        for digit in range(math.ceil(math.log(max(math.prod(shape), 2), _BASE))):
            numbers = torch.arange(math.prod(shape)) // _BASE**digit % _BASE + 1
            values = numbers.to(cache.device, cache.dtype).view(shape)
            pair = (values, torch.zeros_like(values))
            scratch = torch.empty_strided(
                (1, *cache.shape[1:]), cache.stride(), dtype=cache.dtype, device=cache.device
            )
            flat = scratch.as_strided((_extent(scratch),), (1,))
            flat.zero_()
            layer.impl.do_kv_cache_update(layer, pair[which], pair[1 - which], scratch, slots)
            read = flat.to("cpu", torch.float32).to(torch.int64)
            part = torch.where(read > 0, (read - 1) * _BASE**digit, -1)
            places = part if not digit else torch.where(read > 0, places + part, -1)
        found.append(_strided(_positions(places, math.prod(shape), name), shape, name))
    return found[0], found[1]


def _extent(tensor: torch.Tensor) -> int:
    spans = ((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return int(1 + sum(spans))


def _positions(places: torch.Tensor, count: int, name: str) -> torch.Tensor:
    """Where each element went, from which element each place has."""
    used = (places >= 0).nonzero().flatten()
    numbers = places[used]
    if numbers.numel() != count or not torch.equal(numbers.sort().values, torch.arange(count)):
        raise UnknownLayout(f"{name} does not store each element of K and V once")
    positions = torch.empty(count, dtype=torch.int64)
    positions[numbers] = used
    return positions


def _strided(positions: torch.Tensor, shape: tuple[int, int, int], name: str) -> Layout:
    """The layout whose element (token, head, channel) is at these positions."""
    grid = positions.view(shape)
    offset = int(grid[0, 0, 0])
    lines = [grid[:, 0, 0] - offset, grid[0, :, 0] - offset, grid[0, 0, :] - offset]
    sums = lines[0][:, None, None] + lines[1][None, :, None] + lines[2][None, None, :]
    if not torch.equal(sums + offset, grid):
        raise UnknownLayout(f"{name} mixes tokens, heads and channels")
    axes: list[tuple[int, int]] = []
    for line in lines:
        parts = strides_of(line.tolist())
        if not parts:
            raise UnknownLayout(f"{name} stores an axis without strides")
        axes += parts
    return Layout(offset, tuple(axes))


def strides_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Splits an axis into parts (size, stride), the outermost first. []: it has no strides."""
    if len(offsets) == 1:
        return [(1, 0)]
    step = offsets[1] - offsets[0]
    run = 1
    while run < len(offsets) and offsets[run] - offsets[0] == run * step:
        run += 1
    if run == len(offsets):
        return [(run, step)]
    if len(offsets) % run:
        return []
    for start in range(0, len(offsets), run):
        if any(offsets[start + i] - offsets[start] != i * step for i in range(run)):
            return []
    outer = strides_of(offsets[::run])
    return [*outer, (run, step)] if outer else []

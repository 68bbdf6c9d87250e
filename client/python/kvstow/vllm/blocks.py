"""Copies between the blocks of vLLM's cache and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from kvstow.vllm.layout import UnknownLayout, probe, split_alike

Slots: TypeAlias = torch.Tensor
"""Pages in memory: [slots, layers, 2, blocks, parts of tokens, heads and channels]."""


class Blocks:
    """The caches of all layers. A page is `[layers, 2, tokens, kv_heads, head_dim]`."""

    def __init__(
        self,
        layers: Mapping[str, Any],
        caches: Mapping[str, torch.Tensor],
        blocks: int,
        page_blocks: int,
        heads: int,
        head_dim: int,
    ) -> None:
        """Raises UnknownLayout. `caches` are in the order of layers; `blocks` is their number."""
        self._views: list[tuple[torch.Tensor, torch.Tensor]] = []
        name, first = next(iter(caches.items()))
        if first.shape[0] % blocks:
            raise UnknownLayout(f"{first.shape[0]} kernel blocks do not divide into {blocks}")
        self._parts = first.shape[0] // blocks  # kernel blocks in a block
        self._page_parts = page_blocks * self._parts
        k, v = split_alike(*probe(layers[name], first, heads, head_dim))
        self._sizes = k.sizes
        for name, cache in caches.items():
            if (cache.shape, cache.stride()) != (first.shape, first.stride()):
                raise UnknownLayout(f"the cache of {name} has another shape than that of layer 0")
            self._views.append((k.view(cache), v.view(cache)))
        self.on_host = first.device.type == "cpu"
        self._device = first.device

    def slots(self, pages: torch.Tensor) -> Slots:
        """Pages [slots, elements] with the axes that copies need."""
        axes = (len(self._views), 2, self._page_parts, *self._sizes)
        slots: Slots = pages.unflatten(1, axes)  # type: ignore[no-untyped-call]
        return slots

    def gather(self, pages: Sequence[Sequence[int]], slots: Slots, numbers: Sequence[int]) -> None:
        """Copies blocks into slots: pages[i] into slots[numbers[i]]."""
        parts = [[part for block in page for part in self._of(block)] for page in pages]
        if not self.on_host:
            self._gather_device(parts, slots, numbers)
            return
        into: list[torch.Tensor] = []
        source: list[torch.Tensor] = []
        for number, page in zip(numbers, parts):
            for layer, views in enumerate(self._views):
                for kind, view in enumerate(views):
                    slot = slots[number, layer, kind]
                    into += [slot[at] for at in range(len(page))]
                    source += [view[part] for part in page]
        _copy(into, source)

    def scatter(
        self, slots: Slots, numbers: Sequence[int], pages: Sequence[Sequence[int | None]]
    ) -> None:
        """Copies slots into blocks: slots[numbers[i]] into pages[i], not where a block is None."""
        into: list[torch.Tensor] = []
        source: list[torch.Tensor] = []
        for number, page in zip(numbers, pages):
            places = [
                (at, part)
                for i, block in enumerate(page)
                if block is not None
                for at, part in enumerate(self._of(block), i * self._parts)
            ]
            if not self.on_host:
                self._scatter_device(slots[number], places)
                continue
            for layer, views in enumerate(self._views):
                for kind, view in enumerate(views):
                    slot = slots[number, layer, kind]
                    into += [view[part] for _, part in places]
                    source += [slot[at] for at, _ in places]
        _copy(into, source)

    def synchronize(self) -> None:
        """Waits until what this thread copied is in the blocks."""
        if not self.on_host:
            torch.cuda.current_stream(self._device).synchronize()

    def _of(self, block: int) -> range:
        return range(block * self._parts, (block + 1) * self._parts)

    def _gather_device(
        self, pages: Sequence[Sequence[int]], slots: Slots, numbers: Sequence[int]
    ) -> None:
        # On the stream of the model: after the step's writes, before those of the next one.
        flat = [part for page in pages for part in page]
        index = torch.tensor(flat, dtype=torch.int64).to(self._device)
        shape = (len(pages), *slots.shape[1:])
        dense = torch.empty(shape, dtype=slots.dtype, device=self._device)
        for layer, views in enumerate(self._views):
            for kind, view in enumerate(views):
                dense[:, layer, kind] = view[index].unflatten(0, (len(pages), -1))  # type: ignore[no-untyped-call]
        for i, number in enumerate(numbers):
            slots[number].copy_(dense[i])

    def _scatter_device(self, slot: torch.Tensor, places: Sequence[tuple[int, int]]) -> None:
        index = torch.tensor([part for _, part in places], dtype=torch.int64).to(self._device)
        begin = places[0][0] if places else 0
        dense = slot.to(self._device)[:, :, begin : begin + len(places)]
        for layer, views in enumerate(self._views):
            for kind, view in enumerate(views):
                view[index] = dense[layer, kind]


def _copy(into: list[torch.Tensor], source: list[torch.Tensor]) -> None:
    """Copies all of them in one call of torch.

    Each call gives up the interpreter's lock. While requests wait for their loads, an engine in
    this process polls, and a thread that loads gets the lock back 5 ms later.
    """
    if into:
        torch._foreach_copy_(into, source)

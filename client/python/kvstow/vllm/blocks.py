"""Copies between the blocks of vLLM's cache and pages.

On a GPU no copy makes the engine's thread wait. Blocks become pages on the model's stream, within
the GPU. They go to the host, and come from it, on threads and streams of the connector's own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from kvstow.vllm.layout import UnknownLayout, probe, split_alike

Slots: TypeAlias = torch.Tensor
"""Pages in memory: [slots, layers, 2, blocks, parts of tokens, heads and channels]."""

_CHUNK_BYTES = 32 << 20  # of pages within the GPU, in one piece of its memory; or one page


def after_now(device: torch.device) -> Any:
    """An event behind all that the calling thread has given its GPU to do. None: the host."""
    if device.type == "cpu":
        return None
    stream: Any = torch.cuda.current_stream(device)
    return stream.record_event()


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
        self._of_thread = threading.local()

    def slots(self, pages: torch.Tensor) -> Slots:
        """Pages [slots, elements] with the axes that copies need."""
        axes = (len(self._views), 2, self._page_parts, *self._sizes)
        slots: Slots = pages.unflatten(1, axes)  # type: ignore[no-untyped-call]
        return slots

    def gather(
        self, pages: Sequence[Sequence[int]], slots: Slots, numbers: Sequence[int]
    ) -> Callable[[], None]:
        """Copies blocks into slots: pages[i] into slots[numbers[i]].

        Runs on the thread of the model. The model may then write the blocks again. The slots are
        filled once the function that is returned has run, on any thread. Raises
        torch.OutOfMemoryError where the GPU lacks the memory for these pages.
        """
        parts = [[part for block in page for part in self._of(block)] for page in pages]
        if not self.on_host:
            return self._gather_device(parts, slots, numbers)
        into: list[torch.Tensor] = []
        source: list[torch.Tensor] = []
        for number, page in zip(numbers, parts):
            for layer, views in enumerate(self._views):
                for kind, view in enumerate(views):
                    slot = slots[number, layer, kind]
                    into += [slot[at] for at in range(len(page))]
                    source += [view[part] for part in page]
        _copy(into, source)
        return lambda: None

    def scatter(
        self,
        slots: Slots,
        numbers: Sequence[int],
        pages: Sequence[Sequence[int | None]],
        after: Any = None,
    ) -> None:
        """Copies slots into blocks: slots[numbers[i]] into pages[i], not where a block is None.

        On a GPU it begins once the event `after` has passed. The blocks are filled when it returns.
        """
        if self.on_host:
            self._scatter(slots, numbers, pages)
            return
        with self._own_stream(after) as stream:
            self._scatter(slots, numbers, pages)
            stream.synchronize()

    def _scatter(
        self, slots: Slots, numbers: Sequence[int], pages: Sequence[Sequence[int | None]]
    ) -> None:
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

    def _of(self, block: int) -> range:
        return range(block * self._parts, (block + 1) * self._parts)

    @contextlib.contextmanager
    def _own_stream(self, after: Any) -> Iterator[Any]:
        """The calling thread's own stream, behind an event, for what torch starts in the scope."""
        if not hasattr(self._of_thread, "stream"):
            new_stream: Any = torch.cuda.Stream
            self._of_thread.stream = new_stream(self._device)
        stream = self._of_thread.stream
        if after is not None:
            stream.wait_event(after)
        with torch.cuda.stream(stream):
            yield stream

    def _index(self, parts: Sequence[int]) -> torch.Tensor:
        # From pageable memory the copy would wait for the stream.
        host = torch.tensor(parts, dtype=torch.int64).pin_memory()
        return host.to(self._device, non_blocking=True)

    def _gather_device(
        self, pages: Sequence[Sequence[int]], slots: Slots, numbers: Sequence[int]
    ) -> Callable[[], None]:
        # On the stream of the model: after the step's writes, before those of the next one.
        together = max(1, _CHUNK_BYTES // (slots[0].numel() * slots.element_size()))
        chunks: list[tuple[torch.Tensor, Sequence[int]]] = []
        for at in range(0, len(pages), together):
            some = pages[at : at + together]
            index = self._index([part for page in some for part in page])
            shape = (len(some), *slots.shape[1:])
            dense = torch.empty(shape, dtype=slots.dtype, device=self._device)
            for layer, views in enumerate(self._views):
                for kind, view in enumerate(views):
                    dense[:, layer, kind] = view[index].unflatten(0, (len(some), -1))  # type: ignore[no-untyped-call]
            chunks.append((dense, numbers[at : at + together]))
        after = after_now(self._device)

        def bring() -> None:
            with self._own_stream(after):
                while chunks:  # each goes back to the GPU's memory once it is copied
                    dense, some = chunks.pop()
                    for i, number in enumerate(some):
                        slots[number].copy_(dense[i])

        return bring

    def _scatter_device(self, slot: torch.Tensor, places: Sequence[tuple[int, int]]) -> None:
        index = self._index([part for _, part in places])
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

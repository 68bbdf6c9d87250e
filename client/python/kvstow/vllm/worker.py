"""The worker's half: pages out of vLLM's blocks to the server, and back.

Saves leave the blocks before the step ends: a copy into a buffer, from which a thread stores them.
So no block is held for a save, and a buffer that is full drops pages. On a GPU the copy stays in
the GPU's memory, and the thread brings it to the buffer. Loads run on threads of their own. A page
that does not come is reported by its blocks, and vLLM computes it.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig

from kvstow import _native
from kvstow.client import Client, Space
from kvstow.models import norms_keys
from kvstow.statistics import send_file
from kvstow.types import Bounds, GetResult, KvSpec, Page, PutResult
from kvstow.vllm.blocks import Blocks, Slots, after_now
from kvstow.vllm.identity import Identity
from kvstow.vllm.layout import UnknownLayout
from kvstow.vllm.messages import Load, LoadedPage, SavedPage, StepMetadata
from kvstow.vllm.settings import Settings
from kvstow.vllm.stats import Counters, Stats

_log = init_logger(__name__)
_ALIGNMENT = 4096  # of pages in shared memory
_LOADERS = 2
_BATCHES = 2  # of one load, on their way at a time
_SAVERS = 2
_KNOWN_KEYS = 1 << 18
_SECONDS_KNOWN = 60.0  # where nobody looks up what the server has
_SECONDS_TO_DRAIN = 5.0


class Buffer:
    """Memory for pages, which a server on this host reads and writes in place."""

    def __init__(self, client: Client, spec: KvSpec, pages: int, dtype: torch.dtype) -> None:
        page_bytes = spec.token_bytes * spec.page_tokens
        step = -(-page_bytes // _ALIGNMENT) * _ALIGNMENT
        self._bytes = client.buffer(step * pages)[: step * pages].reshape(pages, step)
        self.pages = torch.from_numpy(self._bytes)[:, :page_bytes].view(dtype)
        self._page_bytes = page_bytes

    def page(self, slot: int) -> Any:
        return self._bytes[slot, : self._page_bytes]


class KnownKeys:
    """Keys of pages that the server took lately. Thread-safe.

    seconds: after which a key is forgotten, as the server may have lost its page since.
    """

    def __init__(
        self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: collections.OrderedDict[bytes, float] = collections.OrderedDict()

    def add(self, key: bytes) -> bool:
        """False: it is known already."""
        now = self._clock()
        with self._lock:
            took = self._keys.get(key)
            if took is not None and now < took + self._seconds:
                self._keys.move_to_end(key)
                return False
            self._keys[key] = now
            self._keys.move_to_end(key)
            if len(self._keys) > _KNOWN_KEYS:
                self._keys.popitem(last=False)
            return True

    def discard(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._keys.pop(key, None)


@dataclasses.dataclass(slots=True)
class _Save:
    """Pages of a step on their way to the server. `fill` ends the copy into their slots."""

    pages: list[SavedPage]
    slots: list[int]
    fill: Callable[[], None]


@dataclasses.dataclass(slots=True)
class _Batch:
    """Pages of a load that are on their way into slots. call None: they do not come."""

    pages: Sequence[LoadedPage]
    slots: Sequence[int]
    call: _native.Call | None


class WorkerHalf:
    """The worker's half of the connector. Its public methods run on the worker's own thread."""

    def __init__(
        self, settings: Settings, identity: Identity, config: VllmConfig, cache: KVCacheConfig
    ) -> None:
        self._settings = settings
        rank = config.parallel_config.rank % identity.world_size
        self._rank = rank
        self._tensor_size = config.parallel_config.tensor_parallel_size
        self._name = identity.space(rank)
        self._spec = identity.kv_spec(config, cache, rank)
        self._normed_keys = norms_keys(config.model_config.hf_text_config)
        self._page_blocks = identity.page_blocks
        self._layers = list(cache.kv_cache_groups[0].layer_names)
        self._num_blocks = cache.num_blocks
        self._modules: Mapping[str, Any] = config.compilation_config.static_forward_context
        self._caches: dict[str, torch.Tensor] = {}
        self._device = torch.device("cpu")  # of the caches
        self._blocks: Blocks | None = None
        self._disabled = ""
        self._counters = Counters()
        self._known = KnownKeys(math.inf if settings.reads else _SECONDS_KNOWN)
        self._lock = threading.Lock()
        self._received: set[str] = set()
        self._invalid: set[int] = set()
        self._closing = threading.Event()
        self._opened = threading.Event()
        self._tried = threading.Event()  # opened, disabled, or closed
        self._client: Client
        self._space: Space | None = None
        self._save_buffer: Buffer
        self._load_buffer: Buffer
        self._batch_pages = 0
        # A load, its deadline, and the event behind earlier steps, which may still use its blocks.
        self._load_queue: queue.SimpleQueue[tuple[Load, float, Any] | None] = queue.SimpleQueue()
        self._save_queue: queue.Queue[_Save | None] = queue.Queue()
        self._free: collections.deque[int] = collections.deque()
        self._threads: list[threading.Thread] = []

    def register(self, caches: Mapping[str, torch.Tensor]) -> None:
        """Takes vLLM's cache and starts to reach for the server."""
        missing = [name for name in self._layers if name not in caches]
        if missing:
            self._disable(f"the engine gave no cache of layer {missing[0]}")
            return
        self._caches = {name: caches[name] for name in self._layers}
        self._device = caches[self._layers[0]].device
        shared = self._settings.max_pending_bytes + self._settings.max_loading_bytes
        self._client = Client(
            self._settings.address, timeout=self._settings.timeout, shared_bytes=shared + (1 << 20)
        )
        self._start(self._open)
        for number in range(_LOADERS if self._settings.reads else 0):
            self._start(self._run_loads, number)
        for _ in range(_SAVERS if self._settings.saves else 0):
            self._start(self._run_saves)
        # The engine is about to say that it is ready; its first prompts find the server there.
        self._tried.wait(self._settings.lookup_timeout)

    def _start(self, run: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=run, args=arguments, name="kvstow", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _disable(self, why: str) -> None:
        if not self._disabled:
            self._disabled = why
            _log.warning("kvstow caches nothing: %s", why)

    def _complain(self, what: str, error: Exception) -> None:
        if not self._closing.is_set():  # a closed client raises
            _log.error("kvstow: %s: %s: %s", what, type(error).__name__, error)

    def _open(self) -> None:
        try:
            self._open_space()
        finally:
            self._tried.set()

    def _open_space(self) -> None:
        """Opens the space and makes the buffers, once the server can be reached."""
        settings, spec = self._settings, self._spec
        page_bytes = spec.token_bytes * spec.page_tokens
        dtype = next(iter(self._caches.values())).dtype
        try:
            space = self._client.open_space(
                self._name,
                spec,
                recipe=settings.recipe,
                fidelity=settings.fidelity,
                normed_keys=self._normed_keys,
            )
            while not space.ready():
                if self._closing.wait(0.2):
                    return
            if space.fidelity.lower() == "sparse":
                self._disable(
                    f"recipe {space.recipe!r} leaves tokens out, which vLLM cannot mask; name a "
                    "dense one in kv_connector_extra_config"
                )
                return
            if settings.saves:
                count = max(1, settings.max_pending_bytes // page_bytes)
                self._save_buffer = Buffer(self._client, spec, count, dtype)
                self._free.extend(range(count))
            if settings.reads:
                groups = _LOADERS * _BATCHES
                self._batch_pages = max(1, settings.max_loading_bytes // page_bytes // groups)
                self._load_buffer = Buffer(self._client, spec, self._batch_pages * groups, dtype)
        except ValueError as error:
            if not self._closing.is_set():
                self._disable(str(error))
            return
        self._space = space
        self._opened.set()
        _log.info("kvstow: space %s, %s", self._name, space)
        self._tell_statistics(space)

    def _tell_statistics(self, space: Space) -> None:
        """Once the space is open; again after a save where the server did not answer then."""
        if not self._settings.statistics:
            return
        number = re.search(r"\d+", self._layers[0])  # "model.layers.12.self_attn.attn"
        why = send_file(
            space,
            self._settings.statistics,
            first_layer=int(number[0]) if number else 0,
            tensor_rank=self._rank % self._tensor_size,
            tensor_size=self._tensor_size,
        )
        if why:
            _log.warning("kvstow: %s", why)

    def _ready(self) -> Blocks | None:
        """The blocks, once the server is reached. Finds their layout at the first call."""
        if self._blocks is None and self._opened.is_set() and not self._disabled:
            try:
                self._blocks = Blocks(
                    self._modules,
                    self._caches,
                    self._num_blocks,
                    self._page_blocks,
                    self._spec.kv_heads,
                    self._spec.head_dim,
                )
            except UnknownLayout as error:
                self._disable(f"layout: {error}")
        return None if self._disabled else self._blocks

    # Saves.

    def save(self, metadata: StepMetadata) -> None:
        """Copies the complete pages of this step and leaves them to a thread."""
        if not metadata.saves or not self._settings.saves or self._disabled:
            return
        blocks = self._ready()
        if blocks is None:
            self._counters.add("dropped_pages", len(metadata.saves))
            return
        self._known.discard([page.key for page in metadata.saves if page.absent])
        new = [page for page in metadata.saves if self._known.add(page.key)]
        taken = min(len(new), len(self._free))
        slots = [self._free.popleft() for _ in range(taken)]
        if taken < len(new):
            self._counters.add("dropped_pages", len(new) - taken)
            self._known.discard([page.key for page in new[taken:]])
            new = new[:taken]
        if new:
            room = blocks.slots(self._save_buffer.pages)
            try:
                fill = blocks.gather([page.blocks for page in new], room, slots)
            except torch.OutOfMemoryError:  # the model needs it more; later steps find some again
                self._counters.add("dropped_pages", len(new))
                self._known.discard([page.key for page in new])
                self._free.extend(slots)
                return
            except Exception as error:  # a cache does not end the engine
                self._disable(f"blocks cannot be copied: {error}")
                return
            self._save_queue.put(_Save(new, slots, fill))

    def _run_saves(self) -> None:
        while (save := self._save_queue.get()) is not None:
            try:
                save.fill()
                self._put(save.pages, save.slots)
            except Exception as error:  # the thread serves later steps too
                self._known.discard([page.key for page in save.pages])
                self._complain("a save failed", error)
            finally:
                self._free.extend(save.slots)
                self._save_queue.task_done()
        self._save_queue.task_done()

    def _put(self, pages: Sequence[SavedPage], slots: Sequence[int]) -> None:
        assert self._space is not None
        call = self._space.start_put(
            [
                Page(page.key, self._save_buffer.page(slot), first_position=page.first_position)
                for page, slot in zip(pages, slots)
            ]
        )
        results: list[PutResult] = []
        if call is not None:
            call.wait()
            results = [PutResult(*result) for result in call.take_puts()]
        stored = {page.key for page, result in zip(pages, results) if result.stored}
        self._known.discard([page.key for page in pages if page.key not in stored])
        self._counters.add("saved_pages", len(stored))
        self._counters.add("saved_bytes", sum(r.stored_bytes for r in results if r.stored))
        self._counters.add("failed_pages", len(pages) - len(stored))
        if len(stored) < len(pages):
            why = next((r.message for r in results if not r.stored), "the server is not reached")
            _log.debug("kvstow: %d pages are not stored: %s", len(pages) - len(stored), why)
        if stored:
            self._tell_statistics(self._space)

    # Loads.

    def load(self, metadata: StepMetadata) -> None:
        """Leaves the loads of this step to the threads."""
        deadline = time.monotonic() + self._settings.timeout
        after = after_now(self._device) if metadata.loads else None
        for load in metadata.loads:
            if self._disabled or not self._threads:
                self._loaded(load, load.pages)
            else:
                self._load_queue.put((load, deadline, after))
        if self._blocks is None:
            self._ready()

    def _run_loads(self, number: int) -> None:
        late: list[_native.Call] = []  # of earlier loads: they may still write into the slots
        while (work := self._load_queue.get()) is not None:
            load, deadline, after = work
            missed = list(load.pages)
            try:
                missed = self._load(load, deadline, after, number, late)
            except Exception as error:  # the engine must hear of every load
                self._complain("a load failed", error)
            self._loaded(load, missed)

    def _loaded(self, load: Load, missed: Sequence[LoadedPage]) -> None:
        """The load has ended. The blocks of missed pages are to be computed."""
        blocks = {block for page in missed for block in page.blocks if block is not None}
        self._known.discard([page.key for page in missed])
        self._counters.add("loaded_pages", len(load.pages) - len(missed))
        self._counters.add("missed_pages", len(missed))
        with self._lock:
            self._invalid |= blocks
            self._received.add(load.request_id)

    def _load(
        self, load: Load, deadline: float, after: Any, number: int, late: list[_native.Call]
    ) -> list[LoadedPage]:
        """Fetches pages, some batches at a time. The pages that did not come by the deadline."""
        while late and late[-1].wait(max(0.0, deadline - time.monotonic())):
            late.pop()
        if late or not self._opened.wait(max(0.0, deadline - time.monotonic())):
            return list(load.pages)
        if time.monotonic() >= deadline:  # it waited behind others
            return list(load.pages)
        while (blocks := self._blocks) is None:  # the worker's thread finds the layout
            if self._disabled or time.monotonic() > deadline:
                return list(load.pages)
            time.sleep(0.001)
        slots = blocks.slots(self._load_buffer.pages)
        size = self._batch_pages
        waiting = collections.deque(
            load.pages[at : at + size] for at in range(0, len(load.pages), size)
        )
        room = collections.deque(
            range(first, first + size)
            for first in range(number * _BATCHES * size, (number + 1) * _BATCHES * size, size)
        )
        flying: collections.deque[_Batch] = collections.deque()
        missed: list[LoadedPage] = []
        try:
            while waiting or flying:
                while waiting and room and not missed:
                    flying.append(self._fetch(waiting.popleft(), room.popleft(), load))
                if not flying:
                    break
                batch = flying.popleft()
                missed += self._finish(batch, blocks, slots, deadline, after, late)
                room.append(range(batch.slots[0], batch.slots[0] + size))
        finally:  # where something was raised, some are on their way
            late += [batch.call for batch in flying if batch.call is not None]
        return missed + [page for pages in waiting for page in pages]

    def _fetch(self, pages: Sequence[LoadedPage], room: range, load: Load) -> _Batch:
        assert self._space is not None
        slots = list(room[: len(pages)])
        call = self._space.start_get(
            [page.key for page in pages],
            [self._load_buffer.page(slot) for slot in slots],
            load.leases[self._rank],
            Bounds(),
        )
        return _Batch(pages, slots, call)

    def _finish(
        self,
        batch: _Batch,
        blocks: Blocks,
        slots: Slots,
        deadline: float,
        after: Any,
        late: list[_native.Call],
    ) -> list[LoadedPage]:
        """Waits for a batch and fills the blocks. The pages that did not come."""
        if batch.call is None:
            return list(batch.pages)
        if not batch.call.wait(max(0.0, deadline - time.monotonic())):
            late.append(batch.call)
            return list(batch.pages)
        hits, missed = [], []
        for page, slot, result in zip(batch.pages, batch.slots, batch.call.take_gets()):
            got = GetResult(*result)
            whole = got.hit and got.tokens == self._spec.page_tokens and got.keep_bytes is None
            if whole:
                hits.append((page, slot))
                self._counters.add("loaded_bytes", got.stored_bytes)
            else:
                missed.append(page)
        places = [page.blocks for page, _ in hits]
        blocks.scatter(slots, [slot for _, slot in hits], places, after)
        return missed

    # Results.

    def finished(self) -> set[str]:
        with self._lock:
            received, self._received = self._received, set()
        return received

    def invalid(self) -> set[int]:
        with self._lock:
            blocks, self._invalid = self._invalid, set()
        return blocks

    def stats(self) -> Stats | None:
        return self._counters.take()

    def close(self) -> None:
        """Gives pending saves some seconds, then ends the threads."""
        if not self._threads:
            return
        end = time.monotonic() + min(self._settings.timeout, _SECONDS_TO_DRAIN)
        while self._save_queue.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.005)
        self._closing.set()
        for _ in self._threads:
            self._load_queue.put(None)
            self._save_queue.put(None)
        self._client.close()
        for thread in self._threads:
            thread.join(timeout=1.0)
        self._threads = []

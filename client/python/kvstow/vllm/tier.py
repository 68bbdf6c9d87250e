"""A secondary tier for vLLM's offloading connector: GPU, then this host's memory, then kvstow.

    vllm serve MODEL --kv-transfer-config '{
        "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10000000000,
            "secondary_tiers": [{"type": "KvstowTier", "module_path": "kvstow.vllm.tier",
                                 "address": "127.0.0.1:7380"}]}}'

A row of vLLM's host memory is a page. The tier is not told what the bytes of a row mean, so it
stores them losslessly. `head_dim` tells enough for recipes that quantise along a head's vector.

vLLM calls all methods on the scheduler's thread: they only queue work. A thread asks which pages
are there, once a step and request; others move rows. A server that is dead, slow or frozen is a
miss, and is left alone for some seconds.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager, LookupPhase
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from kvstow.client import Client, Space
from kvstow.quiet import Quiet
from kvstow.types import KvSpec, Page, Rope, trouble_of
from kvstow.vllm.identity import has_long_rope, revision_of
from kvstow.vllm.scheduler import page_key

__all__ = ["KvstowTier"]

_log = init_logger(__name__)
_ENGINE = "vllm-tier:1"  # how rows become pages; a change makes new spaces
_EXACT = ("raw", "lossless")
_BY_VECTOR = ("int8", "int4", "int8-token", "int4-token", "fp8")
_DTYPES = {"float16": 2, "bfloat16": 2, "float32": 4}
_BYTES = "float8_e4m3fn"  # the dtype of rows whose dtype kvstow does not know
_VECTOR = 64  # elements, where nobody says head_dim
_MAX_VECTORS = 4096  # KvSpec.page_tokens
_THREADS = 4  # that load, and as many that store
_GAPS = 16  # that a lookup passes in a group that is scanned from its end
_SECONDS_TO_DRAIN = 5.0  # at the end

Row: TypeAlias = npt.NDArray[np.uint8]
_Move: TypeAlias = Callable[[Sequence[OffloadKey], Sequence[Row]], list[OffloadKey]]

_METRICS = {
    "vllm:kvstow_tier_saved_bytes": "Bytes that kvstow keeps of chunks that were saved, encoded.",
    "vllm:kvstow_tier_loaded_bytes": "Bytes that kvstow keeps of chunks that were loaded, encoded.",
    "vllm:kvstow_tier_failed_chunks": "Chunks that could not be saved.",
    "vllm:kvstow_tier_missed_chunks": "Chunks that were found, and could not be loaded.",
}


class _Lookups(AsyncLookupManager):
    """Asks on a thread of its own which keys are there."""

    def __init__(self, tier: str, find: Callable[[list[OffloadKey], ReqContext], list[bool]]):
        self._find = find
        super().__init__(tier)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> list[bool]:
        return self._find(keys, req_context)

    def mark_miss(self, keys: Collection[OffloadKey]) -> None:
        """Not of keys whose answer is on its way: vLLM asserts that no other came before it."""
        known = [(key, self._lookup_state.get(key)) for key in keys]
        resolved = [key for key, state in known if state and state.phase is LookupPhase.RESOLVED]
        super().mark_miss(resolved)


class KvstowTier(SecondaryTierManager):
    """Keeps rows of vLLM's host memory in kvstow.

    address: HOST:PORT or unix:PATH of the server, or several with commas, as kvstow.Client takes.
    recipe: "lossless" or "raw"; with head_dim also "int8", "int4", "int8-token", "int4-token" or
        "fp8", with arguments.
    head_dim: elements of a head's K or V vector, which lie together in vLLM's layouts; 0 = untold.
    space: the first part of the name of the tier's space.
    revision: of the weights; "" = a digest of a local model's files, or the commit of a hub's model
        where this host has one only.
    timeout: seconds that a job may take, and that it may wait before.
    lookup_timeout: seconds that requests wait to learn what the server holds.
    locality: of the server, for KV events and for requests that filter tiers.
    enable_kv_events: whether stored chunks are published, where vLLM publishes events.
    """

    medium: ClassVar[Medium | None] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        *,
        address: str = "127.0.0.1:7380",
        recipe: str = "lossless",
        head_dim: int = 0,
        space: str = "vllm-tier",
        revision: str = "",
        timeout: float = 10.0,
        lookup_timeout: float = 1.0,
        locality: str | None = None,
        enable_kv_events: bool = False,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = None if locality is None else Locality(locality)
        for option, seconds in (("timeout", timeout), ("lookup_timeout", lookup_timeout)):
            if not seconds > 0:
                raise ValueError(f"{option}: {seconds!r} must be more than 0")
        if not 1 <= len(space) <= 40:
            raise ValueError(f"space: {space!r} must have 1 to 40 characters")
        self._row_bytes = self.block_size_bytes
        self._page_bytes = page_bytes(offloading_spec, self._row_bytes, recipe, head_dim)
        name, spec = identity(offloading_spec, self._page_bytes, recipe, head_dim, space, revision)
        self._timeout = timeout
        self._events: list[OffloadingEvent] | None = None
        if enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events:
            self._events = []
        elif enable_kv_events:
            _log.warning("kvstow: enable_kv_events: vLLM publishes no KV events, nor does the tier")
        exact = recipe in _EXACT
        index = Client(address, timeout=lookup_timeout, shared_bytes=0, direct_connections=0)
        pages = Client(address, timeout=timeout, shared_bytes=0)
        # A space opens at its first call, on a thread.
        self._index, self._pages = (
            Space(
                client,
                name,
                spec,
                recipe=recipe,
                fidelity="exact" if exact else "dense",
                private=None,
                payload=None,
                queries=b"",
                normed_keys=False,  # no recipe of a tier goes by it
            )
            for client in (index, pages)
        )
        self._exact = exact
        self._quiet = Quiet()
        self._disabled = False
        self._closing = False
        self._counts: dict[str, int] = {}
        self._counting = threading.Lock()
        self._ended: queue.SimpleQueue[tuple[TransferJob, bool, list[OffloadKey], float]]
        self._ended = queue.SimpleQueue()
        self._jobs: set[concurrent.futures.Future[None]] = set()
        self._loaders, self._savers = (
            concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix=f"kvstow_{name}")
            for name in ("load", "save")
        )
        self._lookups = _Lookups(tier_type, self._found)

    # Lookups.

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """RETRY until a thread has asked; the keys of a step are asked together."""
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._lookups.flush()

    def _found(self, keys: list[OffloadKey], context: ReqContext) -> list[bool]:
        """Asks which keys are there, on the thread of lookups.

        vLLM scans the keys of a group from the first on, or a sliding window's from its end. Of the
        former only leading hits matter, of the latter only those that do not lie beyond them.
        """
        groups: dict[bytes, list[OffloadKey]] = {}
        for key in keys:
            groups.setdefault(key[-4:], []).append(key)
        there: set[OffloadKey] = set()
        end: float = math.inf
        try:
            for group in groups.values():
                places = [context.get_offload_key_position(key) or 0 for key in group]
                if places == sorted(places):
                    hits = self._leading(group)
                    there.update(group[:hits])
                    end = min(end, places[hits - 1] if hits else 0)
                else:
                    near = [key for key, place in zip(group, places) if place <= end]
                    there.update(self._scattered(near))
        except Exception as error:  # the engine must go on
            self._complain("a lookup failed", error)
        return [key in there for key in keys]

    def _leading(self, keys: Sequence[OffloadKey]) -> int:
        if self._left_alone():
            return 0
        hit = self._index.lookup([page_key(key) for key in keys], lease=False)
        if hit.message:
            self._leave_alone(hit.message)
        return hit.pages

    def _scattered(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        there: list[OffloadKey] = []
        at = 0
        for _ in range(_GAPS):
            if at >= len(keys):
                break
            hits = self._leading(keys[at:])
            there += keys[at : at + hits]
            at += hits + 1
        return there

    # Jobs.

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(self._savers, job_metadata, False, self._store)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(self._loaders, job_metadata, True, self._load)

    def _submit(
        self,
        threads: concurrent.futures.ThreadPoolExecutor,
        job: TransferJob,
        loads: bool,
        move: _Move,
    ) -> None:
        self._jobs.add(threads.submit(self._run, job, loads, move))

    def _run(self, job: TransferJob, loads: bool, move: _Move) -> None:
        began = time.monotonic()
        keys = list(job.keys)
        done: list[OffloadKey] = []
        try:
            if began < job.submit_time + self._timeout and not self._left_alone():
                rows = np.asarray(self._primary_kv_view).view(np.uint8)
                done = move(keys, [rows[number][: self._page_bytes] for number in job.chunk_ids])
        except Exception as error:  # vLLM must hear of the end of every job
            self._complain("a load failed" if loads else "a save failed", error)
        missing = len(keys) - len(done)
        self._count("missed_chunks" if loads else "failed_chunks", missing)
        self._ended.put((job, loads, done, time.monotonic() - began))

    def _store(self, keys: Sequence[OffloadKey], rows: Sequence[Row]) -> list[OffloadKey]:
        first = self._leading(keys)  # these are there already
        if self._left_alone():
            return []
        pages = [Page(page_key(key), row) for key, row in zip(keys[first:], rows[first:])]
        results = self._pages.put(pages)
        self._look_for_trouble(results)
        self._count("saved_bytes", sum(result.stored_bytes for result in results if result.stored))
        stored = [key for key, result in zip(keys[first:], results) if result.stored]
        return [*keys[:first], *stored]

    def _load(self, keys: Sequence[OffloadKey], rows: Sequence[Row]) -> list[OffloadKey]:
        results = self._pages.get([page_key(key) for key in keys], rows)
        self._look_for_trouble(results)
        loaded = []
        for key, result in zip(keys, results):
            whole = result.hit and result.page_bytes == self._page_bytes
            if whole and result.keep_bytes is None and (result.exact or not self._exact):
                loaded.append(key)
                self._count("loaded_bytes", result.stored_bytes)
        return loaded

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._jobs = {job for job in self._jobs if not job.done()}
        results: list[JobResult] = []
        while True:
            try:
                job, loads, done, seconds = self._ended.get_nowait()
            except queue.Empty:
                return results
            whole = len(done) == len(job.keys)
            if loads and not whole:  # the request computes the others, and asks no more for them
                self._lookups.mark_miss(set(job.keys).difference(done))
            if not loads and done and self._events is not None:
                self._events.append(OffloadingEvent(done, Medium.STORAGE, False, self.locality))
            results.append(
                JobResult(
                    job_id=job.job_id,
                    success=whole,
                    successful_keys=tuple(done) if loads and done and not whole else None,
                    transfer_time=seconds,
                    transfer_bytes=len(done) * self._row_bytes,
                )
            )

    def drain_jobs(self) -> None:
        """Waits for all jobs. Each ends within two timeouts."""
        concurrent.futures.wait(self._jobs)

    # Trouble.

    def _left_alone(self) -> bool:
        return self._disabled or bool(self._quiet)

    def _leave_alone(self, why: str) -> None:
        if not self._left_alone() and not self._closing:
            _log.warning(
                "kvstow: %s: %s; the tier is left alone for %.0f s",
                self._pages.client.address,
                why,
                Quiet.seconds,
            )
        self._quiet.begin()

    def _look_for_trouble(self, results: Collection[Any]) -> None:
        if why := trouble_of(results):
            self._leave_alone(why)

    def _complain(self, what: str, error: Exception) -> None:
        if self._closing:  # a closed client raises
            return
        _log.error("kvstow: %s: %s: %s", what, type(error).__name__, error)
        if isinstance(error, ValueError):  # the server refuses the space
            self._disabled = True

    # Events and metrics.

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._events is None:
            return ()
        events, self._events = self._events, []
        return events

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        return {
            name: OffloadingCounterMetadata(documentation=says, labelnames=("tier",))
            for name, says in _METRICS.items()
        }

    def get_stats(self) -> OffloadingConnectorStats | None:
        with self._counting:
            counts, self._counts = self._counts, {}
        if not counts:
            return None
        stats = OffloadingConnectorStats()
        for name, count in counts.items():
            stats.increase_counter(f"vllm:kvstow_tier_{name}", count, (self.tier_type,))
        return stats

    def _count(self, name: str, count: int) -> None:
        if count:
            with self._counting:
                self._counts[name] = self._counts.get(name, 0) + count

    def shutdown(self) -> None:
        """Gives jobs some seconds, then ends them. No row is touched afterwards."""
        concurrent.futures.wait(self._jobs, timeout=min(self._timeout, _SECONDS_TO_DRAIN))
        self._closing = True
        self._index.client.close()
        self._pages.client.close()
        self._lookups.shutdown()
        for threads in (self._loaders, self._savers):
            threads.shutdown()


# The rows that fit an engine.


def page_bytes(spec: OffloadingSpec, row_bytes: int, recipe: str, head_dim: int) -> int:
    """How much of a row a page holds. Raises ValueError where the recipe does not fit the rows."""
    method = recipe.split("(")[0]
    if recipe in _EXACT:
        return row_bytes
    if method not in _BY_VECTOR:
        raise ValueError(
            f"recipe: {recipe!r} needs to know layers, heads and tokens, which vLLM does not tell "
            f"a tier; choose one of {', '.join(_EXACT + _BY_VECTOR)}, or use KvstowConnector"
        )
    if head_dim < 1:
        raise ValueError(f"head_dim: {recipe!r} needs it: the elements of a head's K or V vector")
    config = spec.config
    if len(config.groups) > 1 or config.model.dtype not in _DTYPES:
        raise ValueError(
            f"recipe: {recipe!r} does not fit rows of {len(config.groups)} KV cache groups and "
            f"dtype {config.model.dtype}; choose one of {', '.join(_EXACT)}"
        )
    copies = 1 if spec.replicated_layout else config.parallel.world_size
    part = config.worker_kv_bytes_per_block
    if part < 1 or part % (head_dim * _DTYPES[config.model.dtype]):
        raise ValueError(f"head_dim: {head_dim} does not divide blocks of {part} bytes of a worker")
    return part * spec.blocks_per_chunk * copies


def identity(
    spec: OffloadingSpec, size: int, recipe: str, head_dim: int, space: str, revision: str
) -> tuple[str, KvSpec]:
    """The name and the KvSpec of the space of these rows. Raises ValueError.

    vLLM's own file tier says what makes rows differ; revision and recipe come on top.
    """
    fields = FileMapper.from_offloading_spec(
        "", spec, blocks_per_file=spec.blocks_per_chunk, parallel_agnostic=True
    ).get_run_config()
    path = Path(spec.config.model.name)
    model = path.resolve().name if path.exists() else spec.config.model.name
    revision = revision or revision_of(spec.config.model.name)
    if not revision:
        raise ValueError(
            f"revision: vLLM does not tell a tier which revision of {model} it serves; name it"
        )
    if has_long_rope(spec.config.model.name):
        raise ValueError(
            f"{model} has LongRoPE: --max-model-len changes its K, and vLLM does not tell a tier "
            "what that is; use KvstowConnector"
        )
    parts = fields | {
        "engine": _ENGINE,
        "model_name": model,
        "revision": revision,
        "recipe": recipe,
        "head_dim": head_dim,
        "page_bytes": size,
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    short = re.sub(r"[^A-Za-z0-9._-]", "-", model)[-40:]
    known = spec.config.model.dtype in _DTYPES
    dtype = cast(Literal["float16"], spec.config.model.dtype if known else _BYTES)
    elements = size // (_DTYPES[spec.config.model.dtype] if known else 1)
    width = head_dim or math.gcd(elements, _VECTOR)
    vectors, rest = divmod(elements, width)
    tokens = max((n for n in range(1, _MAX_VECTORS + 1) if vectors % n == 0), default=1)
    pages = KvSpec(
        model=model,
        revision=revision,
        layers=1,
        kv_heads=vectors // tokens,
        head_dim=width,
        head_dim_v=0,
        dtype=dtype,
        page_tokens=tokens,
        rope=Rope(layout="none"),
        engine=_ENGINE,
    )
    if rest or not vectors:
        raise ValueError(f"head_dim: {head_dim} does not divide rows of {size} bytes")
    pages.native()  # raises where a row is too large
    return f"{space}/{short}/{digest[:16]}", pages

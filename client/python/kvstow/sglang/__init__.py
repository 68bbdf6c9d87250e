"""Level 3 of SGLang's HiCache: its pages in kvstowd, compressed and shared by engines.

    sglang serve --model-path MODEL --enable-hierarchical-cache --page-size 64
        --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
            "backend_name": "kvstow", "module_path": "kvstow.sglang",
            "class_name": "KvstowStorage", "address": "127.0.0.1:7380"}'

SGLang's threads call the methods of KvstowStorage and wait for them. A server that is dead, slow or
frozen is a miss, within the timeouts, and nothing raises on these threads. What is wrong in the
options, or a model's space that is another's, is a ValueError when SGLang starts or attaches the
backend. `Settings` (kvstow.sglang.settings) describes the options.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kvstow.versions import check_version

check_version("sglang")  # names one that lacks what is imported here

import numpy as np
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult

from kvstow.models import norms_keys
from kvstow.sglang.identity import Model, space_of
from kvstow.sglang.pools import PageFormat, address_of, format_of
from kvstow.sglang.settings import EXACT_RECIPES, Settings
from kvstow.sglang.store import Link, PoolStore, Staging, page_key
from kvstow.statistics import send_file

__all__ = ["KvstowStorage", "Settings"]

_log = logging.getLogger(__name__)
_KV = "kv"
_Answer = TypeVar("_Answer")


class KvstowStorage(HiCacheStorage):
    """A storage backend as SGLang's `dynamic` wants it. Thread-safe.

    counts: pages loaded, missed, saved and not_saved, and what went wrong, since the start.
    """

    def __init__(self, storage_config: Any, kwargs: dict[str, Any] | None = None) -> None:
        options = storage_config.extra_config or {}
        self._settings = Settings.of(options)
        self._config = storage_config
        self._model = Model.of(self._settings, storage_config)
        if not self._model.revision:
            _log.warning(
                "kvstow caches nothing: %s has no files of weights and no commit here, so other "
                "weights could not be told from these; name a 'revision' in "
                "--hicache-storage-backend-extra-config",
                self._model.name,
            )
        # SGLang reads this next: it then gives the memory of pages, not copies of them.
        options.setdefault("interface_v1", 1)
        self._link = Link(self._settings)
        self._loads = Staging(self._link, self._settings.buffer_bytes)
        self._saves = Staging(self._link, self._settings.buffer_bytes)
        self._pools: dict[str, Any] = {}
        self._stores: dict[str, PoolStore] = {}
        self._metrics: dict[str, list[Any]] = {}
        self.counts = self._link.counts

    # What SGLang tells.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The pool of the methods without v2. Raises ValueError for recipes that do not fit it."""
        super().register_mem_pool_host(mem_pool_host)
        self._register(_KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(_name(host_pool_name), host_pool)

    def _register(self, name: str, pool: Any) -> None:
        if self._pools.get(name) is pool or not self._model.revision:
            return
        pages = format_of(pool)
        recipe = self._recipe(name, pool, pages)
        fidelity = self._settings.fidelity if pages.known else "exact"
        space, spec = space_of(
            self._settings, self._model, self._config, name, pool, pages, recipe
        )
        self._stores[name] = PoolStore(
            self._link,
            space,
            spec,
            pages,
            recipe,
            fidelity,
            norms_keys(self._model.hf),
            self._loads,
            self._saves,
            functools.partial(
                send_file,
                path=self._settings.statistics if pages.known else "",
                first_layer=getattr(pool, "start_layer", 0),
                tensor_rank=self._config.tp_rank,
                tensor_size=self._config.tp_size,
            ),
        )
        self._pools[name] = pool
        _log.info("kvstow: pool %s, pages of %d bytes, in %s", name, pages.data_bytes, space)

    def _recipe(self, name: str, pool: Any, pages: PageFormat) -> str:
        """The recipe for a pool. Only exact ones fit a pool whose bytes kvstow does not know."""
        recipe = self._settings.recipe
        if pages.known:
            rope = getattr(pool, "qk_rope_head_dim", 0)
            return recipe or (f"mla8(rope={rope})" if rope and not pages.head_dim_v else "")
        if recipe in EXACT_RECIPES:
            return recipe
        if recipe and name == _KV:
            raise ValueError(
                f"recipe: {recipe!r} is not exact, and kvstow does not know what {pages.layout} "
                f"(pool, layout, dtype, bytes) holds; use one of {', '.join(EXACT_RECIPES)}"
            )
        return "lossless"

    # Interface v1: pages of the pool of K and V, by their memory.

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many of the leading pages are stored."""
        return self._answer(0, lambda: self._stores[_KV].leading(_keys(keys)))

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        return self._answer([False] * len(keys), lambda: self._load(_KV, keys, host_indices))

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        return self._answer([False] * len(keys), lambda: self._save(_KV, keys, host_indices))

    # Interface v2: several pools, for hybrid models.

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> PoolTransferResult:
        """The lengths of prefix of which every pool has what its policy asks for."""
        return self._answer(
            PoolTransferResult.empty(), lambda: self._exists_v2(keys, pool_transfers or [])
        )

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        return {t.name: self._transfer(t, self._load) for t in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[Any, list[bool]]:
        return {t.name: self._transfer(t, self._save) for t in transfers}

    def _transfer(self, transfer: Any, run: Callable[..., list[bool]]) -> list[bool]:
        keys = transfer.keys or []
        name, indices = _name(transfer.name), transfer.host_indices
        return self._answer([False] * len(keys), lambda: run(name, keys, indices))

    def _exists_v2(self, keys: list[str], transfers: Sequence[Any]) -> PoolTransferResult:
        names = _keys(keys)
        kv_pages = self._stores[_KV].leading(names)
        found: dict[Any, int] = {_KV: kv_pages} if kv_pages else {}
        restorable = list(range(1, kv_pages + 1))
        deadline = time.monotonic() + self._settings.lookup_timeout
        for transfer in transfers:
            policy = _name(transfer.hit_policy)
            if not restorable or policy == "block_groups":  # a second form: it decides nothing
                continue
            store = self._stores[_name(transfer.name)]
            if policy == "all_pages":
                lengths = set(range(1, store.leading(names[:kv_pages]) + 1))
            elif policy == "trailing_pages":
                there = store.present(names[:kv_pages], deadline)
                lengths = _ending_in(there, max(1, len(transfer.keys or ())))
            else:
                lengths = set()
            if lengths:
                found[transfer.name] = max(lengths)
            restorable = [pages for pages in restorable if pages in lengths]
        return PoolTransferResult(restorable[-1] if restorable else 0, found, restorable)

    # The older interface: flat copies of pages ("interface_v1": 0).

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        """The tensors that were filled; None for pages that are not there."""
        good = self._answer(
            [False] * len(keys),
            lambda: self._timed("load", _KV, keys, target_locations or [], self._deadline()),
        )
        return [tensor if ok else None for ok, tensor in zip(good, target_locations or good)]

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        return self.batch_set([key], None if value is None else [value])

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Whether all of them are stored now."""
        good = self._answer(
            [False] * len(keys),
            lambda: self._timed("save", _KV, keys, values or [], self._deadline()),
        )
        return all(good)

    # The rest.

    def clear(self) -> None:
        """Forgets the pages of this rank's pools, for every engine that shares them.

        Raises RuntimeError where the server did not answer. SGLang writes that to its log, and
        answers its own caller that all went well. This engine loads and saves nothing until the
        server has forgotten them: each call asks it to, first.
        """
        failed = [self._answer("an error", store.forget) for store in self._stores.values()]
        why = next(filter(None, failed), "")
        if why:
            raise RuntimeError(
                f"kvstow: old pages may still be stored, and other engines may load them; clear "
                f"again once the server answers: {why}"
            )

    def get_stats(self) -> Any:
        """Counts for SGLang's metrics, since the last time."""
        try:
            from sglang.srt.observability.metrics_collector import StorageMetrics
        except ImportError:
            return None
        metrics, self._metrics = self._metrics, {}
        return StorageMetrics(**metrics)

    def close(self) -> None:
        """Ends open calls. Calls after it are misses."""
        self._link.close()

    # Pages of a pool.

    def _load(self, name: str, keys: list[str], host_indices: Any) -> list[bool]:
        pool, pages = self._pools[name], self._stores[name].pages
        indices = _page_indices(pool, keys, host_indices)
        deadline = self._deadline()
        if pages.known:
            return self._timed("load", name, keys, host_indices, deadline)
        good: list[bool] = []
        step = max(1, self._settings.buffer_bytes // pages.page_bytes)
        for first in range(0, len(keys), step):
            some = keys[first : first + step]
            rooms = [pool.get_dummy_flat_data_page() for _ in some]
            good += self._timed("load", name, some, rooms, deadline)
            for ok, index, room in zip(good[first:], indices[first:], rooms):
                if ok:
                    pool.set_from_flat_data_page(index, room)
            if not all(good):
                break
        return good + [False] * (len(keys) - len(good))

    def _save(self, name: str, keys: list[str], host_indices: Any) -> list[bool]:
        pool, pages = self._pools[name], self._stores[name].pages
        indices = _page_indices(pool, keys, host_indices)
        deadline = self._deadline()
        if pages.known:
            return self._timed("save", name, keys, host_indices, deadline)
        good: list[bool] = []
        step = max(1, self._settings.buffer_bytes // pages.page_bytes)
        for first in range(0, len(keys), step):
            if time.monotonic() >= deadline:
                break
            values = [pool.get_data_page(index) for index in indices[first : first + step]]
            good += self._timed("save", name, keys[first : first + step], values, deadline)
        return good + [False] * (len(keys) - len(good))

    def _deadline(self) -> float:
        """When a load or a save that begins now begins no more transfers."""
        return time.monotonic() + self._settings.timeout

    def _timed(
        self, what: str, name: str, keys: list[str], where: Any, deadline: float
    ) -> list[bool]:
        """Loads or saves; `where` is the indices of a pool, or one flat tensor for each key."""
        if not keys:
            return []
        store = self._stores[name]
        began = time.perf_counter()
        addresses = self._addresses(name, keys, where)
        run = store.load if what == "load" else store.save
        good = run(_keys(keys), addresses, deadline)
        if self._config.enable_storage_metrics:
            seconds, pages = time.perf_counter() - began, sum(good)
            kind = "prefetch" if what == "load" else "backup"
            self._metrics.setdefault(f"{kind}_pgs", []).append(pages)
            self._metrics.setdefault(f"{kind}_bandwidth", []).append(
                pages * store.pages.data_bytes / seconds / 1e9
            )
        return good

    def _addresses(self, name: str, keys: list[str], where: Any) -> Any:
        """Finds the pieces of pages. Raises ValueError where memory is not what a page needs."""
        pages = self._stores[name].pages
        if isinstance(where, list):
            if len(where) != len(keys):
                raise ValueError(f"tensors: {len(where)} for {len(keys)} keys")
            places = [address_of(tensor, pages.data_bytes) for tensor in where]
            return np.array(places, np.int64)[:, None] + pages.flat_offsets()
        pointers, sizes = self._pools[name].get_page_buffer_meta(where)
        if list(sizes) != pages.piece_sizes() * len(keys):
            raise ValueError(f"pool {name}: gives pieces of other sizes than it did before")
        return np.array(pointers, np.int64).reshape(len(keys), -1)

    def _answer(self, miss: _Answer, run: Callable[[], _Answer]) -> _Answer:
        """Returns the result of `run`; a miss where it raises, which must not end SGLang's threads."""
        if not self._model.revision:
            return miss
        try:
            return run()
        except Exception as error:
            self.counts["errors"] += 1
            _log.warning("kvstow: a miss: %s: %s", type(error).__name__, error)
            return miss


def _name(name: Any) -> str:
    """The text of one of SGLang's names, which are enumerations of text."""
    return str(getattr(name, "value", name))


def _keys(keys: Sequence[str]) -> list[bytes]:
    return [page_key(key) for key in keys]


def _page_indices(pool: Any, keys: Sequence[str], host_indices: Any) -> list[int]:
    """The first index of each page."""
    indices: list[int] = [] if host_indices is None else host_indices.tolist()
    if len(indices) != len(keys) * pool.page_size:
        raise ValueError(
            f"host_indices: {len(indices)} for {len(keys)} pages of {pool.page_size} tokens"
        )
    return indices[:: pool.page_size]


def _ending_in(there: Sequence[bool], trailing: int) -> set[int]:
    """The lengths of prefix whose last `trailing` pages, or all pages before, are there."""
    lengths, run = set(), 0
    for length, found in enumerate(there, 1):
        run = run + 1 if found else 0
        if run >= min(trailing, length):
            lengths.add(length)
    return lengths

"""Counters that vLLM logs, sums over workers and serves to Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

NAMES: Mapping[str, str] = {
    "loaded_pages": "Pages that came from kvstow into blocks.",
    "missed_pages": "Pages that kvstow had and that did not come: vLLM computes them.",
    "loaded_bytes": "Bytes that kvstow keeps of the pages that came, encoded.",
    "saved_pages": "Pages that kvstow took.",
    "saved_bytes": "Bytes that kvstow keeps of the pages that it took, encoded.",
    "dropped_pages": "Pages that were not sent, because too many waited.",
    "failed_pages": "Pages that kvstow did not take.",
}


class Stats(KVConnectorStats):
    """Counts of what happened to pages since the last time."""

    def reset(self) -> None:
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, count in other.data.items():
            self.data[name] = self.data.get(name, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"kvstow_{name}": self.data.get(name, 0) for name in NAMES}

    def is_empty(self) -> bool:
        return not any(self.data.values())


class PromMetrics(KVConnectorPromMetrics):
    """The counters as vllm:kvstow_NAME_total, with the labels of vLLM's own metrics."""

    def __init__(
        self,
        config: VllmConfig,
        types: Any,
        labels: list[str],
        engines: dict[int, list[object]],
    ) -> None:
        super().__init__(config, types, labels, engines)
        self._counters: dict[int, dict[str, Any]] = {engine: {} for engine in engines}
        for name, says in NAMES.items():
            counter = types[Counter](
                name=f"vllm:kvstow_{name}", documentation=says, labelnames=labels
            )
            for engine, values in engines.items():
                self._counters[engine][name] = counter.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, count in transfer_stats_data.items():
            self._counters[engine_idx][name].inc(count)


class Counters:
    """Counts since the last `take`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Any] = {}

    def add(self, name: str, count: int) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count

    def take(self) -> Stats | None:
        with self._lock:
            counts, self._counts = self._counts, {}
        return Stats(data=counts) if counts else None

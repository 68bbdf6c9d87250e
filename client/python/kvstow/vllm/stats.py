"""Counters that vLLM logs and sums over workers."""

from __future__ import annotations

import threading
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

NAMES = (
    "loaded_pages",
    "missed_pages",
    "loaded_bytes",
    "saved_pages",
    "saved_bytes",
    "dropped_pages",
    "failed_pages",
)


class Stats(KVConnectorStats):
    """Pages that were loaded, missed, saved, dropped (too many pending) or failed to be saved."""

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

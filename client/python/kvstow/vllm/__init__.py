"""A connector for vLLM: prefixes that any engine computed come from kvstow, not from the GPU.

    vllm serve MODEL --kv-transfer-config '{
        "kv_connector": "KvstowConnector", "kv_connector_module_path": "kvstow.vllm",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"address": "127.0.0.1:7380", "recipe": "int8"}}'

The scheduler looks prompts up and loads what the server has while other requests run. Pages that
the engine completes, of prompts and of answers, go to the server in the background. A server that
is dead, slow or frozen costs a request `lookup_timeout` before a load or `timeout` in one, and the
request is then computed. `Settings` (kvstow.vllm.settings) describes the options.

Models with one group of full attention are cached, each rank of a tensor or pipeline parallel
engine in a space of its own. For others, and for weights that it cannot tell from others, the
connector says why and caches nothing.
"""

from __future__ import annotations

from typing import Any

from kvstow.versions import check_version

check_version("vllm")  # names one that lacks what is imported here

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig

from kvstow.vllm.identity import Identity, unsupported, unversioned
from kvstow.vllm.messages import StepMetadata
from kvstow.vllm.scheduler import SchedulerHalf
from kvstow.vllm.settings import Settings
from kvstow.vllm.stats import PromMetrics, Stats
from kvstow.vllm.worker import WorkerHalf

__all__ = ["KvstowConnector", "Settings"]

_log = init_logger(__name__)


class KvstowConnector(KVConnectorBase_V1, SupportsHMA):
    """Loads and saves the KV cache of prefixes. vLLM makes one for each role."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = self._kv_transfer_config
        settings = Settings.of(transfer.kv_connector_extra_config).with_role(
            reads=transfer.is_kv_consumer, saves=transfer.is_kv_producer
        )
        if settings.reads and transfer.kv_load_failure_policy != "recompute":
            raise ValueError(
                f"kv_load_failure_policy: {transfer.kv_load_failure_policy!r} would fail requests "
                "whose pages are lost; set it to 'recompute' in --kv-transfer-config"
            )
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        why = unsupported(vllm_config, kv_cache_config) or unversioned(settings, vllm_config)
        if why:
            if role == KVConnectorRole.SCHEDULER:
                _log.warning("kvstow caches nothing: %s", why)
            return
        identity = Identity.of(settings, vllm_config, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            hash_tokens = kv_cache_config.hash_block_size or identity.block_tokens
            self._scheduler = SchedulerHalf(settings, identity, hash_tokens)
        else:
            self._worker = WorkerHalf(settings, identity, vllm_config, kv_cache_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a page that is not saved is computed again."""
        return False

    # The scheduler's side.

    def on_new_request(self, request: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if self._scheduler is None:
            return 0, False
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None:
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        if self._scheduler is None:
            return StepMetadata()
        return self._scheduler.build(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.update(connector_output)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Blocks are free at once: saves have copied them already."""
        if self._scheduler is not None:
            self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    def reset_cache(self) -> bool:
        """Forgets all pages, as after new weights: other engines keep them."""
        if self._scheduler is not None:
            self._scheduler.reset()
        return True

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self._worker is not None:
            self._worker.register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.load(self._step())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: loads end between steps."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: wait_for_save saves whole pages."""

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.save(self._step())

    def get_finished(
        self, finished_req_ids: set[str]
    ) -> tuple[set[str] | None, set[str] | None]:
        return None, self._worker.finished() if self._worker is not None else None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.invalid() if self._worker is not None else set()

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        return self._worker.stats() if self._worker is not None else None

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, Any] | None = None
    ) -> KVConnectorStats | None:
        return Stats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> PromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()

    def _step(self) -> StepMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        return metadata

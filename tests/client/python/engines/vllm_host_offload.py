"""vLLM's tiering without a GPU: a plain copy stands in for the copies between GPU and host."""

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostWorker(OffloadingWorker):
    """Copies between the engine's blocks and the rows that vLLM's managers hand out."""

    def __init__(self, caches, spec):
        self.region = SharedOffloadRegion(
            engine_id=spec.config.engine_id,
            num_chunks=spec.num_chunks,
            rank=0,
            kv_bytes_per_chunk=spec.kv_bytes_per_chunk,
            cpu_page_size=spec.cpu_page_size_per_worker,
        )
        self.pairs = [
            (cache.tensor, self.region.create_next_worker_view(cache.page_size_bytes))
            for cache in caches.tensors
        ]
        self.done = []

    def submit_store(self, job_id, src_spec, dst_spec):
        for block, row in zip(src_spec.block_ids, dst_spec.chunk_ids, strict=True):
            for cache, rows in self.pairs:
                rows[row].copy_(cache[block])
        self.done.append(TransferResult(job_id, True))
        return True

    def submit_load(self, job_id, src_spec, dst_spec):
        for row, block in zip(src_spec.chunk_ids, dst_spec.block_ids, strict=True):
            for cache, rows in self.pairs:
                cache[block].copy_(rows[row])
        self.done.append(TransferResult(job_id, True))
        return True

    def get_finished(self):
        done, self.done = self.done, []
        return done

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self.pairs = []
        self.region.cleanup()


class HostTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            self._worker = HostWorker(kv_caches, self)
        return self._worker

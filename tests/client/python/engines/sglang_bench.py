"""Throughput of kvstow beside SGLang's own file backend, as SGLang's threads call them.

    PYTHONPATH=build/dev/python build/engines/sglang/bin/python \\
        tests/client/python/engines/sglang_bench.py [PAGES] [ROUNDS]

A page is 64 tokens of 28 layers, 4 heads of 128, bfloat16: 3.5 MiB (Qwen2.5-7B's). Backends take
turns. Backups are of new pages; loads are of pages that are there. Prints medians in MB/s of raw pages.
"""

import os
import statistics
import sys
import tempfile
import time

os.environ.setdefault("SGLANG_LOG_LEVEL", "error")

import kvstow  # noqa: E402
import torch  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig  # noqa: E402
from sglang_host import PAGE, device_pool, hashes, host_pool, published  # noqa: E402

from kvstow.sglang import KvstowStorage  # noqa: E402

CONFIG = dict(
    tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
    enable_storage_metrics=False, is_page_first_layout=True, model_name="org/model",
)  # fmt: skip


class File:
    """SGLang's file backend, by the calls of its controller: flat copies of pages."""

    def __init__(self, folder, host):
        self.backend, self.host = HiCacheFile(HiCacheStorageConfig(**CONFIG), file_path=folder), host

    def save(self, keys, at):
        pages = [self.host.get_data_page(int(at[i * PAGE])) for i in range(len(keys))]
        assert self.backend.batch_set(keys, pages)

    def load(self, keys, at):
        rooms = [self.host.get_dummy_flat_data_page() for _ in keys]
        for i, page in enumerate(self.backend.batch_get(keys, rooms)):
            self.host.set_from_flat_data_page(int(at[i * PAGE]), page)


class Kvstow:
    def __init__(self, address, host, recipe):
        options = {"address": address, "recipe": recipe}
        self.backend = KvstowStorage(HiCacheStorageConfig(**CONFIG, extra_config=options))
        self.backend.register_mem_pool_host(host)

    def save(self, keys, at):
        assert all(self.backend.batch_set_v1(keys, at))

    def load(self, keys, at):
        assert all(self.backend.batch_get_v1(keys, at))


def main(pages=32, rounds=9):
    with published(), kvstow.Server(host_bytes="8GiB", local_bytes="2GiB") as shared, kvstow.Server(
        host_bytes="8GiB", local_bytes=0
    ) as apart, tempfile.TemporaryDirectory() as folder:
        device = device_pool(layers=28, heads=4, width=128, pages=1, dtype=torch.bfloat16)
        for layout in ("layer_first", "page_first", "page_first_direct"):
            host = host_pool(device, layout, pages)
            host.kv_buffer.normal_()
            backends = {
                "kvstow, `raw`": Kvstow(shared.address, host, "raw"),
                "kvstow, `raw`, over TCP": Kvstow(apart.address, host, "raw"),
                "kvstow, `int8`": Kvstow(shared.address, host, "int8"),
                "kvstow, `lossless`": Kvstow(shared.address, host, "lossless"),
                "SGLang's `file`, in the page cache": File(folder, host),
            }
            at, times = torch.arange(pages * PAGE), {}
            size = host.get_size_per_token() * PAGE * pages
            for turn in range(rounds + 1):
                keys = hashes(pages, f"{layout}-{turn}")
                for name, backend in backends.items():
                    for what in (backend.save, backend.load):
                        began = time.perf_counter()
                        what(keys, at)
                        if turn:  # the first is not counted
                            seconds = time.perf_counter() - began
                            times.setdefault((name, what.__name__), []).append(seconds)
                host.kv_buffer.normal_()
            for name in backends:
                rates = [size / statistics.median(times[name, what]) / 1e6 for what in ("save", "load")]
                print(f"| {layout} | {name} | {rates[0]:,.0f} | {rates[1]:,.0f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))

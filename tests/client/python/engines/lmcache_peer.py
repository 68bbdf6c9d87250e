"""What the tests and benches of LMCache's adapters share: keys, memory as LMCache's own, a redis-server."""

from __future__ import annotations

import select
import socket
import subprocess
import time

import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

PATIENCE = 60  # seconds that a call may take


def keys(first: int, count: int) -> list[ObjectKey]:
    return [
        ObjectKey(chunk_hash=i.to_bytes(16, "big"), model_name="org/model", kv_rank=0)
        for i in range(first, first + count)
    ]


def memory_of(data: torch.Tensor) -> TensorMemoryObj:
    """Bytes as LMCache hands them to an adapter."""
    metadata = MemoryObjMetadata(
        shape=torch.Size([data.numel()]),
        dtype=torch.uint8,
        address=0,
        phy_size=data.numel(),
        fmt=MemoryFormat.KV_2LTD,
        ref_count=1,
    )
    return TensorMemoryObj(raw_data=data, metadata=metadata, parent_allocator=None)


def wait(descriptor: int) -> None:
    """Until an adapter says by its event descriptor that a task ended. Raises TimeoutError."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    if not poller.poll(PATIENCE * 1e3):
        raise TimeoutError("LMCache heard of no end")
    consume_fd(descriptor)


class RedisServer:
    """A redis-server on a free port, which answers when the constructor returns."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while self._answers_not():
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError("redis-server did not start")
            time.sleep(0.01)

    def _answers_not(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port)):
                return False
        except OSError:
            return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

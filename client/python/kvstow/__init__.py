"""kvstow: the KV cache of language models, outside the inference workers.

    with kvstow.Server() as server, kvstow.Client(server.address) as client:
        space = client.open_space("llama", spec, recipe="int8")
        ...

kvstow.aio has the same for asyncio. kvstow.hf is a worker for Hugging Face transformers, kvstow.vllm
a connector for vLLM, kvstow.lmcache a second level for LMCache, kvstow.sglang a third for SGLang.
None of them is imported here, and neither is torch.
"""

from kvstow.client import Client, LayersPut, Space
from kvstow.planning import plan
from kvstow.server import Server
from kvstow.statistics import model_statistics, rank_statistics
from kvstow.types import (
    Bounds,
    Column,
    GetResult,
    KvSpec,
    Page,
    PrefixHit,
    PutResult,
    ReportResult,
    Rope,
    Serving,
    SpaceMismatch,
    page_keys,
)

__version__ = "0.1.0"
__all__ = [
    "Bounds",
    "Client",
    "Column",
    "GetResult",
    "KvSpec",
    "LayersPut",
    "Page",
    "PrefixHit",
    "PutResult",
    "ReportResult",
    "Rope",
    "Server",
    "Serving",
    "Space",
    "SpaceMismatch",
    "model_statistics",
    "page_keys",
    "plan",
    "rank_statistics",
]

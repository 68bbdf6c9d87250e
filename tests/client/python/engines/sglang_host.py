"""SGLang's own cache controller and host pools, as they run on a CPU, for tests and measurements."""

import contextlib
import hashlib
import threading
import types
import warnings

warnings.filterwarnings("ignore", message="Only CUDA")

import torch  # noqa: E402
from sglang.srt.managers.cache_controller import HiCacheController  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls  # noqa: E402
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost  # noqa: E402
from sglang.srt.runtime_context import get_context, get_parallel  # noqa: E402

PAGE = 64
ALONE = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_dcp_size": 1, "attn_dcp_rank": 0}


@contextlib.contextmanager
def published(**parallel):
    """SGLang's configuration of a process, of one rank if nothing else is said."""
    with get_context().override_server_args(), get_parallel().override(**{**ALONE, **parallel}):
        yield


def device_pool(mla=False, layers=3, heads=2, width=64, v_width=None, pages=8, dtype=torch.float16):
    """SGLang's pool of a device, on the CPU."""
    common = dict(
        size=pages * PAGE, page_size=PAGE, dtype=dtype, layer_num=layers, device="cpu",
        enable_memory_saver=False,
    )  # fmt: skip
    if mla:
        return MLATokenToKVPool(kv_lora_rank=512, qk_rope_head_dim=64, **common)
    return MHATokenToKVPool(head_num=heads, head_dim=width, v_head_dim=v_width, **common)


def host_pool(device, layout="layer_first", pages=16):
    """SGLang's host pool for it, without the pinned memory that needs a GPU."""
    info = device.get_device_pool_infos()[0].buffer_info
    common = dict(
        pin_memory=False, device_capacity_tokens=device.size, start_layer=0,
        end_layer=device.layer_num, host_token_capacity=pages * PAGE,
    )  # fmt: skip
    if isinstance(device, MLATokenToKVPool):
        return MLATokenToKVPoolHost(
            info, 1.0, 0, PAGE, layout, override_kv_cache_dim=device.kv_cache_dim,
            draft_buffer_infos=(), layer_shard_enabled=False, target_layer_num=device.layer_num,
            **common,
        )  # fmt: skip
    return get_mha_host_pool_cls(info)(info, 1.0, 0, PAGE, layout, **common)


def fill(host, seed=0):
    buffers = host.kv_buffer if isinstance(host.kv_buffer, tuple) else [host.kv_buffer]
    torch.manual_seed(seed)
    for buffer in buffers:
        buffer.normal_()


def controller(device, host, address, **options):
    """SGLang's controller with kvstow behind it, from the line that a user types."""
    extra = {
        "backend_name": "kvstow",
        "module_path": "kvstow.sglang",
        "class_name": "KvstowStorage",
        "address": address,
        "revision": "1",
        **options,
    }
    return HiCacheController(
        types.SimpleNamespace(get_kvcache=lambda: device),
        host,
        PAGE,
        None,
        threading.Event(),
        write_policy="write_through",
        io_backend="direct",
        storage_backend="dynamic",
        model_name="org/model",
        storage_backend_extra_config=extra,
        enable_storage_metrics=True,
    )


def hashes(count, seed=0):
    return [hashlib.sha256(f"{seed}/{i}".encode()).hexdigest() for i in range(count)]

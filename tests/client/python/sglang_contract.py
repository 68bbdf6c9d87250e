"""SGLang's side of kvstow.sglang, as far as a backend sees it, without SGLang and torch.

What is here was read from SGLang 0.5.23: the base class, its results, and host pools that describe
pages by pieces of memory or hand out flat copies. engines/sglang_test.py has SGLang itself.
"""

import abc
import dataclasses
import enum
import hashlib
import sys
import types

import numpy as np


class HiCacheStorage(abc.ABC):
    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        if not hasattr(self, "registered_pools"):
            self.registered_pools = {}
        self.registered_pools[host_pool_name] = host_pool

    @abc.abstractmethod
    def get(self, key, target_location=None, target_sizes=None): ...

    @abc.abstractmethod
    def batch_get(self, keys, target_locations=None, target_sizes=None): ...

    @abc.abstractmethod
    def set(self, key, value=None, target_location=None, target_sizes=None): ...

    @abc.abstractmethod
    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None): ...

    @abc.abstractmethod
    def exists(self, key): ...


class PoolHitPolicy(str, enum.Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclasses.dataclass
class PoolTransfer:
    name: str
    host_indices: np.ndarray | None = None
    keys: list | None = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclasses.dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict
    restorable_prefix_pages: list | None = None

    @classmethod
    def empty(cls):
        return cls(0, {})


@dataclasses.dataclass
class Config:
    """HiCacheStorageConfig."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = False
    model_name: str | None = "org/model"
    extra_config: dict | None = None


def install():
    """Makes `import sglang.srt.mem_cache.hicache_storage` give this module's names."""
    if "sglang" not in sys.modules:
        for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
            sys.modules[name] = types.ModuleType(name)
        storage = types.ModuleType("sglang.srt.mem_cache.hicache_storage")
        storage.HiCacheStorage = HiCacheStorage
        storage.PoolTransferResult = PoolTransferResult
        sys.modules[storage.__name__] = storage


class Tensor:
    """The few things of a torch tensor that storage backends use."""

    def __init__(self, array, dtype):
        self.array = array
        self.dtype = f"torch.{dtype}"
        self.device = types.SimpleNamespace(type="cpu")

    def data_ptr(self):
        return self.array.ctypes.data

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def is_contiguous(self):
        return self.array.flags.c_contiguous


class _Pool:
    """A host pool of `pages` pages. `kv[c]` is a component (K, V) with the axes of the layout."""

    page_size = 16
    start_layer = 0

    def __init__(self, layout="layer_first", layers=3, heads=2, widths=(64, 64), pages=24, dtype="float16"):
        self.layout = layout
        self.dtype = f"torch.{dtype}"
        self.layer_num = self.end_layer = self.target_layer_num = layers
        self.head_num, self.size, self.page_num = heads, pages * self.page_size, pages
        self._item = np.dtype({"bfloat16": "uint16"}.get(dtype, dtype))
        self.kv = []
        for width in widths:
            axes = {
                "layer_first": (layers, self.size, heads, width),
                "page_first": (self.size, layers, heads, width),
                "page_first_direct": (pages, layers, self.page_size, heads, width),
                "page_head": (pages, heads, self.page_size, layers, width),
            }
            self.kv.append(np.zeros(axes[layout], self._item))

    def fill(self, seed=0):
        for number, part in enumerate(self.kv):
            random = np.random.default_rng(100 * seed + number)
            part[:] = random.standard_normal(part.shape).astype(np.float16).view(self._item)

    def page(self, index):
        """A page as kvstow has it: [layers, K and V, tokens, heads, width], flat, in a list of layers."""
        tokens, number, found = slice(index, index + self.page_size), index // self.page_size, []
        for part in self.kv:
            if self.layout == "layer_first":
                found.append(part[:, tokens])
            elif self.layout == "page_first":
                found.append(part[tokens].swapaxes(0, 1))
            elif self.layout == "page_first_direct":
                found.append(part[number])
            else:
                found.append(part[number].transpose(2, 1, 0, 3))
        return [np.concatenate([part[layer].ravel() for part in found]) for layer in range(self.layer_num)]

    def get_page_buffer_meta(self, indices):
        pointers, sizes = [], []
        for index in indices.tolist()[:: self.page_size]:
            layers = range(self.layer_num if self.layout == "layer_first" else 1)
            for layer in layers:
                for part in self.kv:
                    if self.layout == "layer_first":
                        piece = part[layer, index : index + self.page_size]
                    elif self.layout == "page_first":
                        piece = part[index : index + self.page_size]
                    else:
                        piece = part[index // self.page_size]
                    pointers.append(piece.ctypes.data)
                    sizes.append(piece.nbytes)
        return pointers, sizes

    def _flat(self, index):
        tokens, number = slice(index, index + self.page_size), index // self.page_size
        cut = {"layer_first": np.s_[:, tokens], "page_first": np.s_[tokens]}.get(self.layout, number)
        return [part[cut] for part in self.kv]

    def get_data_page(self, index, flat=True):
        joined = np.concatenate([part.ravel() for part in self._flat(index)])
        return Tensor(joined, self.dtype.removeprefix("torch."))

    def get_dummy_flat_data_page(self):
        page = self.get_data_page(0)
        page.array[:] = 0
        return page

    def set_from_flat_data_page(self, index, data_page):
        at = 0
        for part in self._flat(index):
            part[...] = data_page.array[at : at + part.size].reshape(part.shape)
            at += part.size


class MHATokenToKVPoolHost(_Pool):
    head_dim = v_head_dim = 64


class AsymmetricMHATokenToKVPoolHost(_Pool):
    head_dim, v_head_dim = 64, 32

    def __init__(self, layout="page_first", **axes):
        super().__init__(layout, widths=(64, 32), **axes)

    def get_dummy_flat_data_page(self):
        raise NotImplementedError("K and V differ in width")


class MLATokenToKVPoolHost(_Pool):
    kv_cache_dim, qk_rope_head_dim = 192, 64

    def __init__(self, layout="page_first_direct", **axes):
        super().__init__(layout, heads=1, widths=(192,), **axes)


class StatePoolHost(_Pool):
    """A pool that is no cache of K and V, of one slot a page: a state-space model's, say."""

    page_size = 1

    def get_page_buffer_meta(self, indices):
        raise NotImplementedError("flat pages only")


def indices(pool, pages):
    """host_indices of the pages of these numbers."""
    return np.concatenate([np.arange(p * pool.page_size, (p + 1) * pool.page_size) for p in pages])


def hashes(count, seed=0):
    return [hashlib.sha256(f"{seed}/{i}".encode()).hexdigest() for i in range(count)]

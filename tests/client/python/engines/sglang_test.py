"""KvstowStorage under SGLang itself: its cache controller with all its threads, its host pools, its
factory, its fault injector, and its file backend as the reference.

All of it runs on a CPU. What needs a GPU is what comes before and after: the model, and the copies
between the device's pool and the host's.
"""

import signal
import time
from array import array

import pytest

pytest.importorskip("sglang", reason="sglang is not installed in this environment")

import kvstow  # noqa: E402
import torch  # noqa: E402
from sglang.srt.environ import envs  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheFile,
    HiCacheStorageConfig,
    HiCacheStorageFailureInjector,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage import StorageBackendFactory  # noqa: E402
from sglang.srt.mem_cache.utils import get_storage_hash_str  # noqa: E402
from sglang_host import PAGE, controller, device_pool, fill, hashes, host_pool, published  # noqa: E402

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
SECONDS = 60


@pytest.fixture(autouse=True)
def one_rank():
    with published():
        yield


@pytest.fixture
def engine(server, request):
    """Makes engines at the shared server, in spaces of the test's own."""
    made = []
    space = f"sg{abs(hash(request.node.name)) % 10**12}"

    def make(layout="layer_first", address=server.address, pages=16, **options):
        axes = {name: options.pop(name) for name in ("mla", "v_width", "dtype") if name in options}
        device = device_pool(**axes)
        host = host_pool(device, layout, pages)
        defaults = {"space": space, "recipe": "raw", "buffer_bytes": 1 << 20}
        made.append(controller(device, host, address, **{**defaults, **options}))
        return made[-1], host

    yield make
    for one in made:
        one.detach_storage_backend()


def save(engine, host, tokens, seed=1):
    """Backs pages up as SGLang's scheduler does. The host indices, and the tokens that were stored."""
    fill(host, seed)
    indices = host.alloc(len(tokens))
    engine.write_storage(indices, tokens, hash_value=get_storage_hash_str(tokens, page_size=PAGE))
    done = engine.ack_backup_queue.get(timeout=SECONDS)
    return indices, done.completed_tokens


def load(engine, host, tokens):
    """Prefetches a prompt as SGLang's scheduler does. Hits told, tokens that came, and their indices."""
    engine.prefetch("request", tokens)
    operation = engine.prefetch_hit_queue.get(timeout=SECONDS)
    hits, came = operation.storage_hit_count, 0
    if hits:
        operation.host_indices = host.alloc(hits)
        engine.prefetch_buffer.put(operation)
        while True:
            ack = engine.ack_prefetch_queue.get(timeout=SECONDS)
            came = max(came, ack.completed_tokens or 0)
            if ack.completed_req:
                break
    return hits, came, operation.host_indices


def prompt(pages, seed=0):
    random = torch.Generator().manual_seed(seed)
    return array("q", torch.randint(0, 32000, (pages * PAGE,), generator=random).tolist())


def same(one, at, other, there):
    """Whether two pools of any layouts hold the same at these indices: [layers, tokens, heads, width]."""

    def tokens(host, indices):
        parts = host.kv_buffer
        if not isinstance(parts, tuple):
            parts = tuple(parts) if parts.shape[0] == 2 and hasattr(host, "head_num") else (parts,)
        found = []
        for part in parts:
            if host.layout == "page_first":
                part = part.transpose(0, 1)
            elif host.layout == "page_first_direct":
                part = part.transpose(0, 1).flatten(1, 2)
            elif host.layout == "page_head":
                part = part.permute(3, 0, 2, 1, 4).flatten(1, 2)
            found.append(part[:, indices])
        return found

    return all(torch.equal(a, b) for a, b in zip(tokens(one, at), tokens(other, there), strict=True))


@pytest.mark.parametrize("v1", [1, 0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_one_engine_backs_up_another_prefetches(engine, layout, v1):
    """Through the controller's backup and prefetch threads, by both of its interfaces."""
    first, pool = engine(layout, interface_v1=v1)
    tokens = prompt(6)
    at, stored = save(first, pool, tokens)
    assert stored == 6 * PAGE
    second, other = engine("page_first" if layout == "layer_first" else "layer_first")
    assert second.page_get_func == second._page_get_zero_copy
    hits, came, there = load(second, other, tokens + prompt(2, seed=9))
    assert (hits, came) == (6 * PAGE, 6 * PAGE)
    assert same(pool, at, other, there)


@pytest.mark.parametrize(
    "axes",
    [{"mla": True, "dtype": torch.bfloat16}, {"v_width": 32}, {"dtype": torch.bfloat16}],
    ids=["mla", "asymmetric", "bfloat16"],
)
@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_pools_of_mla_and_of_two_widths(engine, axes, layout):
    first, pool = engine(layout, recipe="lossless", **axes)
    tokens = prompt(4)
    at, stored = save(first, pool, tokens)
    second, other = engine(layout, recipe="lossless", **axes)
    hits, came, there = load(second, other, tokens)
    assert stored == hits == came == 4 * PAGE
    assert same(pool, at, other, there)
    assert second.storage_backend._stores["kv"].pages.known


def test_the_lines_default_recipe(engine):
    """int8 for K and V: near, not the same, and the metrics of SGLang hear of it."""
    first, pool = engine("page_first", recipe="")
    tokens = prompt(4)
    at, _ = save(first, pool, tokens)
    second, other = engine("page_first", recipe="")
    _, came, there = load(second, other, tokens)
    assert came == 4 * PAGE and not same(pool, at, other, there)
    gap = (pool.kv_buffer[:, at].float() - other.kv_buffer[:, there].float()).abs().max()
    assert 0 < float(gap) < 0.05
    stats = second.storage_backend.get_stats()
    assert stats.prefetch_pgs == [4] and stats.prefetch_bandwidth[0] > 0 and not stats.backup_pgs
    assert first.storage_backend.get_stats().backup_pgs == [4]
    assert second.storage_backend.get_stats().prefetch_pgs == []


def test_salts_and_adapters_are_in_sglangs_hashes(engine):
    first, pool = engine()
    tokens = prompt(4)
    save(first, pool, tokens)
    keys = {
        (extra, salt): get_storage_hash_str(_salted(tokens, extra, salt), page_size=PAGE)
        for extra in (None, "lora-1", "lora-2")
        for salt in (None, "tenant-1", "tenant-2")
    }
    found = {name: first.storage_backend.batch_exists(of) for name, of in keys.items()}
    assert found.pop((None, None)) == 4
    assert len(found) == 8 and not any(found.values())
    assert len({key for of in keys.values() for key in of}) == 9 * 4


class _salted(array):
    """Tokens with the namespace of a request, as SGLang's RadixKey carries it."""

    def __new__(cls, tokens, extra, salt):
        made = super().__new__(cls, "q", tokens)
        made.extra_key, made.cache_salt = extra, salt
        return made


def test_ranks_and_models_as_sglang_tells_them(server):
    """Its own configuration names the model, whatever it is served as; ranks do not share."""
    device = device_pool()
    host = host_pool(device)
    names = set()
    two = {"tp_size": 2, "attn_tp_size": 2, "moe_tp_size": 2}
    for parallel in ({}, two, {**two, "tp_rank": 1, "attn_tp_rank": 1}, {"pp_size": 2}):
        with published(**parallel):
            one = controller(device, host, server.address)
            names.add(one.storage_backend._stores["kv"]._space.name)
            assert one.storage_backend._model.name == "dummy"
            one.detach_storage_backend()
    assert len(names) == 4 and all("/dummy/" in name for name in names)


def test_a_server_that_dies_freezes_and_comes_back_costs_hits_and_no_thread(own_server, engine):
    one, pool = engine(address=own_server.address, timeout=1.0, lookup_timeout=0.5)
    tokens = prompt(6)
    _, stored = save(one, pool, tokens)
    assert stored == 6 * PAGE
    own_server.send_signal(signal.SIGSTOP)
    assert load(one, pool, tokens)[:2] == (0, 0)
    pool.clear()
    assert save(one, pool, prompt(2, seed=2))[1] == 0
    own_server.send_signal(signal.SIGCONT)
    own_server.kill()
    pool.clear()
    assert load(one, pool, tokens)[:2] == (0, 0)
    own_server.start()
    end = time.monotonic() + SECONDS
    while not save(one, pool, tokens)[1]:
        assert time.monotonic() < end
        pool.clear()
        time.sleep(0.05)
    pool.clear()
    assert load(one, pool, tokens)[:2] == (6 * PAGE, 6 * PAGE)
    for thread in ("prefetch_thread", "prefetch_io_aux_thread", "prefetch_sync_thread", "backup_thread"):
        assert getattr(one, thread).is_alive()


def test_a_server_that_dies_between_the_query_and_the_load_is_a_shorter_prefix(own_server, engine):
    one, pool = engine(address=own_server.address)
    tokens = prompt(6)
    save(one, pool, tokens)
    one.prefetch("request", tokens)
    operation = one.prefetch_hit_queue.get(timeout=SECONDS)
    assert operation.storage_hit_count == 6 * PAGE
    own_server.kill()
    operation.host_indices = pool.alloc(6 * PAGE)
    one.prefetch_buffer.put(operation)
    came = []
    while not came or not came[-1].completed_req:
        came.append(one.ack_prefetch_queue.get(timeout=SECONDS))
    assert came[0].completed_tokens == 0


def test_wrong_options_fail_the_attach_by_name(server):
    device = device_pool()
    for options, named in (
        ({"recipe": "int9"}, "int9"),
        ({"adress": "x"}, "adress"),
        ({"timeout": -1}, "timeout"),
    ):
        with pytest.raises(ValueError, match=named):
            controller(device, host_pool(device), server.address, **options)


def test_a_layout_of_unknown_bytes_takes_exact_recipes_only(server):
    quantised = device_pool(dtype=torch.float8_e4m3fn)
    host = host_pool(quantised)
    with pytest.raises(ValueError, match="recipe: 'int8'.*MHATokenToKVPoolHost/layer_first/uint8"):
        controller(quantised, host, server.address, recipe="int8")
    one, other = controller(quantised, host, server.address), host_pool(quantised)
    two = controller(quantised, other, server.address)
    host.kv_buffer.random_(0, 256)
    at = host.alloc(2 * PAGE)
    keys = hashes(2, seed=77)
    assert one.storage_backend.batch_set_v1(keys, at) == [True] * 2
    there = other.alloc(2 * PAGE)
    assert two.storage_backend.batch_get_v1(keys, there) == [True] * 2
    assert torch.equal(host.kv_buffer[:, :, at], other.kv_buffer[:, :, there])
    one.detach_storage_backend()
    two.detach_storage_backend()


# Hybrid models: SGLang's own state pool, and its file backend as the reference.


def config(**fields):
    alone = dict(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=False, enable_storage_metrics=False, is_page_first_layout=False,
        model_name="org/model",
    )  # fmt: skip
    return HiCacheStorageConfig(**{**alone, **fields})


def backend(address, host, **options):
    extra = {
        "backend_name": "kvstow",
        "module_path": "kvstow.sglang",
        "class_name": "KvstowStorage",
        "address": address,
        "buffer_bytes": 1 << 20,
        "revision": "1",
        **options,
    }
    made = StorageBackendFactory.create_backend("dynamic", config(extra_config=extra), host)
    made.register_mem_pool_host(host)
    return made


class StatePool:
    """A pool of one slot a page, by the flat pages that HostKVCache asks of every pool."""

    page_size, layout, dtype = 1, "layer_first", torch.float32

    def __init__(self):
        self.states = torch.zeros(32, 3000)

    def get_data_page(self, index, flat=True):
        return self.states[index].flatten()

    def get_dummy_flat_data_page(self):
        return torch.zeros(3000)

    def set_from_flat_data_page(self, index, data_page):
        self.states[index] = data_page


@pytest.mark.parametrize("seed", range(4))
def test_the_answers_of_v2_are_those_of_sglangs_file_backend(server, tmp_path, seed):
    random = torch.Generator().manual_seed(seed)
    kv, state = host_pool(device_pool(), pages=16), StatePool()
    file = HiCacheFile(config(), file_path=str(tmp_path))
    ours = backend(server.address, kv, space=f"v2-{seed}", recipe="raw")
    file.register_mem_pool_host(kv)
    fill(kv)
    state.states.normal_()
    keys = hashes(12, seed)
    kept = int(torch.randint(4, 13, (1,), generator=random))
    some = [i for i in range(12) if float(torch.rand(1, generator=random)) < 0.6]
    for one in (file, ours):
        one.register_mem_host_pool_v2(kv, PoolName.KV)
        one.register_mem_host_pool_v2(state, PoolName.MAMBA)
        sets = [
            PoolTransfer(PoolName.KV, torch.arange(kept * PAGE), keys=keys[:kept]),
            PoolTransfer(PoolName.MAMBA, torch.tensor(some), keys=[keys[i] for i in some]),
        ]
        done = one.batch_set_v2(sets)
        assert done == {PoolName.KV: [True] * kept, PoolName.MAMBA: [True] * len(some)}
    for policy in (PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES):
        for trailing in (0, 1, 2, 3):
            asked = [PoolTransfer(PoolName.MAMBA, keys=keys[:trailing], hit_policy=policy)]
            assert ours.batch_exists_v2(keys, asked) == file.batch_exists_v2(keys, asked)
    assert ours.batch_exists_v2(keys, None) == file.batch_exists_v2(keys, None)
    mine, theirs = StatePool(), StatePool()
    for one, pool in ((ours, mine), (file, theirs)):
        one.register_mem_host_pool_v2(pool, PoolName.MAMBA)
        got = one.batch_get_v2([PoolTransfer(PoolName.MAMBA, torch.tensor(some), keys=[keys[i] for i in some])])
        assert got == {PoolName.MAMBA: [True] * len(some)}
    assert torch.equal(mine.states, theirs.states)
    ours.close()


def test_sglangs_fault_injector_wraps_it(server):
    with envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE.override(0.5):
        host = host_pool(device_pool())
        wrapped = backend(server.address, host, space="injected", recipe="raw")
    assert isinstance(wrapped, HiCacheStorageFailureInjector)
    keys, at = hashes(3), torch.arange(3 * PAGE)
    outcomes = {tuple(wrapped.batch_set_v1(keys, at)) for _ in range(40)}
    assert outcomes == {(True,) * 3, (False,) * 3}
    assert {wrapped.batch_exists(keys) for _ in range(40)} == {0, 3}
    wrapped.close()


def test_a_model_whose_files_are_here_is_known_by_them(tmp_path):
    """Other weights or another config under the same name: other pages. RoPE is told from it."""
    from kvstow.sglang.identity import Model, space_of
    from kvstow.sglang.pools import format_of
    from kvstow.sglang.settings import Settings

    def space(weights, theta=10000.0):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "config.json").write_text('{"model_type": "llama", "rope_theta": %f}' % theta)
        with published_model(folder):
            model = Model.of(Settings(), config())
        host = host_pool(device_pool())
        return space_of(Settings(), model, config(), "kv", host, format_of(host), "int8")

    names = [space(b"a" * 9000), space(b"b" * 9000), space(b"a" * 9000, theta=5e5)]
    assert len({name for name, _ in names}) == 3
    assert names[0] == space(b"a" * 9000)
    assert names[0][1].rope == kvstow.Rope(theta=10000.0)
    assert names[2][1].rope.theta == 5e5
    assert names[0][1].model == "model"


def published_model(folder):
    from sglang.srt.runtime_context import get_model

    return get_model().override(model_path=str(folder))

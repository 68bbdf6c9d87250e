"""KvstowStorage as SGLang's threads call it; engines/sglang_test.py has SGLang itself."""

import re
import signal
import time
from types import SimpleNamespace

import kvstow
import numpy as np
import pytest
import sglang_contract as sglang

sglang.install()

from kvstow.sglang import KvstowStorage  # noqa: E402

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")


def storage_of(address, pool=None, config=None, **options):
    usual = {"backend_name": "kvstow", "address": address, "buffer_bytes": 1 << 20, "revision": "1"}
    options = {**usual, **options}
    config = config or sglang.Config()
    config.extra_config = options
    storage = KvstowStorage(config, {})
    if pool is not None:
        storage.register_mem_pool_host(pool)
    return storage


@pytest.fixture
def open_storage(server, request):
    """Makes storages at the shared server, in spaces of the test's own."""
    opened = []
    space = re.sub("[^a-z0-9]", "-", request.node.name)[-38:]

    def open_one(pool=None, config=None, **options):
        opened.append(storage_of(server.address, pool, config, **{"space": space, **options}))
        return opened[-1]

    yield open_one
    for storage in opened:
        storage.close()


def same_pages(one, other, pages):
    return all(
        np.array_equal(a, b)
        for page in pages
        for a, b in zip(one.page(page * one.page_size), other.page(page * other.page_size))
    )


def save_two(storage, pool, first=0):
    """Saves the pages `first` and the next of the pool."""
    keys = sglang.hashes(first + 2)[first:]
    assert storage.batch_set_v1(keys, sglang.indices(pool, [first, first + 1])) == [True] * 2


def stored(pool, open_storage, pages=6, **options):
    """A storage with pages 0, 1, ... of the pool, and their keys."""
    pool.fill(seed=1)
    storage = open_storage(pool, **options)
    keys = sglang.hashes(pages)
    assert storage.batch_set_v1(keys, sglang.indices(pool, range(pages))) == [True] * pages
    return storage, keys


@pytest.mark.parametrize("read", LAYOUTS)
@pytest.mark.parametrize("written", LAYOUTS)
def test_a_page_of_one_layout_is_read_by_another(open_storage, written, read):
    pool, other = sglang.MHATokenToKVPoolHost(written), sglang.MHATokenToKVPoolHost(read)
    _, keys = stored(pool, open_storage, recipe="raw")
    reader = open_storage(other, recipe="raw")
    assert reader.batch_exists([*keys, *sglang.hashes(2, seed=9)]) == 6
    assert reader.batch_get_v1(keys, sglang.indices(other, range(6))) == [True] * 6
    assert same_pages(pool, other, range(6))


@pytest.mark.parametrize("kind", [sglang.AsymmetricMHATokenToKVPoolHost, sglang.MLATokenToKVPoolHost])
@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_pools_of_one_width_and_of_two(open_storage, kind, layout, dtype):
    pool, other = kind(layout, dtype=dtype), kind(layout, dtype=dtype)
    storage, keys = stored(pool, open_storage, recipe="lossless")
    assert storage.counts["saved"] == 6
    reader = open_storage(other, recipe="lossless")
    assert reader.batch_get_v1(keys, sglang.indices(other, range(6))) == [True] * 6
    assert same_pages(pool, other, range(6))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_flat_pages_are_the_same_pages(open_storage, layout):
    """The older interface, which copies, beside the one that gives memory."""
    pool, other = sglang.MHATokenToKVPoolHost(layout), sglang.MHATokenToKVPoolHost(layout)
    pool.fill(seed=1)
    storage = open_storage(pool, recipe="raw", interface_v1=0)
    keys = sglang.hashes(4)
    assert storage.batch_set(keys, [pool.get_data_page(i * pool.page_size) for i in range(4)])
    assert storage.exists(keys[0]) and not storage.exists(sglang.hashes(1, seed=5)[0])
    rooms = [other.get_dummy_flat_data_page() for _ in range(4)]
    assert storage.batch_get(keys, rooms) == rooms
    for number, room in enumerate(rooms):
        other.set_from_flat_data_page(number * other.page_size, room)
    assert same_pages(pool, other, range(4))
    third = sglang.MHATokenToKVPoolHost("page_first")
    reader = open_storage(third, recipe="raw")
    assert reader.batch_get_v1(keys, sglang.indices(third, range(4))) == [True] * 4
    assert same_pages(pool, third, range(4))


def test_pages_that_fill_the_buffer_many_times(open_storage):
    pool, other = sglang.MHATokenToKVPoolHost(), sglang.MHATokenToKVPoolHost("page_first")
    storage, keys = stored(pool, open_storage, pages=24, recipe="raw", buffer_bytes=100_000)
    reader = open_storage(other, recipe="raw", buffer_bytes=1)  # one page at a time
    assert reader.batch_get_v1(keys, sglang.indices(other, range(24))) == [True] * 24
    assert same_pages(pool, other, range(24))


def test_the_default_recipe_is_near_and_smaller(open_storage):
    pool, other = sglang.MHATokenToKVPoolHost(), sglang.MHATokenToKVPoolHost()
    _, keys = stored(pool, open_storage)
    assert open_storage(other).batch_get_v1(keys, sglang.indices(other, range(6))) == [True] * 6
    assert not same_pages(pool, other, range(6))
    for mine, theirs in zip(pool.kv, other.kv):
        some = np.s_[:, : 6 * pool.page_size]
        assert float(np.abs(mine[some].astype(np.float32) - theirs[some]).max()) < 0.05


def test_the_default_of_mla_keeps_the_rope_part(open_storage):
    pool, other = sglang.MLATokenToKVPoolHost(), sglang.MLATokenToKVPoolHost()
    _, keys = stored(pool, open_storage)
    assert open_storage(other).batch_get_v1(keys, sglang.indices(other, range(6))) == [True] * 6
    assert np.array_equal(pool.kv[0][:6, ..., -64:], other.kv[0][:6, ..., -64:])
    assert 0 < float(np.abs(pool.kv[0][:6].astype(np.float32) - other.kv[0][:6]).max()) < 0.1


def test_only_leading_pages_are_loaded(open_storage):
    pool = sglang.MHATokenToKVPoolHost()
    storage, keys = stored(pool, open_storage)
    asked = [*keys[:3], *sglang.hashes(1, seed=3), *keys[3:]]
    got = storage.batch_get_v1(asked, sglang.indices(pool, range(7)))
    assert got[:4] == [True] * 3 + [False] and len(got) == 7
    assert storage.batch_exists(asked) == 3
    assert storage.batch_exists([]) == 0
    assert storage.batch_get_v1([], sglang.indices(pool, [0])[:0]) == []


def test_pages_that_are_there_are_not_sent_again(open_storage):
    pool = sglang.MHATokenToKVPoolHost()
    storage, keys = stored(pool, open_storage)
    pool.fill(seed=2)  # the same prefix, computed to other last bits
    keys += sglang.hashes(2, seed=4)
    assert storage.batch_set_v1(keys, sglang.indices(pool, range(8))) == [True] * 8
    assert storage.counts["saved"] == 8
    # A gap before them: the server has them, and says so.
    gap = [*sglang.hashes(1, seed=5), *keys]
    assert storage.batch_set_v1(gap, sglang.indices(pool, range(9))) == [True] * 9


def test_clear_forgets_for_every_engine(open_storage):
    pool = sglang.MHATokenToKVPoolHost()
    storage, keys = stored(pool, open_storage)
    other = open_storage(pool)
    assert other.batch_exists(keys) == 6
    storage.clear()
    assert storage.batch_exists(keys) == other.batch_exists(keys) == 0
    for one in (storage, other):
        assert one.batch_set_v1(keys, sglang.indices(pool, range(6))) == [True] * 6
        assert one.batch_exists(keys) == 6


# Hybrid models.


def hybrid(open_storage, **options):
    kv, state = sglang.MHATokenToKVPoolHost(), sglang.StatePoolHost(dtype="float32", pages=24)
    storage = open_storage(kv, **options)
    storage.register_mem_host_pool_v2(kv, "kv")
    storage.register_mem_host_pool_v2(state, "mamba")
    return storage, kv, state


def transfer(pool, keys, policy=sglang.PoolHitPolicy.TRAILING_PAGES):
    return sglang.PoolTransfer("mamba", sglang.indices(pool, range(len(keys))), list(keys), policy)


def test_a_state_pool_is_kept_exactly_whatever_the_recipe(open_storage):
    storage, kv, state = hybrid(open_storage, recipe="int8")
    state.kv[0][:] = np.random.default_rng(0).standard_normal(state.kv[0].shape)
    keys = sglang.hashes(5)
    assert storage.batch_set_v2([transfer(state, keys)]) == {"mamba": [True] * 5}
    reader, _, other = hybrid(open_storage, recipe="int8")
    asked = transfer(other, [*keys, *sglang.hashes(1, seed=2)])
    assert reader.batch_get_v2([asked]) == {"mamba": [True] * 5 + [False]}
    assert np.array_equal(state.kv[0][:, :5], other.kv[0][:, :5])
    assert state.kv[0][:, :5].any()


def test_hit_policies(open_storage):
    """States at the ends of pages 2, 3 and 5 of seven, K and V of the first six."""
    storage, kv, state = hybrid(open_storage)
    kv.fill()
    keys = sglang.hashes(7)
    assert storage.batch_set_v1(keys[:6], sglang.indices(kv, range(6))) == [True] * 6
    for page in (1, 2, 4):
        assert storage.batch_set_v2([transfer(state, [keys[page]])]) == {"mamba": [True]}
    one = storage.batch_exists_v2(keys, [transfer(state, keys[:1])])
    assert (one.kv_hit_pages, one.extra_pool_hit_pages) == (5, {"kv": 6, "mamba": 5})
    assert one.restorable_prefix_pages == [2, 3, 5]
    two = storage.batch_exists_v2(keys, [transfer(state, keys[:2])])
    assert (two.kv_hit_pages, two.restorable_prefix_pages) == (3, [3])
    every = storage.batch_exists_v2(keys, [transfer(state, keys, sglang.PoolHitPolicy.ALL_PAGES)])
    assert (every.kv_hit_pages, every.extra_pool_hit_pages) == (0, {"kv": 6})
    second_form = [transfer(state, keys, sglang.PoolHitPolicy.BLOCK_GROUPS)]
    assert storage.batch_exists_v2(keys, second_form).kv_hit_pages == 6
    assert storage.batch_exists_v2(keys, None).restorable_prefix_pages == [1, 2, 3, 4, 5, 6]


def test_a_pool_that_nobody_registered_is_a_miss(open_storage):
    storage, kv, state = hybrid(open_storage)
    unknown = sglang.PoolTransfer("swa", sglang.indices(kv, [0]), sglang.hashes(1))
    assert storage.batch_get_v2([unknown]) == {"swa": [False]}
    assert storage.batch_set_v2([unknown]) == {"swa": [False]}
    assert storage.batch_exists_v2(sglang.hashes(1), [unknown]).kv_hit_pages == 0


# Identity.


@pytest.mark.parametrize(
    "change",
    [
        {"model_name": "org/other"},
        {"tp_rank": 1},
        {"tp_size": 4},
        {"pp_rank": 1, "pp_size": 2},
        {"pp_size": 2},
        {"attn_cp_size": 2},
        {"attn_cp_rank": 1, "attn_cp_size": 2},
    ],
    ids=lambda change: "-".join(change),
)
def test_other_models_and_ranks_have_other_pages(open_storage, change):
    pool = sglang.MHATokenToKVPoolHost()
    _, keys = stored(pool, open_storage, config=sglang.Config(tp_size=2))
    assert open_storage(pool, config=sglang.Config(tp_size=2)).batch_exists(keys) == 6
    config = sglang.Config(**{"tp_size": 2, **change})
    assert open_storage(pool, config=config).batch_exists(keys) == 0


def test_a_revision_or_recipe_or_dtype_of_its_own_has_other_pages(open_storage):
    pool = sglang.MHATokenToKVPoolHost()
    _, keys = stored(pool, open_storage)
    assert open_storage(pool, revision="2").batch_exists(keys) == 0
    assert open_storage(pool, recipe="raw").batch_exists(keys) == 0
    assert open_storage(sglang.MHATokenToKVPoolHost(dtype="bfloat16")).batch_exists(keys) == 0
    assert open_storage(sglang.MHATokenToKVPoolHost(layers=4)).batch_exists(keys) == 0


def test_the_revision_that_sglang_was_told_is_one(open_storage, monkeypatch):
    pool, facts = sglang.MHATokenToKVPoolHost(), {"revision": "2"}
    monkeypatch.setattr("kvstow.sglang.identity._published", lambda: dict(facts))
    _, keys = stored(pool, open_storage, revision="")
    assert open_storage(pool, revision="2").batch_exists(keys) == 6
    assert open_storage(pool, revision="1").batch_exists(keys) == 0
    facts["revision"] = "3"
    assert open_storage(pool, revision="").batch_exists(keys) == 0


def test_ranks_of_an_mla_model_share_pages_but_not_states_or_mha_drafts(open_storage):
    pool, other = sglang.MLATokenToKVPoolHost(), sglang.MLATokenToKVPoolHost()
    state, draft = sglang.StatePoolHost(), sglang.MHATokenToKVPoolHost()
    ranks = []
    for rank, size in ((0, 2), (1, 2), (3, 8)):
        config = sglang.Config(is_mla_model=True, tp_rank=rank, tp_size=size)
        ranks.append(open_storage(pool if not rank else other, config=config))
        for name, side in (("mamba", state), ("draft", draft)):
            ranks[-1].register_mem_host_pool_v2(side, name)
    pool.fill()
    keys = sglang.hashes(3)
    assert ranks[0].batch_set_v1(keys, sglang.indices(pool, range(3))) == [True] * 3
    for rank in ranks[1:]:
        assert rank.batch_get_v1(keys, sglang.indices(other, range(3))) == [True] * 3
    for name, side in (("mamba", state), ("draft", draft)):
        some = [sglang.PoolTransfer(name, sglang.indices(side, range(3)), keys)]
        assert ranks[0].batch_set_v2(some) == {name: [True] * 3}
        assert ranks[1].batch_get_v2(some) == {name: [False] * 3}


def test_keys_are_sglangs_hashes(server, open_storage):
    pool = sglang.MHATokenToKVPoolHost()
    storage, keys = stored(pool, open_storage, recipe="raw")
    with kvstow.Client(server.address) as client:
        space = client.find_space(storage._stores["kv"]._space.name)
        assert space.lookup([bytes.fromhex(key) for key in keys]).pages == 6
        assert (space.spec.layers, space.spec.kv_heads, space.spec.page_tokens) == (3, 2, 16)
    assert storage.batch_set_v1(["no hash " * 20], sglang.indices(pool, [0])) == [True]
    assert storage.batch_exists(["no hash " * 20]) == 1


def statistics_of(storage):
    """Of a model whose every channel costs the same, in the shape of the storage's K and V."""
    spec = storage._stores["kv"]._space.spec
    shape = (spec.layers, spec.kv_heads, spec.head_dim, spec.head_dim)
    cost = np.broadcast_to(np.eye(spec.head_dim), shape)
    return kvstow.model_statistics(spec, cost, cost)


def test_a_file_of_statistics_goes_to_a_space_of_recipe_auto(open_storage, tmp_path, caplog):
    pool, path = sglang.MHATokenToKVPoolHost(), tmp_path / "model.kvstats"
    storage = open_storage(pool, recipe="auto", statistics=str(path))
    space = storage._stores["kv"]._space
    assert space.ready() and space.wants_statistics
    path.write_bytes(statistics_of(storage))
    save_two(storage, pool)
    assert not caplog.records
    again = open_storage(sglang.MHATokenToKVPoolHost(), recipe="auto")._stores["kv"]._space
    assert again.ready() and not again.wants_statistics


def test_a_file_that_is_no_statistics_is_named_once(open_storage, tmp_path, caplog):
    pool, path = sglang.MHATokenToKVPoolHost(), tmp_path / "model.kvstats"
    storage = open_storage(pool, recipe="auto", statistics=str(path))
    save_two(storage, pool)
    save_two(storage, pool, first=2)
    (record,) = caplog.records
    assert re.search(f"statistics: .*No such file.*{path}", record.getMessage())


def test_statistics_are_sent_again_where_the_server_did_not_answer(
    open_storage, tmp_path, monkeypatch, caplog
):
    pool, path = sglang.MHATokenToKVPoolHost(), tmp_path / "model.kvstats"
    storage = open_storage(pool, recipe="auto", statistics=str(path))
    space = storage._stores["kv"]._space
    assert space.ready()
    path.write_bytes(statistics_of(storage))
    native = storage._link.pages._native
    answers = ["DEADLINE_EXCEEDED", "FAILED_PRECONDITION"]

    class Silent:
        def __getattr__(self, name):
            return getattr(native, name)

        def send_statistics(self, *_):
            return answers.pop(0), "said"

    storage._link.pages._native = Silent()
    save_two(storage, pool)
    assert space.wants_statistics and storage.counts["unavailable"] == 1
    assert storage._link.quiet, "the next saves do not wait for it"
    monkeypatch.setattr(storage._link._quiet, "_until", 0.0)
    save_two(storage, pool, first=2)
    assert not space.wants_statistics and not answers, "that is its answer"
    save_two(storage, pool, first=4)
    for code in ("DEADLINE_EXCEEDED", "FAILED_PRECONDITION"):
        assert f"{code}: said" in caplog.text
    storage._link.pages._native = native
    space.wants_statistics = True
    save_two(storage, pool, first=6)
    assert not space.wants_statistics and space.message.startswith("FAILED_PRECONDITION")


def test_auto_is_told_of_keys_that_pass_a_norm(open_storage, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    config = sglang.Config(model_name=str(tmp_path))
    storage = open_storage(sglang.MHATokenToKVPoolHost(), config=config, recipe="auto")
    space = storage._stores["kv"]._space
    assert space.ready() and space.recipe == "auto" and "keys=2" in space.pipeline


# Bad input: an error that names it when SGLang starts, or a miss.


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"adress": "x"}, "adress.*no option.*address"),
        ({"recipe": 8}, "recipe"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"buffer_bytes": 1.5}, "buffer_bytes"),
        ({"fidelity": "sparse"}, "fidelity"),
        ({"space": ""}, "space"),
        ({"recipe": "int9"}, "int9"),
        ({"recipe": "keydiff(keep=0.5)|int8"}, "drops tokens"),
        ({"recipe": "int8", "fidelity": "exact"}, "int8|exact"),
    ],
)
def test_wrong_options_are_named(open_storage, options, named):
    with pytest.raises(ValueError, match=named):
        open_storage(sglang.MHATokenToKVPoolHost(), **options)


def test_a_lossy_recipe_for_a_pool_of_unknown_layout_is_refused_by_name(open_storage):
    for pool in (sglang.StatePoolHost(), sglang.MHATokenToKVPoolHost(dtype="uint8")):
        with pytest.raises(ValueError, match=f"recipe: 'int8'.*{type(pool).__name__}"):
            open_storage(pool, recipe="int8")
        assert open_storage(pool).batch_exists(sglang.hashes(1)) == 0


def test_a_layout_without_pages_is_refused_by_name(open_storage):
    pool = sglang.MHATokenToKVPoolHost()
    pool.layout = "page_unified"
    with pytest.raises(ValueError, match="layout: 'page_unified'.*page_first"):
        open_storage(pool)
    pool = sglang.AsymmetricMHATokenToKVPoolHost(dtype="uint8")
    with pytest.raises(ValueError, match="AsymmetricMHATokenToKVPoolHost.*uint8.*flat pages"):
        open_storage(pool)


def test_an_engine_that_names_no_model_is_refused(open_storage):
    with pytest.raises(ValueError, match="model_name"):
        open_storage(config=sglang.Config(model_name=None))


def test_a_folder_without_weights_needs_a_revision(open_storage, tmp_path, caplog):
    """As where the weights come from S3: nothing tells them from others."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    pool, keys = sglang.MHATokenToKVPoolHost(), sglang.hashes(2)
    where = sglang.indices(pool, range(2))
    for name in (str(tmp_path), "s3://bucket/model", "org/not-on-this-host"):
        storage = open_storage(pool, config=sglang.Config(model_name=name), revision="")
        assert "caches nothing" in caplog.text and "name a 'revision'" in caplog.text
        caplog.clear()
        assert storage.batch_set_v1(keys, where) == storage.batch_get_v1(keys, where) == [False] * 2
        assert storage.batch_exists(keys) == 0 and not storage.counts and not caplog.records
        storage.clear()
    storage = open_storage(pool, config=sglang.Config(model_name=str(tmp_path)), revision="1")
    assert storage.batch_set_v1(keys, where) == [True] * 2
    assert storage.batch_get_v1(keys, where) == [True] * 2


@pytest.mark.parametrize(
    "config",
    [
        '{"rope_scaling": {"type": "longrope"}}',
        '{"text_config": {"rope_parameters": {"rope_type": "longrope"}}}',
    ],
)
def test_longrope_is_refused_as_prompts_change_each_others_k(open_storage, tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(ValueError, match=f"{tmp_path} has LongRoPE"):
        open_storage(config=sglang.Config(model_name=str(tmp_path)), revision="1")


def test_overrides_may_bring_longrope_and_take_it_away(open_storage, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"rope_scaling": null}')
    facts = {"model_path": str(tmp_path)}
    monkeypatch.setattr("kvstow.sglang.identity._published", lambda: dict(facts))
    open_storage(revision="1")
    facts["json_model_override_args"] = '{"rope_scaling": {"type": "longrope"}}'
    with pytest.raises(ValueError, match="has LongRoPE"):
        open_storage(revision="1")
    (tmp_path / "config.json").write_text('{"rope_scaling": {"type": "longrope"}}')
    facts["json_model_override_args"] = '{"rope_scaling": null}'
    open_storage(revision="1")


def test_another_models_space_is_refused(server, open_storage, monkeypatch):
    pool = sglang.MHATokenToKVPoolHost()
    storage, _ = stored(pool, open_storage)
    name = storage._stores["kv"]._space.name
    monkeypatch.setattr("kvstow.sglang.space_of", lambda *_: (name, kvstow.KvSpec(
        model="another", layers=1, kv_heads=1, head_dim=64, dtype="float16", page_tokens=16)))
    with pytest.raises(kvstow.SpaceMismatch):
        open_storage(sglang.MHATokenToKVPoolHost())


def test_wrong_memory_is_a_miss(open_storage):
    pool = sglang.MHATokenToKVPoolHost()
    storage, keys = stored(pool, open_storage)
    assert storage.batch_get_v1(keys, sglang.indices(pool, range(5))) == [False] * 6
    assert storage.batch_set_v1(keys, None) == [False] * 6
    short, page = pool.get_data_page(0), pool.get_dummy_flat_data_page()
    short.array = short.array[1:]
    assert storage.batch_get(keys[:2], [page, short]) == [None, None]
    assert not storage.batch_set(keys[:1], [short])
    page.array = np.repeat(page.array, 2)[::2]
    assert storage.get(keys[0], page) is None
    page.device.type = "cuda"
    assert storage.get(keys[0], page) is None
    assert storage.get(keys[0]) is None and storage.batch_get(keys) == [None] * 6
    assert not storage.set(keys[0]) and not storage.batch_set(keys)
    assert storage.counts["errors"] == 10
    assert storage.batch_get_v1(keys, sglang.indices(pool, range(6))) == [True] * 6


# Failures.


def misses(storage, pool, keys):
    """Every call, of which none finds or stores anything."""
    where = sglang.indices(pool, range(len(keys)))
    none = [False] * len(keys)
    assert storage.batch_exists(keys) == 0
    assert storage.batch_exists_v2(keys).kv_hit_pages == 0
    assert storage.batch_get_v1(keys, where) == none
    assert storage.batch_set_v1(keys, where) == none
    some = [sglang.PoolTransfer("kv", where, keys)]
    assert storage.batch_get_v2(some) == storage.batch_set_v2(some) == {"kv": none}
    assert storage.get(keys[0], pool.get_dummy_flat_data_page()) is None
    assert storage.batch_set(keys[:1], [pool.get_data_page(0)]) is False
    assert storage.exists(keys[0]) is False


def test_a_closed_backend_is_a_miss(open_storage):
    pool = sglang.MHATokenToKVPoolHost()
    storage, keys = stored(pool, open_storage)
    storage.close()
    misses(storage, pool, keys)
    with pytest.raises(RuntimeError, match="old pages"):
        storage.clear()


def test_a_dead_server_is_a_miss_and_found_again(own_server, monkeypatch):
    monkeypatch.setattr("kvstow.quiet.Quiet.seconds", 0.5)
    own_server.kill()
    pool, keys = sglang.MHATokenToKVPoolHost(), sglang.hashes(6)
    pool.fill()
    storage = storage_of(own_server.address, pool)
    misses(storage, pool, keys)
    own_server.start()
    where = sglang.indices(pool, range(6))
    end = time.monotonic() + 60
    while storage.batch_set_v1(keys, where) != [True] * 6:
        assert time.monotonic() < end, storage.counts
        time.sleep(0.05)
    assert storage.batch_exists(keys) == 6
    own_server.kill()
    misses(storage, pool, keys)
    storage.close()


def test_a_frozen_server_is_a_miss_within_the_timeouts_and_then_at_once(own_server):
    pool = sglang.MHATokenToKVPoolHost()
    pool.fill()
    storage = storage_of(own_server.address, pool, timeout=1.0, lookup_timeout=0.5)
    keys, where = sglang.hashes(6), sglang.indices(pool, range(6))
    assert storage.batch_set_v1(keys, where) == [True] * 6
    own_server.send_signal(signal.SIGSTOP)
    assert storage.batch_get_v1(keys, where) == [False] * 6
    assert storage.counts["unavailable"] == 1
    misses(storage, pool, keys)
    assert storage.counts["unavailable"] == 1  # it was left alone
    own_server.send_signal(signal.SIGCONT)
    end = time.monotonic() + 60
    while storage.batch_get_v1(keys, where) != [True] * 6:
        assert time.monotonic() < end, storage.counts
        time.sleep(0.05)
    storage.close()


@pytest.mark.parametrize("known", [True, False])
def test_a_slow_server_gets_no_transfer_after_the_timeout(open_storage, monkeypatch, known):
    """Also where a call is more than fits the buffer, and each transfer is within the timeout."""
    storage, kv, state = hybrid(open_storage, timeout=5.0, buffer_bytes=1)  # one page at a time
    pool, name = (kv, "kv") if known else (state, "mamba")
    space = storage._stores[name]._space
    now, get, put = [100.0], space.get, space.put

    def after_two_seconds(call):
        def run(*arguments):
            now[0] += 2
            return call(*arguments)

        return run

    for module in ("kvstow.sglang.time", "kvstow.sglang.store.time"):
        clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
        monkeypatch.setattr(module, clock)
    monkeypatch.setattr(space, "get", after_two_seconds(get))
    monkeypatch.setattr(space, "put", after_two_seconds(put))
    keys, where = sglang.hashes(6), sglang.indices(pool, range(6))
    some = [sglang.PoolTransfer(name, where, keys)]
    assert storage.batch_set_v2(some) == {name: [True] * 3 + [False] * 3}
    assert storage.batch_set_v2(some) == {name: [True] * 6}, "they go on where they were"
    assert storage.batch_get_v2(some) == {name: [True] * 3 + [False] * 3}


class Deaf:
    """A native client whose server does not hear of spaces to drop."""

    def __init__(self, native):
        self.native, self.asked = native, []

    def __getattr__(self, name):
        return getattr(self.native, name)

    def drop_space(self, name):
        self.asked.append(name)
        return "DEADLINE_EXCEEDED", "no answer", None


def test_pages_that_the_server_did_not_forget_are_misses(open_storage, monkeypatch):
    monkeypatch.setattr("kvstow.quiet.Quiet.seconds", 0.0)
    storage, kv, state = hybrid(open_storage)
    kv.fill()
    keys, where = sglang.hashes(3), sglang.indices(kv, range(3))
    assert storage.batch_set_v1(keys, where) == [True] * 3
    assert storage.batch_set_v2([transfer(state, keys)]) == {"mamba": [True] * 3}
    questions = storage._link.questions
    questions._native = deaf = Deaf(questions._native)
    with pytest.raises(RuntimeError, match="clear again.*DEADLINE_EXCEEDED: no answer"):
        storage.clear()
    assert len(set(deaf.asked)) == 2  # the space of each pool
    misses(storage, kv, keys)
    assert storage.batch_get_v2([transfer(state, keys)]) == {"mamba": [False] * 3}
    questions._native = deaf.native  # it answers again: the next call drops the pages first
    assert storage.batch_get_v1(keys, where) == [False] * 3
    assert storage.batch_get_v2([transfer(state, keys)]) == {"mamba": [False] * 3}
    assert open_storage(kv).batch_exists(keys) == 0
    assert storage.batch_set_v1(keys, where) == [True] * 3
    assert storage.batch_get_v1(keys, where) == [True] * 3
    storage.clear()
    assert storage.batch_exists(keys) == 0


def test_clear_tries_a_server_that_is_left_alone(own_server):
    pool = sglang.MHATokenToKVPoolHost()
    storage = storage_of(own_server.address, pool, lookup_timeout=0.5)
    keys, where = sglang.hashes(2), sglang.indices(pool, range(2))
    assert storage.batch_set_v1(keys, where) == [True] * 2
    own_server.send_signal(signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="old pages"):
        storage.clear()
    own_server.send_signal(signal.SIGCONT)
    assert storage._link.quiet and storage.batch_get_v1(keys, where) == [False] * 2
    end = time.monotonic() + 60
    while True:
        try:
            storage.clear()
            break
        except RuntimeError:
            assert time.monotonic() < end
    assert storage.batch_exists(keys) == 0
    storage.close()


def test_metrics_name_their_import(open_storage):
    """Without SGLang's metrics there are none, and nothing grows."""
    pool = sglang.MHATokenToKVPoolHost()
    storage, _ = stored(pool, open_storage)
    assert storage.get_stats() is None and not storage._metrics

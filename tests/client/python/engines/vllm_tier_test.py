"""KvstowTier on vLLM's own base class, with vLLM's managers and a real kvstowd, without a GPU."""

import importlib.util
import signal
import threading
import time
import types

import kvstow
import numpy as np
import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed in this environment", allow_module_level=True)

from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingKVEventsConfig,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import TransferJob

LAYERS, HEADS, HEAD_DIM, BLOCK = 2, 2, 64, 16
WORKER_BYTES = LAYERS * BLOCK * HEADS * 2 * HEAD_DIM * 2  # bfloat16
ROWS = 12
STEP = ScheduleEndContext(new_req_ids=[], preempted_req_ids=())
SECONDS = 60.0


def config(dtype="bfloat16", groups=1, tp=1, extra=None, events=False, **more):
    parallel = {"tp_size": tp, "pp_size": 1, "pcp_size": 1, "dcp_size": 1, "rank": 0}
    return OffloadingConfig(
        groups=tuple(
            OffloadingGroupConfig(BLOCK, tuple(f"layer.{g}.{i}" for i in range(LAYERS)), g)
            for g in range(groups)
        ),
        worker_kv_bytes_per_block=WORKER_BYTES // tp,
        enable_kv_cache_events=events,
        extra_config=extra or {},
        engine_id=f"kvstow-{time.monotonic_ns()}",
        model=OffloadingModelConfig(name="test/model", dtype=dtype),
        cache=OffloadingCacheConfig(tokens_per_hash=BLOCK, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            world_size=tp,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
            **parallel,
        ),
        **more,
    )


def spec(**options):
    """What a tier reads of an OffloadingSpec."""
    found = config(**options)
    return types.SimpleNamespace(
        config=found,
        blocks_per_chunk=1,
        replicated_layout=False,
        kv_events_config=OffloadingKVEventsConfig(found.enable_kv_cache_events, False),
    )


def keys(first, count, group=0):
    return [make_offload_key(bytes([n]) * 32, group) for n in range(first, first + count)]


class Tier:
    """A tier over rows of its own, and what vLLM's manager does with it."""

    def __init__(self, address, of=None, row_bytes=WORKER_BYTES, rows=ROWS, **options):
        from kvstow.vllm.tier import KvstowTier

        self.rows = np.zeros((rows, row_bytes), np.int8)
        self.view = memoryview(self.rows)
        options = {"revision": "1", "timeout": 2.0} | options
        self.tier = KvstowTier(of or spec(), self.view, "kvstow", address=address, **options)
        self.jobs = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tier.shutdown()
        self.view.release()  # raises where the tier still holds a row

    def fill(self, row, seed):
        random = np.random.default_rng(seed).standard_normal(self.rows.shape[1] // 2)
        bits = (random.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        self.rows[row] = bits.view(np.int8)

    def values(self, row):
        bits = self.rows[row].view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32)

    def job(self, names, rows, loads, request="r"):
        self.jobs += 1
        context = ReqContext(req_id=request)
        numbers = np.array(rows, np.int32)
        job = TransferJob(self.jobs, names, numbers, is_promotion=loads, req_context=context)
        (self.tier.submit_load if loads else self.tier.submit_store)(job)
        return self.jobs

    def finished(self, jobs=1):
        found = []
        end = time.monotonic() + SECONDS
        while len(found) < jobs:
            found += self.tier.get_finished_jobs()
            assert time.monotonic() < end, "a job does not end"
            time.sleep(0.001)
        return found

    def store(self, names, rows):
        self.job(names, rows, False)
        (result,) = self.finished()
        return result

    def load(self, names, rows, request="r"):
        self.job(names, rows, True, request)
        (result,) = self.finished()
        return result

    def until(self, ready):
        """Waits for it; a tier that was left alone asks again at once."""
        end = time.monotonic() + SECONDS
        while not ready():
            assert time.monotonic() < end
            self.tier._quiet.end()
            time.sleep(0.05)

    def look(self, names, context=None):
        """What a request finds; one of its own, which then ends, or that of the context."""
        asks = context or ReqContext(req_id=f"look-{time.monotonic_ns()}")
        end = time.monotonic() + SECONDS
        while LookupResult.RETRY in (found := [self.tier.lookup(n, asks) for n in names]):
            self.tier.on_schedule_end(STEP)
            assert time.monotonic() < end, "a lookup does not end"
            time.sleep(0.001)
        if context is None:
            self.tier.on_request_finished(asks)
        return found


HIT, MISS = LookupResult.HIT, LookupResult.MISS


def test_rows_come_back_as_they_were_in_another_process_of_the_same_model(server):
    with Tier(server.address, space="same") as one, Tier(server.address, space="same") as other:
        for row in range(4):
            one.fill(row, row)
        names = keys(0, 4)
        assert one.look(names) == [MISS] * 4
        stored = one.store(names, [0, 1, 2, 3])
        assert stored.success and stored.transfer_bytes == 4 * WORKER_BYTES
        assert other.look(names) == [HIT] * 4
        assert other.load(names, [7, 6, 5, 4]).success
        assert np.array_equal(other.rows[[7, 6, 5, 4]], one.rows[:4])
    with Tier(server.address, space="same", revision="2") as stranger:
        assert stranger.look(names) == [MISS] * 4


def test_int8_rows_are_half_as_large_and_near(server):
    options = {"space": "int8", "recipe": "int8", "head_dim": HEAD_DIM}
    padded = WORKER_BYTES + 4096
    with Tier(server.address, row_bytes=padded, **options) as tier:
        tier.fill(0, 1)
        assert tier.store(keys(0, 1), [0]).success
        assert tier.load(keys(0, 1), [1]).success
        sent, got = (tier.values(row)[: WORKER_BYTES // 2] for row in (0, 1))
        error = np.linalg.norm(got - sent) / np.linalg.norm(sent)
        assert 0 < error < 0.02
        assert not tier.rows[1][WORKER_BYTES:].any()  # the padding does not travel
        stats = tier.tier.get_stats().reduce()
        name = "vllm:kvstow_tier_saved_bytes:('kvstow',)"
        assert stats[name] < 0.6 * WORKER_BYTES
        assert set(stats) <= {f"{m}:('kvstow',)" for m in tier.tier.build_metric_definitions({})}
        assert tier.tier.get_stats() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "kvstow", "head_dim": 64}, "recipe: 'kvstow' needs to know layers"),
        ({"recipe": "hot=int8,cold=kvstow"}, "recipe: 'hot=int8,cold=kvstow'"),
        ({"recipe": "int8"}, "head_dim: 'int8' needs it"),
        ({"recipe": "int8", "head_dim": 96}, "head_dim: 96 does not divide"),
        ({"recipe": "int8", "head_dim": 64, "of": spec(groups=2)}, "2 KV cache groups"),
        ({"recipe": "int8", "head_dim": 64, "of": spec(dtype="fp8_e4m3")}, "dtype fp8_e4m3"),
        ({"revision": ""}, "revision: vLLM does not tell"),
        ({"timeout": 0}, "timeout: 0"),
        ({"space": ""}, "space: ''"),
        ({"locality": "near"}, "near"),
        ({"row_bytes": 4096 * 4099}, "kv_heads"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        Tier("127.0.0.1:1", rows=1, **options)


def test_longrope_is_refused_as_a_tier_does_not_hear_of_the_length(tmp_path, monkeypatch):
    from kvstow.vllm import identity

    monkeypatch.setattr(identity, "HF_HUB_CACHE", str(tmp_path))
    snapshots = tmp_path / "models--test--model" / "snapshots"
    for commit, kind in (("c1", "linear"), ("c2", "su")):
        Tier("127.0.0.1:1", rows=1).__exit__()
        (snapshots / commit).mkdir(parents=True)
        (snapshots / commit / "config.json").write_text('{"rope_scaling": {"type": "%s"}}' % kind)
    with pytest.raises(ValueError, match="test/model has LongRoPE.*max-model-len"):
        Tier("127.0.0.1:1", rows=1)


def test_rows_of_other_dtypes_and_groups_are_stored_as_bytes(server):
    for of in (spec(dtype="fp8_e4m3"), spec(dtype="float32"), spec(groups=2)):
        with Tier(server.address, of=of, space="bytes") as tier:
            tier.rows[0] = np.arange(WORKER_BYTES, dtype=np.int64).astype(np.int8)
            assert tier.store(keys(0, 1), [0]).success
            assert tier.load(keys(0, 1), [1]).success
            assert np.array_equal(tier.rows[0], tier.rows[1])


def test_a_partial_load_keeps_what_came_and_asks_no_more_for_the_rest(server):
    with Tier(server.address, space="partial") as tier:
        names = keys(0, 3)
        for row in range(3):
            tier.fill(row, row)
        assert tier.store(names[:2], [0, 1]).success
        context = ReqContext(req_id="r")
        assert tier.look(names[:2], context) == [HIT, HIT]
        result = tier.load([*names[:2], names[2]], [4, 5, 6])
        assert not result.success and set(result.successful_keys) == set(names[:2])
        assert np.array_equal(tier.rows[[4, 5]], tier.rows[[0, 1]])
        tier.tier._pages.delete(names[:2], force=True)
        assert not tier.load(names[:2], [4, 5]).success
        assert [tier.tier.lookup(name, context) for name in names[:2]] == [MISS, MISS]
        tier.tier.on_request_finished(context)
        assert tier.store(names[:2], [0, 1]).success
        assert tier.look(names[:2]) == [HIT, HIT]


def test_a_sliding_window_is_found_behind_gaps_within_what_full_attention_has(server):
    with Tier(server.address, of=spec(groups=2), space="window") as tier:
        full, window = keys(0, 6), keys(0, 6, group=1)
        assert tier.store([*full[:4], window[1], window[2], window[5]], range(7)).success
        context = ReqContext(req_id="r")
        for place in range(6):
            for name in (full[place], window[place]):
                context.set_offload_key_position(name, (place + 1) * BLOCK)
        found = tier.look([*full, *reversed(window)], context)
        assert found[:6] == [HIT] * 4 + [MISS] * 2
        assert found[6:] == [MISS, MISS, MISS, HIT, HIT, MISS]


def test_calls_of_the_scheduler_never_wait_for_a_frozen_server(own_server):
    with Tier(own_server.address, space="frozen", lookup_timeout=0.5) as tier:
        names = keys(0, 2)
        assert tier.store(names, [0, 1]).success
        own_server.send_signal(signal.SIGSTOP)
        asked = ReqContext(req_id="a")
        assert tier.tier.lookup(names[0], asked) is LookupResult.RETRY
        tier.tier.on_schedule_end(STEP)
        for _ in range(8):
            tier.job(names, [2, 3], True)
            tier.job(keys(2, 2), [0, 1], False)
        # A caller that waited for the server would have given up by now.
        assert not list(tier.tier.get_finished_jobs())
        assert tier.tier.lookup(names[0], asked) is LookupResult.RETRY
        results = tier.finished(16)
        assert not any(result.success or result.successful_keys for result in results)
        tier.tier.on_request_finished(asked)
        assert tier.look(names) == [MISS, MISS]  # it is left alone
        own_server.send_signal(signal.SIGCONT)
        tier.until(lambda: tier.look(names) == [HIT, HIT])


def test_a_dead_server_is_a_miss_and_comes_back(own_server):
    own_server.kill()
    with Tier(own_server.address, space="dead") as tier:
        names = keys(0, 1)
        assert tier.look(names) == [MISS]
        assert not tier.store(names, [0]).success
        assert not tier.load(names, [1]).success
        own_server.start()
        tier.until(lambda: tier.store(names, [0]).success)
        tier.until(lambda: tier.look(names) == [HIT])


def test_a_server_that_refuses_the_space_is_asked_no_more(server):
    with kvstow.Client(server.address) as client:
        other = kvstow.KvSpec(
            model="x", layers=1, kv_heads=1, head_dim=32, dtype="float16", page_tokens=16
        )
        with Tier(server.address, space="refused") as tier:
            client.open_space(tier.tier._pages.name, other, recipe="raw")
            assert not tier.store(keys(0, 1), [0]).success
            assert tier.look(keys(0, 1)) == [MISS]
            assert tier.tier._left_alone()


def test_a_row_that_is_not_there_fails_its_job(server):
    with Tier(server.address, space="outside") as tier:
        assert not tier.store(keys(0, 1), [ROWS]).success
        assert not tier.load(keys(0, 1), [ROWS]).success


def test_stored_chunks_are_published_where_vllm_publishes_events(server):
    quiet = {"space": "events", "enable_kv_events": True}
    with Tier(server.address, **quiet) as tier:
        assert tier.store(keys(0, 1), [0]).success
        assert list(tier.tier.take_events()) == []
    loud = quiet | {"of": spec(events=True), "locality": "REMOTE"}
    with Tier(server.address, **loud) as tier:
        names = keys(1, 2)
        assert tier.store(names, [0, 1]).success
        assert tier.load(names, [2, 3]).success
        (event,) = tier.tier.take_events()
        assert (event.keys, event.medium, event.removed) == (names, Medium.STORAGE, False)
        assert event.locality is Locality.REMOTE
        assert list(tier.tier.take_events()) == []


def test_drain_and_shutdown_leave_no_row_in_use(server):
    with Tier(server.address, space="drain") as tier:
        for number in range(10):
            tier.job(keys(number, 1), [number], False)
        tier.tier.drain_jobs()
        assert len(tier.finished(10)) == 10
        for number in range(10):
            tier.job(keys(number, 1), [number], True)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("kvstow_")], names


# With vLLM's own managers.


class Manager:
    """TieringOffloadingSpec's manager: a CPU tier over shared memory, and KvstowTier behind it."""

    def __init__(self, address, rows=ROWS):
        from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

        tier = {"type": "KvstowTier", "module_path": "kvstow.vllm.tier", "address": address}
        tier |= {"revision": "1", "space": "manager"}
        extra = {"cpu_bytes_to_use": rows * WORKER_BYTES, "secondary_tiers": [tier]}
        self.metrics = TieringOffloadingSpec.build_metric_definitions(extra)
        self.manager = TieringOffloadingSpec(config(extra=extra)).get_manager()
        self.rows = np.asarray(self.manager.primary_tier.get_kv_memoryview())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.rows = None
        self.manager.shutdown()

    def until(self, ready):
        end = time.monotonic() + SECONDS
        while not ready():
            self.manager.on_schedule_end(STEP)
            assert time.monotonic() < end, "it does not end"
            time.sleep(0.001)

    def store(self, names, seed, context):
        """A GPU gives chunks; returns their bytes."""
        output = self.manager.prepare_store(names, context)
        chunks = output.store_spec.chunk_ids
        random = np.random.default_rng(seed).integers(-128, 128, (len(chunks), WORKER_BYTES))
        self.rows[chunks] = random.astype(np.int8)
        self.manager.complete_store(names, context)
        self.until(lambda: not self.manager.has_pending_work())
        return random.astype(np.int8)

    def load(self, names, context):
        """What a GPU gets; None where a chunk is not found."""
        found = []

        def ready():
            found[:] = [self.manager.lookup(name, context) for name in names]
            return set(found) <= {HIT, MISS}

        self.until(ready)
        if MISS in found:
            return None
        chunks = self.manager.prepare_load(names, context).chunk_ids
        rows = self.rows[chunks].copy()
        self.manager.complete_load(names, context)
        return rows


def test_chunks_that_left_host_memory_come_back_from_kvstow(server):
    with Manager(server.address) as one:
        assert "vllm:kvstow_tier_saved_bytes" in one.metrics
        first, second = ReqContext(req_id="1"), ReqContext(req_id="2")
        one.manager.on_new_request(first)
        one.manager.on_new_request(second)
        kept = one.store(keys(0, 8), 0, first)
        one.store(keys(100, 8), 1, second)  # 16 chunks do not fit into 12
        assert np.array_equal(one.load(keys(0, 8), second), kept)
        stats = one.manager.get_stats().reduce()
        assert stats["vllm:kvstow_tier_loaded_bytes:('KvstowTier',)"] > 0
        one.manager.on_request_finished(first)
        one.manager.on_request_finished(second)
        one.manager.reset_cache()
    with Manager(server.address) as other:
        third = ReqContext(req_id="3")
        other.manager.on_new_request(third)
        assert np.array_equal(other.load(keys(0, 8), third), kept)
        assert other.load(keys(200, 2), third) is None


def test_a_server_that_dies_between_lookup_and_load_is_a_miss_in_the_manager(own_server):
    with Manager(own_server.address) as one:
        first = ReqContext(req_id="1")
        one.manager.on_new_request(first)
        one.store(keys(0, 4), 0, first)
        one.manager.reset_cache()
        second = ReqContext(req_id="2")
        one.manager.on_new_request(second)
        wanted = keys(0, 4)
        one.until(
            lambda: (
                {one.manager.lookup(key, second) for key in wanted} == {LookupResult.HIT_PENDING}
            )
        )
        own_server.kill()
        assert one.load(wanted, second) is None


# With the real engine. Only the copies between GPU and host memory are replaced.


def test_an_engine_starts_from_chunks_that_another_one_offloaded(server):
    from smollm2 import save_smollm2
    from vllm_engine import engine, prompt

    try:
        save_smollm2()
    except FileNotFoundError as error:
        pytest.skip(f"the test model is not here: {error}")
    prompts = [prompt(i, "tier") for i in range(4)]
    tier = {"type": "KvstowTier", "module_path": "kvstow.vllm.tier", "address": server.address}
    config = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "HostTieringSpec",
            "spec_module_path": "vllm_host_offload",
            "cpu_bytes_to_use": 256 << 20,
            "secondary_tiers": [tier | {"space": f"engine-{time.monotonic_ns()}"[:40]}],
        },
    }
    with engine("") as plain:
        right = plain.generate(prompts).tokens
    with engine("", kv_transfer_config=config) as one:
        assert one.generate(prompts).tokens == right
        assert one.generate([prompt(5, "more")]).tokens  # steps, so that chunks go on to the tier
    with engine("", kv_transfer_config=config) as other:
        again = other.generate(prompts)
        assert again.tokens == right
        assert min(again.cached) >= 256, again.cached

"""The vLLM connector with the real engine on the CPU, and the arithmetic of its halves without."""

import collections
import contextlib
import importlib.util
import os
import queue
import re
import signal
import threading
import time
from types import SimpleNamespace

import kvstow
import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed in this environment", allow_module_level=True)

from smollm2 import save_smollm2
from vllm_engine import TIMEOUT, engine, prompt

RECOVERED = "Recovered from KV load failure"
PROMPTS = [prompt(i) for i in range(6)]


@pytest.fixture(scope="module")
def model():
    try:
        save_smollm2()
    except FileNotFoundError as error:
        pytest.skip(f"the test model is not here: {error}")


@pytest.fixture(scope="module")
def plain(model):
    """An engine without the connector: its tokens are right."""
    with engine("") as plain:
        yield plain


@pytest.fixture(scope="module")
def right(plain):
    """The tokens of PROMPTS."""
    return plain.generate(PROMPTS).tokens


def test_pages_of_chunked_prefills_serve_this_and_other_engines(right):
    with kvstow.Server() as server:
        with engine(server.address, max_num_batched_tokens=256) as first:
            assert first.generate(PROMPTS).tokens == right
            time.sleep(1)  # saves end in the background
            first.call("reset")
            again = first.generate(PROMPTS)
            assert again.tokens == right
            assert min(again.cached) >= 256, again.cached
            first.call("reset", True)  # as after new weights: all pages are forgotten
            other = first.generate(PROMPTS[:2])
            assert other.tokens == right[:2]
            assert other.cached[0] == 0, other.cached
        with engine(server.address, in_process=False) as second:
            shared = second.generate(PROMPTS)
            assert shared.tokens == right
            assert min(shared.cached) >= 256, shared.cached
            half = second.generate([PROMPTS[0][: len(PROMPTS[0]) // 2]])
            assert half.cached[0] > 0


def test_preempted_requests_end_with_the_same_tokens(plain):
    prompts = [prompt(i, "x") for i in range(5)]
    right = plain.generate(prompts, 40).tokens
    # 38 blocks of 32 tokens hold three prompts, but not their answers.
    pool = {"num_gpu_blocks_override": 38, "max_model_len": 1024}
    with kvstow.Server() as server, engine(server.address, **pool) as small:
        first = small.generate(prompts, 40)
        assert first.preemptions > 0
        assert first.tokens == right
        time.sleep(1)
        small.call("reset")
        again = small.generate(prompts, 40)
        assert again.tokens == right
        assert again.preemptions > first.preemptions
        assert max(again.cached) > 0


def test_dead_frozen_and_lossy_servers_leave_the_tokens_right(right):
    """One engine meets them all, one after the other."""
    with kvstow.Server() as server, engine(server.address) as faulty:
        faulty.generate(PROMPTS)
        time.sleep(1)
        faulty.call("lose_page", 2)
        faulty.call("reset")
        lossy = faulty.generate(PROMPTS)
        assert lossy.tokens == right
        recoveries = faulty.said().count(RECOVERED)
        assert recoveries > 0
        faulty.call("lose_page", 10**6)

        server.send_signal(signal.SIGSTOP)  # before the lookup
        faulty.call("reset")
        frozen = faulty.generate(PROMPTS[:3])
        assert frozen.tokens == right[:3]
        assert frozen.cached[0] == 0
        server.send_signal(signal.SIGCONT)
        time.sleep(6)  # the connector asks again after some seconds

        faulty.call("send_at", server.pid, signal.SIGSTOP, "_fetch")  # between lookup and load
        faulty.call("reset")
        late = faulty.generate(PROMPTS[:3])
        assert late.tokens == right[:3]
        assert faulty.said().count(RECOVERED) > recoveries
        assert late.seconds < TIMEOUT + 3 * frozen.seconds + 5
        server.send_signal(signal.SIGCONT)

        server.kill()
        faulty.call("reset")
        dead = faulty.generate(PROMPTS[:3])
        assert dead.tokens == right[:3]


def test_a_server_killed_in_a_load_or_in_a_save_leaves_the_tokens_right(right):
    with kvstow.Server(local_bytes=0) as server, engine(server.address) as faulty:
        faulty.call("send_at", server.pid, signal.SIGKILL, "_put")
        assert faulty.generate(PROMPTS).tokens == right
        wait_for(lambda: server.pid == 0)

        server.start()
        wait_for(lambda: stored(faulty, PROMPTS[:3]))
        faulty.call("send_at", server.pid, signal.SIGKILL, "_fetch")
        assert faulty.generate(PROMPTS[:3]).tokens == right[:3]
        assert server.pid == 0


def wait_for(ready):
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)


def stored(faulty, prompts):
    """Computes prompts until another engine would find them; leaves nothing in this one."""
    faulty.call("reset")
    found = min(faulty.generate(prompts).cached)
    faulty.call("reset")
    return found >= 256


# The halves, without an engine.


def test_loads_behind_a_frozen_one_wait_no_longer_than_it(own_server):
    with Worker(own_server.address, timeout=1.0) as worker:
        worker.store(8)
        worker.load(range(8), "before")
        worker.wait({"before"})
        own_server.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        names = {f"frozen {number}" for number in range(12)}
        for name in names:
            worker.load(range(8), name)
        worker.wait(names)
        seconds = time.monotonic() - began
        own_server.send_signal(signal.SIGCONT)
        assert seconds < 3, "12 loads on 2 threads"
        assert len(worker.filled) == 8
        worker.load(range(8), "after")
        worker.wait({"after"})
        assert sorted(worker.filled) == sorted(2 * [(float(i), [i]) for i in range(8)])
        assert worker.half.invalid() == set(range(8))


class Worker:
    """A worker's half that loads, in place of whose blocks a list has what comes."""

    def __init__(self, address, timeout=10.0, batch_pages=2):
        import torch
        from kvstow.vllm.settings import Settings
        from kvstow.vllm.stats import Counters
        from kvstow.vllm.worker import _BATCHES, _LOADERS, Buffer, KnownKeys, WorkerHalf

        self.filled, self.afters = [], []
        spec = kvstow.KvSpec(
            model="test", layers=1, kv_heads=1, head_dim=32, dtype="float16", page_tokens=64
        )
        self.half = half = WorkerHalf.__new__(WorkerHalf)
        half._settings = Settings.of({"timeout": timeout})
        half._spec, half._rank, half._disabled = spec, 0, ""
        half._counters, half._known, half._lock = Counters(), KnownKeys(), threading.Lock()
        half._received, half._invalid, half._closing = set(), set(), threading.Event()
        half._opened = threading.Event()
        half._opened.set()
        half._load_queue, half._threads = queue.SimpleQueue(), []
        half._save_queue = queue.Queue()
        half._blocks = self
        half._device = torch.device("cpu")
        half._client = kvstow.Client(address, timeout=timeout)
        half._space = half._client.open_space(f"worker/{time.monotonic_ns()}", spec, recipe="raw")
        half._batch_pages = batch_pages
        pages = batch_pages * _LOADERS * _BATCHES
        half._load_buffer = Buffer(half._client, spec, pages, torch.float16)
        for number in range(_LOADERS):
            half._start(half._run_loads, number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in self.half._threads:
            self.half._load_queue.put(None)
            self.half._save_queue.put(None)
        self.half._client.close()
        for thread in self.half._threads:
            thread.join()

    def slots(self, pages):
        return pages

    def scatter(self, slots, numbers, places, after):
        self.filled += [(float(slots[at, 0]), place) for at, place in zip(numbers, places)]
        self.afters.append(after)

    def store(self, count):
        """Pages whose elements are their number."""
        spec = self.half._spec
        pages = [spec.empty(1)[0] for _ in range(count)]
        for number, page in enumerate(pages):
            page[:] = number
        puts = [kvstow.Page(b"%d" % number, page) for number, page in enumerate(pages)]
        assert all(put.stored for put in self.half._space.put(puts))

    def load(self, numbers, name="r"):
        from kvstow.vllm.messages import Load, LoadedPage, StepMetadata

        pages = [LoadedPage(b"%d" % number, [number]) for number in numbers]
        self.half.load(StepMetadata(loads=[Load(name, pages, [0])]))

    def wait(self, names, seconds=30):
        """Waits until all of these loads have ended."""
        end, found = time.monotonic() + seconds, set()
        while not names <= (found := found | self.half.finished()):
            assert time.monotonic() < end, (names, found)
            time.sleep(0.005)


def test_a_load_begins_behind_the_steps_before_it(server, monkeypatch):
    import torch

    monkeypatch.setattr(
        torch.cuda,
        "current_stream",
        lambda device: SimpleNamespace(record_event=lambda: f"an event of {device}"),
    )
    with Worker(server.address) as worker:
        worker.half._device = torch.device("cuda:3")
        worker.store(2)
        worker.load(range(2))
        worker.wait({"r"})
    assert sorted(worker.filled) == [(0.0, [0]), (1.0, [1])]
    assert worker.afters == ["an event of cuda:3"]


class FullBlocks:
    """Blocks of a GPU that has no memory for the first copy."""

    full = True

    def slots(self, pages):
        return pages

    def gather(self, pages, slots, numbers):
        import torch

        if self.full:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return lambda: None


def test_a_gpu_without_memory_drops_pages_and_goes_on():
    import torch
    from kvstow.vllm.messages import SavedPage, StepMetadata
    from kvstow.vllm.settings import Settings
    from kvstow.vllm.stats import Counters
    from kvstow.vllm.worker import KnownKeys, WorkerHalf

    half = WorkerHalf.__new__(WorkerHalf)
    half._settings, half._disabled = Settings.of({}), ""
    half._counters, half._known, half._blocks = Counters(), KnownKeys(), FullBlocks()
    half._save_buffer = SimpleNamespace(pages=torch.zeros(2, 8))
    half._save_queue, half._free = queue.Queue(), collections.deque(range(2))
    saves = StepMetadata(saves=[SavedPage(b"%d" % i, [i], first_position=0, absent=False) for i in range(2)])
    half.save(saves)
    assert half._disabled == "" and half._save_queue.empty()
    assert half._counters.take().data["dropped_pages"] == 2
    half._blocks.full = False
    half.save(saves)
    save = half._save_queue.get_nowait()
    assert [page.key for page in save.pages] == [b"0", b"1"]
    assert sorted(save.slots) == [0, 1]


class NoBlocks:
    """Blocks whose pages are zeros in the buffer already."""

    def slots(self, pages):
        return pages

    def gather(self, pages, slots, numbers):
        return lambda: None


def test_an_engine_that_only_saves_brings_back_what_the_server_lost(server):
    import torch
    from kvstow.vllm.messages import SavedPage, StepMetadata
    from kvstow.vllm.worker import _SECONDS_KNOWN, Buffer, KnownKeys

    now = [0.0]
    keys = [b"0", b"1"]
    saves = StepMetadata(saves=[SavedPage(key, [0], first_position=0, absent=False) for key in keys])
    with Worker(server.address) as worker:
        half, space = worker.half, worker.half._space
        half._known = KnownKeys(_SECONDS_KNOWN, clock=lambda: now[0])
        half._blocks, half._free = NoBlocks(), collections.deque(range(2))
        half._save_buffer = Buffer(half._client, half._spec, 2, torch.float16)
        half._start(half._run_saves)

        def saved():
            half.save(saves)
            half._save_queue.join()
            stats = half._counters.take()
            return stats.data["saved_pages"] if stats is not None else 0

        assert saved() == 2
        assert saved() == 0
        assert half._client.drop_space(space.name) == 2
        now[0] = _SECONDS_KNOWN - 1
        assert saved() == 0 and not space.lookup(keys, lease=False)
        now[0] = _SECONDS_KNOWN
        assert saved() == 2 and space.lookup(keys, lease=False).pages == 2


def test_a_save_tells_the_statistics_that_the_server_did_not_take(server, monkeypatch):
    import torch
    from kvstow.vllm import worker as module
    from kvstow.vllm.messages import SavedPage, StepMetadata
    from kvstow.vllm.settings import Settings

    told = []
    monkeypatch.setattr(module, "send_file", lambda space, path, **part: told.append((path, part)) or "")
    with Worker(server.address) as worker:
        half = worker.half
        half._settings = Settings(statistics="model.kvstats")
        half._layers, half._rank, half._tensor_size = ["model.layers.3.attn"], 1, 2
        half._blocks, half._free = NoBlocks(), collections.deque(range(1))
        half._save_buffer = module.Buffer(half._client, half._spec, 1, torch.float16)
        half._start(half._run_saves)
        half.save(StepMetadata(saves=[SavedPage(b"0", [0], first_position=0, absent=False)]))
        half._save_queue.join()
    assert told == [("model.kvstats", {"first_layer": 3, "tensor_rank": 1, "tensor_size": 2})]


@pytest.mark.parametrize(("mode", "known"), [("save_only", 60.0), ("read_write", float("inf"))])
def test_keys_are_known_for_good_only_where_prompts_are_looked_up(monkeypatch, mode, known):
    from kvstow.vllm import worker
    from kvstow.vllm.settings import Settings

    monkeypatch.setattr(worker.Identity, "kv_spec", lambda *_: None)
    monkeypatch.setattr(worker, "norms_keys", lambda _: False)
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(rank=0, tensor_parallel_size=1),
        compilation_config=SimpleNamespace(static_forward_context={}),
        model_config=SimpleNamespace(hf_text_config=None),
    )
    identity = worker.Identity(16, 4, "m", "1", "s", 1)
    cache = SimpleNamespace(
        num_blocks=1, kv_cache_groups=[SimpleNamespace(layer_names=[], kv_cache_spec=None)]
    )
    half = worker.WorkerHalf(Settings(mode=mode), identity, config, cache)
    assert half._known._seconds == known


class Request(SimpleNamespace):
    """What the scheduler's half reads of a request. Blocks and hashes are of 32 tokens."""

    def __init__(self, name, tokens, computed=0, **more):
        super().__init__(request_id=name, num_tokens=tokens, num_computed_tokens=computed, **more)
        self.skip_reading_prefix_cache = False
        self.block_hashes = [bytes([i]) * 32 for i in range(tokens // 32)]


class Halves:
    """A scheduler's half, and the pages that its server holds: the first `stored` of 64 tokens."""

    def __init__(self, server, stored, **settings):
        from kvstow.vllm.identity import Identity
        from kvstow.vllm.scheduler import SchedulerHalf
        from kvstow.vllm.settings import Settings

        name = f"halves/{stored}/{time.monotonic_ns()}"
        identity = Identity(32, 2, "test", "1", name, 1)
        settings = Settings.of({"address": server.address, "lookup_timeout": 5.0} | settings)
        self.half = SchedulerHalf(settings, identity, 32)
        spec = kvstow.KvSpec(
            model="test", layers=1, kv_heads=1, head_dim=32, dtype="float16", page_tokens=64
        )
        self.client = kvstow.Client(server.address)
        space = self.client.open_space(identity.space(0), spec, recipe="raw")
        keys = [bytes([2 * page + 1]) * 32 for page in range(stored)]
        assert all(
            put.stored for put in space.put([kvstow.Page(k, spec.empty(1)[0]) for k in keys])
        )

    def __enter__(self):
        return self.half

    def __exit__(self, *_):
        self.half.close()
        self.client.close()


def ask(half, request, computed):
    end = time.monotonic() + 10
    while (answer := half.matched(request, computed))[0] is None:
        assert answer == (None, False) and time.monotonic() < end
        time.sleep(0.002)
    return answer


def step(half, tokens, blocks):
    """The metadata of a step that computes so many tokens of each request."""
    state = SimpleNamespace(get_block_ids=lambda name: (blocks,))
    return half.build(SimpleNamespace(num_scheduled_tokens=tokens, kv_connector_block_state=state))


def test_a_hit_leaves_a_token_to_compute_and_spares_local_blocks(server):
    with Halves(server, stored=4) as half:
        request = Request("a", 4 * 64)
        half.on_new_request(request)
        assert ask(half, request, 0) == (3 * 64, True)
        # The engine holds three blocks: one and a half pages.
        assert ask(half, request, 96) == (96, True)
        half.allocated(request, list(range(10, 18)), 96)
        (load,) = step(half, {}, []).loads
        assert [page.blocks for page in load.pages] == [[None, 13], [14, 15]]
        assert [page.key[0] for page in load.pages] == [3, 5]
        assert load.leases[0] != 0
        assert step(half, {}, []).loads == []


def test_only_pages_that_a_step_completes_and_the_server_lacks_are_saved(server):
    with Halves(server, stored=1) as half:
        request = Request("a", 4 * 64 + 5)
        half.on_new_request(request)
        assert ask(half, request, 0) == (64, True)
        blocks = list(range(10, 19))
        half.allocated(request, blocks, 64)
        request.num_computed_tokens = 64
        saves = step(half, {"a": 100}, blocks).saves  # 164 tokens: two pages
        assert [(page.key[0], page.blocks, page.absent) for page in saves] == [(3, [12, 13], True)]
        assert saves[0].first_position == 64
        request.num_computed_tokens = 164
        assert [page.key[0] for page in step(half, {"a": 92}, blocks).saves] == [5, 7]
        assert step(half, {"a": 92}, blocks).saves == []
        # A preempted request computes the same pages again.
        request.num_computed_tokens = 0
        assert step(half, {"a": 256}, blocks).saves == []


def test_a_request_whose_load_failed_is_not_looked_up_again(server):
    with Halves(server, stored=2) as half:
        request = Request("a", 3 * 64)
        half.on_new_request(request)
        assert ask(half, request, 0) == (128, True)
        half.allocated(request, list(range(20, 26)), 128)
        half.update(SimpleNamespace(invalid_block_ids={21}, finished_recving={"a"}))
        assert half.matched(request, 0) == (0, False)
        half.finished(request)
        half.on_new_request(request)
        assert ask(half, request, 0) == (128, True)


def test_a_reset_forgets_what_is_stored(server):
    with Halves(server, stored=2) as half:
        request = Request("a", 3 * 64)
        half.on_new_request(request)
        assert ask(half, request, 0)[0] == 128
        half.reset()
        assert ask(half, request, 0) == (0, False)
        assert step(half, {"a": 192}, list(range(6))).saves == []


def test_modes_and_excluded_requests_look_nothing_up(server):
    request = Request("a", 3 * 64)
    with Halves(server, stored=2, mode="save_only") as half:
        assert half.matched(request, 0) == (0, False)
    with Halves(server, stored=2, mode="read_only") as half:
        half.on_new_request(request)
        assert step(half, {"a": 192}, list(range(6))).saves == []
        request.skip_reading_prefix_cache = True
        assert half.matched(request, 0) == (0, False)


def test_a_frozen_server_is_asked_once_in_a_while(own_server):
    with Halves(own_server, stored=2, lookup_timeout=0.3) as half:
        own_server.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert ask(half, Request("a", 192), 0) == (0, False)
        assert time.monotonic() - began < 2
        assert half.matched(Request("b", 192), 0) == (0, False)
        own_server.send_signal(signal.SIGCONT)


def test_a_question_that_ends_without_an_answer_is_not_asked_again_at_once(own_server):
    with Halves(own_server, stored=2, lookup_timeout=0.3) as half:
        own_server.send_signal(signal.SIGSTOP)
        first = Request("a", 192)
        assert half.matched(first, 0) == (None, False)
        half._lookups["a"].future.result()
        assert half.matched(first, 0) == (0, False)
        assert half.matched(Request("b", 192), 0) == (0, False)
        own_server.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("adress", "x", "'adress' is no option"),
        ("timeout", 0, "timeout: 0 must be more than 0"),
        ("timeout", "5", "timeout: .5. must be of type float"),
        ("page_blocks", -1, "page_blocks: -1 is less than 0"),
        ("mode", "both", "mode: 'both' must be one of"),
        ("fidelity", "sparse", "cannot mask"),
        ("space", "", "space: '' must have"),
    ],
)
def test_settings_name_what_is_wrong(option, value, message):
    from kvstow.vllm.settings import Settings

    with pytest.raises(ValueError, match=message):
        Settings.of({option: value})


def test_long_and_salted_hashes_are_digested():
    from kvstow.vllm.scheduler import page_key

    assert page_key(b"a" * 64) == b"a" * 64
    assert len(page_key(b"a" * 65)) == 32
    assert page_key(b"a", b"salt") != page_key(b"a", b"tlas") != b"a"


@pytest.mark.parametrize(
    ("offsets", "parts"),
    [
        ([0], [(1, 0)]),
        ([0, 3, 6, 9], [(4, 3)]),
        ([0, 1, 10, 11, 100, 101, 110, 111], [(2, 100), (2, 10), (2, 1)]),
        ([0, 1, 3, 2], []),
        ([0, 1, 10], []),
    ],
)
def test_strides_of_an_axis(offsets, parts):
    from kvstow.vllm.layout import strides_of

    assert strides_of(offsets) == parts


class PackedLayer:
    """A layer whose backend packs channels in pairs and has the heads inside the tokens."""

    heads, tokens, channels = 3, 8, 16

    def __init__(self):
        self.impl = self

    def do_kv_cache_update(self, layer, key, value, cache, slots):
        assert layer is self
        room = cache.view(cache.shape[0], 2, self.channels // 2, self.tokens, self.heads, 2)
        for kind, values in enumerate((key, value)):
            pairs = values.unflatten(2, (-1, 2)).permute(2, 0, 1, 3)
            for block in range(len(slots) // self.tokens):
                part = slice(block * self.tokens, (block + 1) * self.tokens)
                room[slots[block * self.tokens] // self.tokens, kind] = pairs[:, part]


class TiledLayer(PackedLayer):
    """One whose K is packed in pairs of channels, and V in pairs of tokens, as for AMX."""

    def do_kv_cache_update(self, layer, key, value, cache, slots):
        shape = (cache.shape[0], 2, self.tokens * self.heads * self.channels)
        room = cache.view(shape)
        for block in range(len(slots) // self.tokens):
            part = slice(block * self.tokens, (block + 1) * self.tokens)
            into = room[slots[block * self.tokens] // self.tokens]
            into[0] = key[part].unflatten(2, (-1, 2)).permute(1, 2, 0, 3).reshape(-1)
            into[1] = value[part].unflatten(0, (-1, 2)).permute(2, 0, 3, 1).reshape(-1)


class FlashLayer(PackedLayer):
    """One that writes as vLLM's FlashAttention and FlashInfer do."""

    def do_kv_cache_update(self, layer, key, value, cache, slots):
        rooms = cache.transpose(1, 2).split(self.channels, dim=-1)
        for room, values in zip(rooms, (key, value), strict=True):
            room[slots // self.tokens, slots % self.tokens] = values


def cache_of(layer, blocks, heads_first):
    """A layer's cache: its axes are the same wherever its heads lie."""
    import torch

    if heads_first:
        return torch.zeros(blocks, layer.heads, layer.tokens, 2 * layer.channels)
    return torch.zeros(blocks, layer.tokens, layer.heads, 2 * layer.channels).transpose(1, 2)


@pytest.mark.parametrize(
    ("layer", "heads_first"),
    [(PackedLayer(), True), (TiledLayer(), True), (FlashLayer(), True), (FlashLayer(), False)],
)
def test_blocks_of_an_unusual_layout_become_pages_and_come_back(layer, heads_first):
    import torch

    from kvstow.vllm.blocks import Blocks

    heads, tokens, channels = layer.heads, layer.tokens, layer.channels
    # Two kernel blocks make a block of the scheduler, two of those a page.
    caches = {f"layer{i}": cache_of(layer, 12, heads_first) for i in range(2)}
    blocks = Blocks(dict.fromkeys(caches, layer), caches, 6, 2, heads, channels)
    kv = torch.randn(2, 2, 4 * tokens, heads, channels)
    slots = torch.cat([torch.arange(part * tokens, (part + 1) * tokens) for part in (6, 7, 2, 3)])
    for cache, (k, v) in zip(caches.values(), kv, strict=True):
        layer.do_kv_cache_update(layer, k, v, cache, slots)
    pages = torch.zeros(3, kv.numel())
    blocks.gather([[3, 1]], blocks.slots(pages), [2])
    assert torch.equal(pages[2].view(kv.shape), kv)
    before = {name: cache.clone() for name, cache in caches.items()}
    for cache in caches.values():
        cache.zero_()
    blocks.scatter(blocks.slots(pages), [2], [[None, 1]])
    for name, cache in caches.items():
        assert torch.equal(cache[2:4], before[name][2:4])
        assert not cache[4:].any() and not cache[:2].any()


class Stream:
    """What torch.cuda has of streams, where the host plays the GPU. `log` says what was asked."""

    def __init__(self, log, name):
        self.log, self.name = log, name

    def record_event(self):
        self.log.append(f"event of {self.name}")
        return "the event"

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event}")

    def synchronize(self):
        self.log.append(f"{self.name} ends")


@pytest.fixture
def streams(monkeypatch):
    import torch

    log = []

    @contextlib.contextmanager
    def current(stream):
        log.append(f"copies of {stream.name}")
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(log, "the model"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(log, "a thread"))
    monkeypatch.setattr(torch.cuda, "stream", current)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return log


def test_blocks_of_a_gpu_go_to_the_host_on_another_thread(streams, monkeypatch):
    import torch
    from kvstow.vllm import blocks as module

    layer = PackedLayer()
    heads, tokens, channels = layer.heads, layer.tokens, layer.channels
    caches = {f"layer{i}": torch.randn(6, heads, tokens, 2 * channels) for i in range(2)}
    blocks = module.Blocks(dict.fromkeys(caches, layer), caches, 6, 2, heads, channels)
    numbers, places = [3, 0, 1], [[3, 1], [0, 5], [4, 2]]
    pages, alike = torch.zeros(2, 4, caches["layer0"][0].numel() * 4)
    blocks.gather(places, blocks.slots(alike), numbers)

    blocks.on_host, blocks._device = False, SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **__: tensor)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, device, **more: empty(*shape, **more))
    monkeypatch.setattr(module, "_CHUNK_BYTES", 2 * pages[0].numel() * pages.element_size())
    before = {name: cache.clone() for name, cache in caches.items()}
    fill = blocks.gather(places, blocks.slots(pages), numbers)
    assert streams == ["event of the model"] and not pages.any()
    for cache in caches.values():
        cache.zero_()  # by the next step
    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()
    assert torch.equal(pages, alike)
    assert streams[1:] == ["a thread waits for the event", "copies of a thread"]

    del streams[:]
    blocks.scatter(blocks.slots(pages), numbers, [[3, 1], [0, 5], [None, 2]], "a step")
    assert streams == ["a thread waits for a step", "copies of a thread", "a thread ends"]
    for name, cache in caches.items():
        assert torch.equal(cache[[0, 1, 2, 3, 5]], before[name][[0, 1, 2, 3, 5]])
        assert not cache[4].any()


@pytest.mark.parametrize(
    ("k", "v", "alike"),
    [
        ([(8, 2), (2, 1)], [(4, 4), (4, 1)], [[(4, 4), (2, 2), (2, 1)], [(4, 4), (2, 2), (2, 1)]]),
        ([(1, 0), (6, 1)], [(6, 5)], [[(1, 0), (6, 1)], [(1, 0), (6, 5)]]),
        ([(2, 3), (3, 1)], [(3, 2), (2, 1)], None),
    ],
)
def test_k_and_v_are_split_alike(k, v, alike):
    from kvstow.vllm.layout import Layout, UnknownLayout, split_alike

    layouts = [Layout(at, tuple(axes)) for at, axes in enumerate((k, v))]
    if alike is None:
        with pytest.raises(UnknownLayout, match=r"\(2, 3\), V by \(3, 2\)"):
            split_alike(*layouts)
        return
    assert [list(layout.axes) for layout in split_alike(*layouts)] == alike
    assert [layout.offset for layout in split_alike(*layouts)] == [0, 1]


@pytest.mark.parametrize(("isa", "dtype"), [("amx", "bfloat16"), ("vec", "float32"), ("vec16", "float16")])
def test_pages_have_what_vllms_kernels_for_cpus_wrote(isa, dtype):
    import torch
    import vllm._custom_ops as ops
    from kvstow.vllm.blocks import Blocks

    if isa == "amx" and not torch.cpu._is_amx_tile_supported():
        pytest.skip("this processor has no AMX")
    heads, tokens, channels = 3, 128, 64

    class Layer:
        def do_kv_cache_update(self, layer, key, value, cache, slots):
            rooms = cache.view(cache.shape[0], heads, 2 * tokens, -1).chunk(2, dim=2)
            ops.cpu_attn_reshape_and_cache(key, value, *rooms, slots, isa, 1.0, 1.0, "auto")

    layer = Layer()
    layer.impl = layer
    cache = torch.zeros(4, heads, tokens, 2 * channels, dtype=getattr(torch, dtype))
    blocks = Blocks({"layer": layer}, {"layer": cache}, 4, 1, heads, channels)
    kv = torch.randn(2, tokens, heads, channels).to(cache.dtype)
    layer.do_kv_cache_update(layer, *kv, cache, torch.arange(2 * tokens, 3 * tokens))
    pages = torch.zeros(1, kv.numel(), dtype=cache.dtype)
    blocks.gather([[2]], blocks.slots(pages), [0])
    assert torch.equal(pages.view(kv.shape), kv)
    blocks.scatter(blocks.slots(pages), [0], [[1]])
    assert torch.equal(cache[1], cache[2])


def test_counters_are_metrics_of_prometheus_under_vllms_names():
    from kvstow.vllm import KvstowConnector
    from prometheus_client import Counter, Gauge, Histogram, generate_latest

    types = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    config = SimpleNamespace(kv_transfer_config=None)
    engines = {0: ["m", "0"], 1: ["m", "1"]}
    metrics = KvstowConnector.build_prom_metrics(config, types, ["model_name", "engine"], engines)
    stats = KvstowConnector.build_kv_connector_stats({"saved_pages": 3, "loaded_bytes": 4096})
    metrics.observe(stats.to_dict(), 1)
    metrics.observe(stats.to_dict(), 1)
    said = generate_latest().decode()
    assert 'vllm:kvstow_saved_pages_total{engine="1",model_name="m"} 6.0' in said
    assert 'vllm:kvstow_loaded_bytes_total{engine="1",model_name="m"} 8192.0' in said
    assert 'vllm:kvstow_saved_pages_total{engine="0",model_name="m"} 0.0' in said


def test_models_that_are_not_supported_are_named():
    import torch
    from kvstow.vllm.identity import unsupported
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    def why(*specs, **parallel):
        config = SimpleNamespace(
            cache_config=SimpleNamespace(cache_dtype="fp8"),
            parallel_config=SimpleNamespace(**parallel),
        )
        groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
        return unsupported(config, SimpleNamespace(kv_cache_groups=groups))

    shape = {"block_size": 32, "num_kv_heads": 2, "head_size": 64}
    full = FullAttentionSpec(dtype=torch.bfloat16, **shape)
    assert why(full) == ""
    assert "2 KV cache groups" in why(full, full)
    assert "MLAAttentionSpec" in why(MLAAttentionSpec(dtype=torch.bfloat16, **shape))
    assert "fp8" in why(FullAttentionSpec(dtype=torch.uint8, **shape))
    assert "decode_context" in why(full, decode_context_parallel_size=2)


def test_a_folder_without_weights_needs_a_revision(tmp_path, monkeypatch):
    """As where the weights come from S3: nothing tells them from others."""
    import kvstow.vllm
    from kvstow.vllm.identity import unversioned
    from kvstow.vllm.settings import Settings
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

    (tmp_path / "config.json").write_text("{}")
    config = SimpleNamespace(model_config=SimpleNamespace(model=str(tmp_path)))
    assert "name a 'revision'" in unversioned(Settings(), config)
    assert unversioned(Settings(revision="1"), config) == ""

    def begin(self, *_):
        self._kv_transfer_config = SimpleNamespace(
            kv_connector_extra_config={},
            is_kv_consumer=True,
            is_kv_producer=True,
            kv_load_failure_policy="recompute",
        )

    said = []
    monkeypatch.setattr(KVConnectorBase_V1, "__init__", begin)
    monkeypatch.setattr(kvstow.vllm, "unsupported", lambda *_: "")
    monkeypatch.setattr(kvstow.vllm._log, "warning", lambda text, why: said.append(text % why))
    for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
        connector = kvstow.vllm.KvstowConnector(config, role, None)
        assert connector.get_num_new_matched_tokens(Request("a", 256), 0) == (0, False)
        connector.register_kv_caches({})
        connector.start_load_kv(None)
        connector.shutdown()
    assert len(said) == 1 and said[0].startswith("kvstow caches nothing")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert unversioned(Settings(), config) == ""


def test_a_hubs_model_without_a_commit_needs_a_revision(tmp_path, monkeypatch):
    from kvstow.vllm import identity
    from kvstow.vllm.settings import Settings

    monkeypatch.setattr(identity, "HF_HUB_CACHE", str(tmp_path))
    config = engine_config()
    config.model_config.model = "org/model"
    assert "no commit" in identity.unversioned(Settings(), config)
    assert identity.unversioned(Settings(revision="1"), config) == ""
    snapshots = tmp_path / "models--org--model" / "snapshots"
    (snapshots / "c1").mkdir(parents=True)
    assert identity.unversioned(Settings(), config) == ""
    assert identity_of(config).revision.startswith("c1+")
    (snapshots / "c2").mkdir()
    assert "no commit" in identity.unversioned(Settings(), config)
    config.model_config.revision = "c2"
    assert identity_of(config).revision.startswith("c2+")
    config.model_config.hf_config._commit_hash = "c3"
    assert identity_of(config).revision.startswith("c3+")


def engine_config(max_model_len=4096, **hf):
    """What an identity is made of, of a model of a hub."""
    model = SimpleNamespace(**hf)
    model.to_dict = lambda: hf
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model="org/model",
            revision=None,
            hf_config=model,
            hf_text_config=model,
            quantization=None,
            dtype="bfloat16",
            max_model_len=max_model_len,
            original_max_model_len=max_model_len,
        ),
        parallel_config=SimpleNamespace(world_size=1, tensor_parallel_size=1, pipeline_parallel_size=1),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        speculative_config=None,
    )


def identity_of(config, **settings):
    from kvstow.vllm.identity import Identity
    from kvstow.vllm.settings import Settings

    groups = [SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=16))]
    return Identity.of(Settings(**settings), config, SimpleNamespace(kv_cache_groups=groups))


def test_a_length_that_turns_longrope_otherwise_has_pages_of_its_own():
    """vLLM takes the long factors for all prompts of an engine that may see a long one."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 4096}

    def prefix(length, **more):
        config = engine_config(length, rope_parameters=rope | more)
        return identity_of(config, revision="1").prefix

    assert prefix(2048) == prefix(4096) != prefix(4097) == prefix(131072)
    fitted = engine_config(2048, rope_parameters=rope)
    fitted.model_config.original_max_model_len = -1  # fitted after the model had its RoPE
    assert identity_of(fitted, revision="1").prefix not in (prefix(2048), prefix(131072))
    assert prefix(2048, rope_type="llama3") == prefix(131072, rope_type="llama3")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_theta": 1e4}, {"theta": 1e4}),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, {"theta": 5e5}),
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            {"theta": 1e4, "scaling": "linear", "factor": 2.0},
        ),
        ({"rope_theta": 1e4, "model_type": "cohere"}, {"theta": 1e4, "layout": "interleaved"}),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.5}, {"theta": 1e4, "rotary_dims": 32}),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "other"}}, {"layout": "none"}),
        ({}, {"layout": "none"}),
    ],
)
def test_rotations_of_configs(config, expected):
    from kvstow.vllm.identity import rope_of

    assert rope_of(SimpleNamespace(**config), 64) == kvstow.Rope(**expected)


def test_kv_events_are_those_of_vllm():
    """Its classes decode them, and its publisher would give the blocks the same hashes."""
    import msgspec
    import zmq
    from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockStored, KVEventBatch
    from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

    from kvstow.vllm.scheduler import page_key

    hashes = [BlockHash(os.urandom(32)) for _ in range(20)]
    spec = kvstow.KvSpec(
        model="test", layers=1, kv_heads=1, head_dim=32, dtype="float16", page_tokens=64
    )
    flags = {"kv_events_listen": "127.0.0.1:0", "kv_events_replay_listen": "127.0.0.1:0"}
    with kvstow.Server(**flags) as server, kvstow.Client(server.address) as client:
        space = client.open_space("s", spec, recipe="raw")
        space.put([kvstow.Page(page_key(key), spec.empty(1)[0]) for key in hashes])
        context = zmq.Context()
        asked = context.socket(zmq.DEALER)
        asked.connect(f"tcp://{re.findall(r'replays=([0-9.:]+)', server.log())[-1]}")
        stored, end = [], time.monotonic() + 20
        while len(stored) < len(hashes):  # events follow the puts
            assert time.monotonic() < end, stored
            stored = []
            asked.send_multipart([b"", bytes(8)])
            while asked.poll(10_000) and (payload := asked.recv_multipart()[-1]):
                for event in msgspec.msgpack.decode(payload, type=KVEventBatch).events:
                    if isinstance(event, BlockStored):
                        assert (event.medium, event.block_size) == (MEDIUM_STORAGE, 64)
                        stored += event.block_hashes
        context.destroy(linger=0)
    assert stored == [maybe_convert_block_hash(key) for key in hashes]

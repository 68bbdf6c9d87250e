"""KV events of a real server, decoded as vLLM's own subscribers decode them."""

import dataclasses
import re
import struct
import time

import kvstow
import msgspec
import pytest
import zmq
from conftest import SPEC, Prompt, outcomes

TIMEOUT = 20.0
TOPIC = b"kv@node@test/small"


# As in vllm/distributed/kv_events.py.


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list | None = None
    group_idx: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def hash_of(key):
    """As vLLM's maybe_convert_block_hash."""
    return int.from_bytes(key, "big") & (1 << 64) - 1


class Router:
    """Subscribes to a server, and keeps which blocks of which topic are stored."""

    def __init__(self, server):
        found = re.findall(r"KV events listening=(\S+) replays=(\S+)", server.log())[-1]
        self._context = zmq.Context()
        self._subscriber = self._context.socket(zmq.SUB)
        self._subscriber.subscribe(b"kv@")
        self._subscriber.connect(f"tcp://{found[0]}")
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.connect(f"tcp://{found[1]}")
        self.stored = {}
        self.next = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._context.destroy(linger=0)

    def replay(self, first=0):
        """Asks for all batches from `first` on. Their numbers have no gap."""
        self._dealer.send_multipart([b"", struct.pack(">Q", first)])
        self.next = first
        while True:
            assert self._dealer.poll(TIMEOUT * 1000), "the replay does not end"
            empty, topic, number, payload = self._dealer.recv_multipart()
            assert empty == b""
            if number == b"\xff" * 8:
                assert payload == b""
                return self
            assert struct.unpack(">Q", number) == (self.next,)
            self._take(topic, payload)

    def listen(self, until):
        """Applies batches until `until` holds for the topic's blocks."""
        end = time.monotonic() + TIMEOUT
        while not until(self.stored.get(TOPIC, set())):
            assert time.monotonic() < end, f"waited; there are {self.stored}"
            if not self._subscriber.poll(500):
                self.replay(self.next)  # the subscription may have come after the batch
                continue
            topic, number, payload = self._subscriber.recv_multipart()
            (number,) = struct.unpack(">Q", number)
            if number < self.next:
                continue  # a replay had it
            if number > self.next:
                self.replay(self.next)
            else:
                self._take(topic, payload)

    def _take(self, topic, payload):
        batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
        assert msgspec.msgpack.encode(batch) == payload, "msgspec would write other bytes"
        assert batch.data_parallel_rank == 0
        self.next += 1
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.stored.clear()
                continue
            assert event.medium == "STORAGE"
            blocks = self.stored.setdefault(topic, set())
            for block in event.block_hashes:
                if isinstance(event, BlockStored):
                    assert (event.token_ids, event.parent_block_hash) == ([], None)
                    assert event.block_size == SPEC.page_tokens
                    assert block not in blocks
                    blocks.add(block)
                else:
                    blocks.remove(block)


FLAGS = {
    "kv_events_listen": "127.0.0.1:0",
    "kv_events_replay_listen": "127.0.0.1:0",
    "kv_events_name": "node",
}


@pytest.fixture
def publisher(tmp_path):
    """A server that publishes, with a disk."""
    with kvstow.Server("64MiB", disk_path=tmp_path, disk_bytes="1GiB", **FLAGS) as server:
        yield server
        server.kill()


def blocks_of(*prompts):
    return {hash_of(key) for prompt in prompts for key in prompt.keys}


def test_a_router_knows_what_was_put_deleted_and_dropped(publisher):
    first, second = Prompt(seed=1), Prompt(seed=2)
    with kvstow.Client(publisher.address) as client, Router(publisher) as router:
        space = client.open_space("s", SPEC, recipe="raw")
        space.put(first.puts())
        router.replay()
        router.listen(lambda blocks: blocks == blocks_of(first))
        space.put(second.puts())
        router.listen(lambda blocks: blocks == blocks_of(first, second))
        assert outcomes(space.put(second.puts())) == ["ALREADY_THERE"] * 4
        space.delete(first.keys[:1])
        expected = blocks_of(first, second) - {hash_of(first.keys[0])}
        router.listen(lambda blocks: blocks == expected)
        with Router(publisher) as late:
            assert late.replay().stored == router.stored
        client.drop_space("s")
        router.listen(lambda blocks: not blocks)


def test_after_a_kill_the_router_learns_what_came_back(publisher):
    durable, lost = Prompt(seed=1), Prompt(seed=2)
    with kvstow.Client(publisher.address, timeout=30) as client:
        space = client.open_space("s", SPEC, recipe="raw")
        space.put(durable.puts(ack="durable"))
        space.put(lost.puts(ack="memory"))
        with Router(publisher) as router:
            router.replay()
            router.listen(lambda blocks: blocks == blocks_of(durable, lost))
        publisher.kill()
        publisher.start()
        with Router(publisher) as router:
            router.replay()
            router.listen(lambda blocks: blocks == blocks_of(durable))


def test_eviction_is_told():
    prompts = [Prompt(seed=seed) for seed in range(10)]
    with kvstow.Server("8MiB", local_bytes=0, **FLAGS) as server, Router(server) as router:
        router.replay()
        with kvstow.Client(server.address) as client:
            space = client.open_space("s", SPEC, recipe="raw")
            for prompt in prompts:
                space.put(prompt.puts())

            def left():
                keys = [key for prompt in prompts for key in prompt.keys]
                return {hash_of(key) for key in keys if space.lookup([key], lease=False).pages}

            router.listen(lambda blocks: blocks and blocks == left())
            assert 0 < len(left()) < 40


def test_private_spaces_and_other_ranks_are_not_told(publisher):
    with kvstow.Client(publisher.address) as client, Router(publisher) as router:
        second = dataclasses.replace(SPEC, rank=1, world_size=2)
        other = client.open_space("rank1", second, recipe="raw")
        other.put(Prompt(seed=1, spec=second).puts())
        own = client.open_space("own", SPEC, recipe="raw", private=True)
        own.put(Prompt(seed=2).puts())
        seen = client.open_space("seen", SPEC, recipe="raw")
        seen.put(Prompt(seed=3).puts())
        router.replay()
        router.listen(lambda blocks: blocks == blocks_of(Prompt(seed=3)))
        assert list(router.stored) == [TOPIC]

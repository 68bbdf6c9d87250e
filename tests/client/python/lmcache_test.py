"""KvstowL2 as LMCache's native plugin calls it; engines/lmcache_test.py has LMCache itself."""

import ctypes
import select
import signal
import time

import kvstow.lmcache
import numpy as np
import pytest

KEY = "org/model@00000001@0@{:032x}"
SIZES = (1, 1000, 1024, 300_000, 4 << 20, (9 << 20) + 7)


class Caller:
    """Waits for completions as LMCache's thread does."""

    def __init__(self, l2):
        self.l2 = l2
        self.done = {}

    def result(self, number):
        poller = select.poll()
        poller.register(self.l2.event_fd(), select.POLLIN)
        while number not in self.done:
            assert poller.poll(60_000), "no completion came"
            for ended, ok, why, each in self.l2.drain_completions():
                self.done[ended] = (ok, why, each)
        return self.done[number]

    def set(self, keys, values):
        return self.result(self.l2.submit_batch_set(keys, [memoryview(v) for v in values]))

    def get(self, keys, values):
        return self.result(self.l2.submit_batch_get(keys, [memoryview(v) for v in values]))

    def exists(self, keys):
        return self.result(self.l2.submit_batch_exists(keys))

    def delete(self, keys):
        return self.result(self.l2.submit_batch_delete(keys))


@pytest.fixture
def caller(server, request):
    l2 = kvstow.lmcache.KvstowL2(server.address, space=f"lm{abs(hash(request.node.name)) % 10**8}")
    yield Caller(l2)
    l2.close()


def value(size, seed):
    return bytearray(np.random.default_rng(seed).bytes(size))


def test_values_of_any_size_come_back_as_they_were(caller):
    keys = [KEY.format(i) for i in range(len(SIZES))]
    values = [value(size, i) for i, size in enumerate(SIZES)]
    assert caller.set(keys, values) == (True, "", [True] * len(keys))
    rooms = [bytearray(size) for size in SIZES]
    assert caller.get(keys, rooms) == (True, "", [True] * len(keys))
    assert rooms == values


def test_a_value_that_is_not_there_is_told_by_key(caller):
    keys = [KEY.format(i) for i in range(4)]
    caller.set(keys[1:3], [value(5000, i) for i in range(2)])
    assert caller.exists(keys) == (True, "", [False, True, True, False])
    assert caller.get(keys, [bytearray(5000) for _ in keys])[2] == [False, True, True, False]


def test_a_value_of_another_size_is_no_hit(caller):
    key = [KEY.format(0)]
    caller.set(key, [value(8 << 20, 0)])
    for size in (4096, 4 << 20, 9 << 20):
        assert caller.get(key, [bytearray(size)])[2] == [size == 4 << 20]


def test_deleted_values_are_gone(caller):
    keys = [KEY.format(i) for i in range(3)]
    caller.set(keys, [value(9 << 20, i) for i in range(3)])
    assert caller.delete([*keys[:2], KEY.format(99)])[2] == [True, True, False]
    assert caller.exists(keys)[2] == [False, False, True]
    # Nothing of them is left: not even their later pages.
    assert caller.delete(keys[:2])[2] == [False, False]


def test_models_ranks_and_salts_do_not_share(caller):
    keys = ["a@00000000@0@ff", "b@00000000@0@ff", "a@00000001@0@ff", "a@00000000@1@ff", "a@00000000@0@ff@salt"]
    values = [value(2048, i) for i in range(len(keys))]
    assert caller.set(keys, values)[0]
    rooms = [bytearray(2048) for _ in keys]
    assert caller.get(keys, rooms)[0]
    assert rooms == values


def test_a_lossy_recipe_is_near(server):
    l2 = kvstow.lmcache.KvstowL2(server.address, space="lmlossy", recipe="int8", dtype="float16")
    caller = Caller(l2)
    numbers = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float16)
    assert caller.set([KEY.format(7)], [numbers.view(np.uint8)])[0]
    back = np.zeros_like(numbers)
    assert caller.get([KEY.format(7)], [back.view(np.uint8)])[0]
    assert 0 < float(np.abs(back - numbers).max()) < 0.05
    l2.close()


def test_a_dead_server_is_a_miss(own_server, monkeypatch):
    monkeypatch.setattr("kvstow.quiet.Quiet.seconds", 0.5)
    l2 = kvstow.lmcache.KvstowL2(own_server.address, timeout=2)
    caller = Caller(l2)
    keys = [KEY.format(i) for i in range(3)]
    values = [value(5000, i) for i in range(3)]
    assert caller.set(keys, values)[0]
    own_server.kill()
    ok, why, each = caller.exists(keys)
    assert not ok and each == [False] * 3 and "UNAVAILABLE" in why
    assert caller.get(keys, values)[2] == [False] * 3
    ok, why, _ = caller.set(keys, values)
    assert not ok and why
    assert caller.delete(keys)[2] == [False] * 3
    own_server.start()
    end = time.monotonic() + 60
    while not caller.set(keys, values)[0]:
        assert time.monotonic() < end
        time.sleep(0.05)
    l2.close()


def test_calls_to_a_frozen_server_end_within_two_timeouts_and_then_at_once(own_server):
    l2 = kvstow.lmcache.KvstowL2(own_server.address, timeout=1)
    caller = Caller(l2)
    keys, other = [KEY.format(0)], ["other/" + KEY.format(0)]
    values = [memoryview(value(5000, 0))]
    for some in (keys, other):
        assert caller.set(some, values)[0]
    own_server.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    calls = []
    for _ in range(4):
        calls.append(l2.submit_batch_exists(keys + other))
        calls.append(l2.submit_batch_get(keys + other, values * 2))
        calls.append(l2.submit_batch_set(keys + other, values * 2))
        calls.append(l2.submit_batch_delete(keys + other))
    assert [caller.result(call)[2] for call in calls] == [[False] * 2] * 16
    assert time.monotonic() - began < 3
    began = time.monotonic()
    ok, why, each = caller.exists(keys)
    assert not ok and each == [False] and "left alone" in why
    assert time.monotonic() - began < 1
    own_server.send_signal(signal.SIGCONT)
    l2.close()


def test_a_call_that_waited_a_timeout_behind_others_ends(server, monkeypatch):
    l2 = kvstow.lmcache.KvstowL2(server.address, timeout=0.2, threads=1)
    caller = Caller(l2)
    first = l2._space("org/model")
    monkeypatch.setattr(first, "lookup", lambda names, lease=True: time.sleep(0.5) or kvstow.PrefixHit())
    slow, behind = (l2.submit_batch_exists([KEY.format(0)]) for _ in range(2))
    assert caller.result(slow) == (True, "", [False])
    ok, why, each = caller.result(behind)
    assert not ok and each == [False] and "waited 0.2 s behind others" in why
    l2.close()


def test_wrong_parameters_are_named():
    with pytest.raises(ValueError, match="dtype"):
        kvstow.lmcache.KvstowL2(dtype="int8")
    with pytest.raises(ValueError, match="threads"):
        kvstow.lmcache.KvstowL2(threads=0)


def test_values_are_one_for_each_key(caller):
    for call in (caller.set, caller.get):
        with pytest.raises(ValueError, match="values: length mismatch, 1 for 2 keys"):
            call([KEY.format(0), KEY.format(1)], [bytearray(1024)])


def test_keys_behind_many_gaps_are_found(caller):
    """In one batch over ranks and groups, as LMCache asks for a prompt's chunks."""
    keys = [f"org/model@{i % 2:08x}@{i % 3}@{i:032x}" for i in range(48)]
    there = [i % 5 < 3 and i != 0 for i in range(48)]
    some = [key for key, stored in zip(keys, there) if stored]
    assert caller.set(some, [value(1000 + 5000 * i, i) for i in range(len(some))])[0]
    assert caller.exists(keys) == (True, "", there)


@pytest.mark.parametrize("told", [True, False], ids=["same process", "another process"])
def test_a_value_that_lost_a_page_is_not_there(server, caller, told):
    """So LMCache stores it again, and can load it."""
    keys = [KEY.format(i) for i in range(5)]
    values = [value(9 << 20, i) for i in range(5)]  # 3 pages each
    assert caller.set(keys, values)[0]
    space = caller.l2._space("org/model")
    lost = [kvstow.lmcache._page_name(keys[1], 1), kvstow.lmcache._page_name(keys[3], 2)]
    assert space.delete(lost, force=True) == ["HIT", "HIT"]
    other = caller
    if not told:
        other = Caller(kvstow.lmcache.KvstowL2(server.address, space=caller.l2._prefix))
    assert other.exists(keys) == (True, "", [True, False, True, False, True])
    # All pages of the others are leased.
    left = [kvstow.lmcache._page_name(keys[i], at) for i in (0, 2, 4) for at in range(3)]
    assert space.delete(left) == ["REFUSED"] * 9
    assert other.set(keys, values)[0]
    assert other.exists(keys)[2] == [True] * 5
    rooms = [bytearray(9 << 20) for _ in keys]
    assert other.get(keys, rooms)[0] and rooms == values
    if not told:
        other.l2.close()


def test_values_of_two_groups_have_sizes_of_their_own(server, caller):
    keys = [f"org/model@00000000@{i % 2}@{i:032x}" for i in range(8)]
    values = [value([9 << 20, 5000][i % 2], i) for i in range(8)]
    assert caller.set(keys[:6], values[:6])[0]
    assert caller.exists(keys)[2] == [True] * 6 + [False] * 2
    l2 = kvstow.lmcache.KvstowL2(server.address, space=caller.l2._prefix)
    assert Caller(l2).exists(keys)[2] == [True] * 6 + [False] * 2
    l2.close()


def test_views_of_any_format_are_values(caller):
    numbers = (ctypes.c_ubyte * 3000)(*value(3000, 1))
    assert memoryview(numbers).format == "<B"  # which memoryview.cast refuses
    assert caller.set([KEY.format(0)], [numbers])[0]
    back = np.zeros((3, 500), np.uint16)
    assert caller.get([KEY.format(0)], [back])[0]
    assert back.tobytes() == bytes(numbers)


def test_another_value_of_a_key_is_not_stored_and_named(caller):
    first, second = value(5000, 1), value(5000, 2)
    assert caller.set([KEY.format(0)], [first])[0]
    assert caller.set([KEY.format(0)], [first])[0]
    ok, why, each = caller.set([KEY.format(0)], [second])
    assert not ok and each == [False] and why
    room = bytearray(5000)
    assert caller.get([KEY.format(0)], [room])[0] and room == first


def test_a_closed_connector_is_quiet(server):
    l2 = kvstow.lmcache.KvstowL2(server.address)
    l2.submit_batch_exists([KEY.format(0)])
    l2.close()
    l2.close()
    assert l2.drain_completions() == []

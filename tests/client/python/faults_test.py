"""A server that is dead, slow or restarting is a miss; nothing waits longer than its timeout."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import kvstow
import numpy as np
import pytest
from conftest import SPEC, Prompt, outcomes

NOWHERE = "127.0.0.1:1"


def test_a_server_that_never_was_is_a_miss():
    with kvstow.Client(NOWHERE, timeout=1) as client:
        space = client.open_space("s", SPEC, recipe="raw")
        assert not space.open and "UNAVAILABLE" in space.message
        prompt = Prompt()
        assert not space.lookup(prompt.keys)
        assert outcomes(space.put(prompt.puts())) == ["UNAVAILABLE"] * 4
        assert outcomes(space.get(prompt.keys)) == ["UNAVAILABLE"] * 4
        assert [r.outcome for _, rs in space.get_layers(prompt.keys, SPEC.empty(4)) for r in rs] == (
            ["UNAVAILABLE"] * 4
        )
        assert outcomes(space.put_layers(prompt.puts()).results()) == ["UNAVAILABLE"] * 4
        assert space.delete(prompt.keys) == ["UNAVAILABLE"] * 4
        assert client.drop_space("s") is None
        assert client.find_space("s") is None
        assert client.buffer(1 << 20).size == 1 << 20


def test_a_space_opens_when_its_server_comes(own_server):
    own_server.kill()
    with kvstow.Client(own_server.address, timeout=2) as client:
        space = client.open_space("s", SPEC, recipe="raw")
        assert not space.open
        own_server.start()
        prompt = Prompt()
        end = time.monotonic() + 30
        while outcomes(space.put(prompt.puts())) != ["STORED"] * 4:
            assert time.monotonic() < end, space.message
        assert space.lookup(prompt.keys).pages == 4


def test_a_server_that_is_killed_is_a_miss_and_found_again(own_server):
    with kvstow.Client(own_server.address, timeout=20) as client:
        space = client.open_space("s", SPEC, recipe="raw")
        prompt = Prompt()
        space.put(prompt.puts())
        own_server.kill()
        assert outcomes(space.get(prompt.keys)) == ["UNAVAILABLE"] * 4
        own_server.start()
        assert outcomes(space.get(prompt.keys)) == ["MISS"] * 4
        assert outcomes(space.put(prompt.puts())) == ["STORED"] * 4


def test_a_frozen_server_takes_no_longer_than_the_timeout(own_server):
    with kvstow.Client(own_server.address, timeout=0.5) as client:
        space = client.open_space("s", SPEC, recipe="raw")
        prompt = Prompt()
        own_server.send_signal(signal.SIGSTOP)
        try:
            start = time.monotonic()
            assert not space.lookup(prompt.keys)
            assert outcomes(space.put(prompt.puts())) == ["UNAVAILABLE"] * 4
            assert outcomes(space.get(prompt.keys)) == ["UNAVAILABLE"] * 4
            assert time.monotonic() - start < 10
        finally:
            own_server.send_signal(signal.SIGCONT)


def test_a_name_that_another_model_took_meanwhile_is_no_hit(own_server):
    with kvstow.Client(own_server.address) as client:
        space = client.open_space("s", SPEC, recipe="raw")
        prompt = Prompt()
        space.put(prompt.puts())
        own_server.kill()
        own_server.start()
        with kvstow.Client(own_server.address) as other:
            spec = kvstow.KvSpec(**{**{n: getattr(SPEC, n) for n in SPEC.__dataclass_fields__}, "model": "other"})
            other.open_space("s", spec, recipe="raw").put(
                [kvstow.Page(key, page) for key, page in zip(prompt.keys, prompt.pages)]
            )
        assert not any(result.hit for result in space.get(prompt.keys))


def test_close_ends_calls_that_wait(own_server):
    client = kvstow.Client(own_server.address, timeout=600)
    space = client.open_space("s", SPEC, recipe="raw")
    own_server.send_signal(signal.SIGSTOP)
    results = []
    thread = threading.Thread(target=lambda: results.extend(space.get([b"k"])))
    thread.start()
    try:
        while not space.client.closed:
            client.close()
        thread.join(30)
        assert not thread.is_alive()
        assert outcomes(results) in (["UNAVAILABLE"], [])
    finally:
        own_server.send_signal(signal.SIGCONT)


def test_buffers_live_until_their_call_ends(own_server):
    """A caller that lets go of a call and of its arrays does no harm."""
    with kvstow.Client(own_server.address, timeout=2) as client:
        space = client.open_space("s", SPEC, recipe="raw")
        own_server.send_signal(signal.SIGSTOP)
        try:
            for i in range(8):
                page = np.full(SPEC.page_shape(), i, np.float16)
                space.start_put([kvstow.Page(b"%d" % i, page)])
                del page
            gc.collect()
        finally:
            own_server.send_signal(signal.SIGCONT)
        end = time.monotonic() + 30
        while space.lookup([b"7"], lease=False).pages == 0:
            assert time.monotonic() < end
            os.sched_yield()
        for i in range(8):
            result = space.get([b"%d" % i])[0]
            assert not result.hit or (result.data.view(np.float16) == i).all()


def test_many_threads_share_a_client(client):
    space = client.open_space("threads", SPEC, recipe="raw")
    wrong = []

    def work(seed):
        prompt = Prompt(seed=seed)
        for _ in range(5):
            space.put(prompt.puts())
            for result, page in zip(space.get(prompt.keys), prompt.pages):
                if not result.hit or bytes(result.data) != page.tobytes():
                    wrong.append(result)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_has_misses_and_its_parent_goes_on(client, space):
    prompt = Prompt()
    space.put(prompt.puts())
    child = os.fork()
    if child == 0:
        wrong = outcomes(space.get(prompt.keys)) != ["UNAVAILABLE"] * 4 or bool(space.lookup(prompt.keys))
        os._exit(1 if wrong else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert outcomes(space.get(prompt.keys)) == ["HIT"] * 4


def read_in_child(address, keys, queue):
    with kvstow.Client(address) as client:
        queue.put(outcomes(client.find_space("spawned").get(keys)))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_spawned_child_has_a_client_of_its_own(server, client, method):
    prompt = Prompt()
    client.open_space("spawned", SPEC, recipe="raw").put(prompt.puts())
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=read_in_child, args=(server.address, prompt.keys, queue))
    process.start()
    assert queue.get(timeout=60) == ["HIT"] * 4
    process.join()
    assert process.exitcode == 0


def test_a_fork_before_the_first_client_is_free(server):
    """In a process of its own: this one has had clients."""
    code = f"""
import os, kvstow
child = os.fork()
client = kvstow.Client({server.address!r})
assert client.find_space("no such space") is None
os._exit(0) if child == 0 else None
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_forked_child_that_ends_leaves_its_parents_server_and_client():
    """Its own end runs the same clean-up as its parent's. In a process of its own."""
    code = """
import os, sys, kvstow
spec = kvstow.KvSpec(model="m", layers=2, kv_heads=2, head_dim=64, dtype="float16", page_tokens=64)
with kvstow.Server("64MiB") as server, kvstow.Client(server.address) as client:
    space = client.open_space("s", spec, recipe="raw")
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert server.pid and server.log()
    assert space.put([kvstow.Page(b"k", spec.empty(1)[0])])[0].stored
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def run_while_frozen(server, code):
    """Runs code in a process of its own whose space's server freezes before the code begins."""
    begin = f"""
import kvstow, os, signal, sys, threading
spec = kvstow.KvSpec(model="m", layers=2, kv_heads=2, head_dim=64, dtype="float16", page_tokens=64)
client = kvstow.Client({server.address!r}, timeout=600)
space = client.open_space("s", spec, recipe="raw")
print("open", flush=True)
sys.stdin.readline()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", begin + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "open\n"
        server.send_signal(signal.SIGSTOP)
        out, errors = process.communicate("go\n", timeout=60)
        assert process.returncode == 0, errors
        return out
    finally:
        process.kill()
        server.send_signal(signal.SIGCONT)


def test_an_interpreter_ends_with_calls_open(own_server):
    """Neither a client that nobody closed nor an open call keeps or breaks the end."""
    run_while_frozen(own_server, 'call = space.start_put([kvstow.Page(b"k", spec.empty(1)[0])])')


def test_control_c_ends_a_wait(own_server):
    # A job in a shell's background starts with the signal ignored.
    code = """
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    space.get([b"k"])
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run_while_frozen(own_server, code) == "interrupted\n"

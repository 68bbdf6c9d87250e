"""The client for asyncio."""

import asyncio
import gc
import signal
import threading
import weakref

import kvstow
import kvstow.aio
import numpy as np
import pytest
from conftest import SPEC, Prompt, outcomes


async def test_pages_come_back_as_they_were(server):
    async with kvstow.aio.Client(server.address) as client:
        space = await client.open_space("aio", SPEC, recipe="raw")
        prompt = Prompt()
        assert outcomes(await space.put(prompt.puts())) == ["STORED"] * 4
        hit = await space.lookup(prompt.keys)
        assert hit.pages == 4
        results = await space.get(prompt.keys, lease=hit.lease)
        for result, page in zip(results, prompt.pages):
            assert bytes(result.data) == page.tobytes()
        await client.release(hit.lease)
        assert (await client.find_space("aio")).name == "aio"
        assert await space.pin(prompt.keys[:1]) == ["HIT"]
        assert await space.delete(prompt.keys, force=True) == ["HIT"] * 4
        assert await client.drop_space("aio") == 0
        assert not await space.send_statistics(b"nothing uses them")
    assert client.closed


async def test_many_calls_run_at_once(server):
    async with kvstow.aio.Client(server.address) as client:
        space = await client.open_space("aio-many", SPEC, recipe="raw")
        prompts = [Prompt(seed=seed) for seed in range(16)]
        puts = await asyncio.gather(*(space.put(prompt.puts()) for prompt in prompts))
        assert all(outcomes(put) == ["STORED"] * 4 for put in puts)
        gets = await asyncio.gather(*(space.get(prompt.keys) for prompt in prompts))
        for prompt, results in zip(prompts, gets):
            for result, page in zip(results, prompt.pages):
                assert bytes(result.data) == page.tobytes()


async def test_layers_are_iterated(server):
    async with kvstow.aio.Client(server.address) as client:
        space = await client.open_space("aio-layers", SPEC, recipe="raw")
        prompt = Prompt()
        put = await space.put_layers(prompt.puts())
        for layers in range(1, SPEC.layers + 1):
            put.filled(layers)
        assert outcomes(await put.results()) == ["STORED"] * 4
        out = SPEC.empty(4)
        seen = []
        async for layers, results in space.get_layers(prompt.keys, out, layers_per_run=5):
            seen.append(layers)
            assert outcomes(results) == ["HIT"] * 4
        assert seen == [range(0, 5), range(5, 10), range(10, 12), range(0)]
        np.testing.assert_array_equal(out, np.stack(prompt.pages))


async def test_a_cancelled_task_leaves_its_call_alone(own_server):
    async with kvstow.aio.Client(own_server.address, timeout=20) as client:
        space = await client.open_space("s", SPEC, recipe="raw")
        own_server.send_signal(signal.SIGSTOP)
        task = asyncio.create_task(space.put(Prompt().puts()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        own_server.send_signal(signal.SIGCONT)
        assert outcomes(await space.put(Prompt(seed=1).puts())) == ["STORED"] * 4


async def test_tasks_that_await_one_put_end_together(own_server):
    async with kvstow.aio.Client(own_server.address, timeout=20) as client:
        space = await client.open_space("s", SPEC, recipe="raw")
        own_server.send_signal(signal.SIGSTOP)
        put = await space.put_layers(Prompt().puts())
        put.filled(SPEC.layers)
        tasks = [asyncio.create_task(put.results()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        own_server.send_signal(signal.SIGCONT)
        for results in await asyncio.wait_for(asyncio.gather(*tasks[1:]), 60):
            assert outcomes(results) == ["STORED"] * 4
        assert not kvstow.aio._waker()._waiting


async def test_a_cancelled_get_frees_its_buffers(own_server):
    async with kvstow.aio.Client(own_server.address, timeout=20) as client:
        space = await client.open_space("s", SPEC, recipe="raw")
        prompt = Prompt()
        await space.put(prompt.puts())
        own_server.send_signal(signal.SIGSTOP)
        out = [np.zeros(SPEC.page_shape(), SPEC.numpy_dtype()) for _ in prompt.keys]
        rooms = [weakref.ref(room) for room in out]
        task = asyncio.create_task(space.get(prompt.keys, out))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task, out
        gc.collect()
        assert all(room() is not None for room in rooms)  # the server may still answer into them
        own_server.send_signal(signal.SIGCONT)
        end = asyncio.get_running_loop().time() + 60
        while any(room() is not None for room in rooms):
            assert asyncio.get_running_loop().time() < end, "the call kept its buffers"
            await client.find_space("s")
            gc.collect()


async def test_questions_to_a_frozen_server_end_together_and_leave_others_their_threads(own_server):
    async with kvstow.aio.Client(own_server.address, timeout=1.5) as client:
        space = await client.open_space("s", SPEC, recipe="raw")
        own_server.send_signal(signal.SIGSTOP)
        loop, keys = asyncio.get_running_loop(), Prompt().keys
        began = loop.time()
        asked = [asyncio.create_task(space.lookup(keys)) for _ in range(40)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()
        assert not any(task.done() for task in asked)
        hits = await asyncio.gather(*asked)
        assert loop.time() - began < 4
        assert not any(hits) and all(hit.message for hit in hits)
        began = loop.time()
        assert await space.delete([b"k"]) == await space.pin([b"k"]) == ["UNAVAILABLE"]
        assert await client.find_space("s") is None
        assert not await space.send_statistics(b"x")
        assert "answer" in space.message  # of whichever of two deadlines was first
        assert loop.time() - began < 12
        own_server.send_signal(signal.SIGCONT)


async def test_a_lease_that_comes_late_is_released(server, monkeypatch):
    late, released = threading.Event(), threading.Event()
    async with kvstow.aio.Client(server.address, timeout=0.2) as client:
        space = await client.open_space("aio-late", SPEC, recipe="raw")

        def lookup(keys, lease):
            assert late.wait(60)
            return kvstow.PrefixHit(pages=1, lease=7)

        monkeypatch.setattr(space._sync, "lookup", lookup)
        monkeypatch.setattr(client._sync, "release", lambda lease: lease == 7 and released.set())
        hit = await space.lookup([b"k"])
        assert not hit and hit.message == "UNAVAILABLE: no answer in 0.2 s"
        late.set()
        assert await asyncio.to_thread(released.wait, 60)
        late.clear()
        released.clear()
        task = asyncio.create_task(space.lookup([b"k"]))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        late.set()
        assert await asyncio.to_thread(released.wait, 60)


async def test_a_dead_server_is_a_miss():
    async with kvstow.aio.Client("127.0.0.1:1", timeout=1) as client:
        space = await client.open_space("s", SPEC, recipe="raw")
        prompt = Prompt()
        assert not space.open and "UNAVAILABLE" in space.message
        assert not await space.lookup(prompt.keys)
        assert outcomes(await space.put(prompt.puts())) == ["UNAVAILABLE"] * 4
        assert outcomes(await space.get(prompt.keys)) == ["UNAVAILABLE"] * 4
        async for _, results in space.get_layers(prompt.keys, SPEC.empty(4)):
            assert outcomes(results) == ["UNAVAILABLE"] * 4


def test_every_event_loop_has_its_own_waker(server):
    async def put(name):
        async with kvstow.aio.Client(server.address) as client:
            space = await client.open_space(name, SPEC, recipe="raw")
            return outcomes(await space.put(Prompt().puts()))

    for name in ("loop-a", "loop-b", "loop-c"):
        assert asyncio.run(put(name)) == ["STORED"] * 4


async def test_the_api_is_that_of_the_sync_client():
    for ours, theirs in ((kvstow.aio.Client, kvstow.Client), (kvstow.aio.Space, kvstow.Space)):
        core = {"start_put", "start_get", "start_layers"}  # what both are built on
        public = {name for name in vars(theirs) if not name.startswith("_")} - core
        assert public - {name for name in vars(ours)} == set()

"""A client of several servers goes on at the next one, and comes back."""

import asyncio
import re
import time

import kvstow
import kvstow.aio
import pytest
from conftest import SPEC, Prompt, outcomes

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def other_server():
    with kvstow.Server(host_bytes="64MiB", local_bytes=0) as server:
        yield server
        server.kill()


def test_a_client_goes_on_at_the_next_server_and_comes_back(own_server, other_server):
    address = f"{own_server.address},{other_server.address}"
    with kvstow.Client(address) as client:
        space = client.open_space("s", SPEC, recipe="raw")
        assert space.open, space.message
        assert client.serving == kvstow.Serving(own_server.address)
        prompt = Prompt()
        assert outcomes(space.put(prompt.puts())) == ["STORED"] * 4
        hit = space.lookup(prompt.keys)
        own_server.kill()
        assert outcomes(space.get(prompt.keys, lease=hit.lease)) == ["MISS"] * 4
        assert client.serving == (other_server.address, 1)
        assert outcomes(space.put(prompt.puts())) == ["STORED"] * 4
        assert outcomes(space.get(prompt.keys, lease=hit.lease)) == ["HIT"] * 4
        own_server.start()
        end = time.monotonic() + 30
        while client.serving.address != own_server.address:
            assert time.monotonic() < end
            assert not space.lookup([b"none"]).message
        assert outcomes(space.put(prompt.puts())) == ["STORED"] * 4


def test_what_is_not_there_is_passed_over(server):
    async def first_call():
        async with kvstow.aio.Client(f"unix:/nowhere/kvstow.sock,{NOWHERE},{server.address}") as client:
            space = await client.open_space("passed-over", SPEC, recipe="raw")
            assert space.open, space.message
            return client.serving

    assert asyncio.run(first_call()).address == server.address


def test_a_wrong_list_is_named():
    for wrong, why in [
        ("a:1,", "an empty part"),
        ("a:1,,b:1", "an empty part"),
        ("a:1,b", "'b' is not HOST:PORT"),
        ("dns:///b", "'dns:///b' is not HOST:PORT"),
    ]:
        with kvstow.Client(wrong) as client:
            with pytest.raises(ValueError, match=re.escape(why)):
                client.open_space("s", SPEC, recipe="raw")

"""kvstow.Server: a kvstowd for notebooks and tests."""

import os
import urllib.request

import kvstow
import pytest
from conftest import SPEC, Prompt, outcomes


def test_a_server_starts_stops_and_leaves_nothing(tmp_path):
    with kvstow.Server("64MiB", lease_ttl="30s") as server:
        pid = server.pid
        assert pid > 0
        page = urllib.request.urlopen(f"http://{server.http_address}/healthz").read()
        assert page
        assert "lease-ttl=30s" in server.log()
    assert server.pid == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_disk_makes_restarts_warm(tmp_path):
    with kvstow.Server("64MiB", disk_path=tmp_path / "disk", disk_bytes="1GiB") as server:
        with kvstow.Client(server.address, timeout=30) as client:
            space = client.open_space("s", SPEC, recipe="raw")
            prompt = Prompt()
            space.put(prompt.puts())
            address = server.address
            server.stop()
            server.start()
            assert server.address == address
            assert outcomes(space.get(prompt.keys)) == ["HIT"] * 4


def test_a_wrong_flag_says_what_kvstowd_said():
    with pytest.raises(RuntimeError, match="host-bytes"):
        kvstow.Server(host_bytes="many")
    with pytest.raises(RuntimeError, match="no-such-flag"):
        kvstow.Server(no_such_flag=1)

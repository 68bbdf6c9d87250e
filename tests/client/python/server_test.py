"""kvstow.Server: a kvstowd for notebooks and tests."""

import os
import re
import subprocess
import sys
import tempfile
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


def test_servers_that_nobody_holds_end_with_python():
    code = """
import gc, kvstow
for _ in range(2):
    server = kvstow.Server("64MiB")
    print(server.pid, server._folder)
del server
gc.collect()
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^(\d+) (.+)$", said, re.MULTILINE)
    assert len(found) == 2
    for pid, folder in found:
        assert not os.path.exists(folder)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_server_that_does_not_start_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="no-such-flag"):
        kvstow.Server(no_such_flag=1)
    assert not list(tmp_path.iterdir())
    assert not [server for server in kvstow.server._running if not server.address]


def test_a_wrong_flag_says_what_kvstowd_said():
    with pytest.raises(RuntimeError, match="host-bytes"):
        kvstow.Server(host_bytes="many")
    with pytest.raises(RuntimeError, match="no-such-flag"):
        kvstow.Server(no_such_flag=1)

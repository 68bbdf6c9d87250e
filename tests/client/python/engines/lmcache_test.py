"""KvstowL2 under LMCache itself: its native_plugin adapter, and its own bench with verification."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lmcache", reason="lmcache is not installed in this environment")

import torch  # noqa: E402
from lmcache.v1.distributed.l2_adapters.native_plugin_l2_adapter import (  # noqa: E402
    NativePluginL2AdapterConfig,
    _create_native_plugin_l2_adapter,
)
from lmcache_peer import keys, memory_of, wait  # noqa: E402

BYTES = 3 << 20
# LMCache's tests of the version that is installed; scripts/engine unpacks them. How many pass at least.
SUITE = Path(sys.prefix) / "source" / "tests" / "v1" / "distributed"
SUITES = {
    "test_native_connector_l2_adapter.py": 70,
    "test_mock_l2_adapter.py": 30,
    "test_valkey_l2_adapter.py": 20,
    "test_valkey_l2_adapter_integration.py": 3,
    "test_resp_l2_adapter_integration.py": 5,
    "test_cache_salt_l2_eviction.py": 2,
}


def plugin(address, **parameters):
    return {
        "type": "native_plugin",
        "module_path": "kvstow.lmcache",
        "class_name": "KvstowL2",
        "adapter_params": {"address": address, **parameters},
    }


@pytest.fixture
def adapter(server):
    config = NativePluginL2AdapterConfig.from_dict(plugin(server.address))
    adapter = _create_native_plugin_l2_adapter(config)
    yield adapter
    adapter.close()


def chunks(count, fill=None):
    """bfloat16 values, or one byte over and over."""
    made = [torch.empty(BYTES, dtype=torch.uint8) for _ in range(count)]
    for i, data in enumerate(made):
        if fill is None:
            torch.manual_seed(i)
            data.view(torch.bfloat16).normal_()
        else:
            data.fill_(fill)
    return [memory_of(data) for data in made]


def found(adapter, names):
    task = adapter.submit_lookup_and_lock_task(names, {})
    wait(adapter.get_lookup_and_lock_event_fd())
    bitmap = adapter.query_lookup_and_lock_result(task)
    return [bitmap.test(i) for i in range(len(names))]


def load(adapter, names, objects):
    task = adapter.submit_load_task(names, objects)
    wait(adapter.get_load_event_fd())
    bitmap = adapter.query_load_result(task)
    return [bitmap.test(i) for i in range(len(names))]


def test_chunks_come_back_as_they_were(adapter):
    names, stored = keys(0, 4), chunks(4)
    task = adapter.submit_store_task(names, stored)
    wait(adapter.get_store_event_fd())
    assert adapter.pop_completed_store_tasks()[task].is_successful()
    assert found(adapter, names + keys(100, 1)) == [True] * 4 + [False]
    rooms = chunks(4, fill=0xAA)
    assert load(adapter, names, rooms) == [True] * 4
    for room, chunk in zip(rooms, stored):
        assert torch.equal(room.raw_data, chunk.raw_data)
    adapter.submit_unlock(names)
    adapter.delete(names[:2])
    assert found(adapter, names) == [False, False, True, True]


def test_a_dead_server_is_a_miss(own_server):
    config = NativePluginL2AdapterConfig.from_dict(plugin(own_server.address, timeout=2))
    adapter = _create_native_plugin_l2_adapter(config)
    names = keys(0, 2)
    own_server.kill()
    task = adapter.submit_store_task(names, chunks(2))
    wait(adapter.get_store_event_fd())
    assert not adapter.pop_completed_store_tasks()[task].is_successful()
    assert found(adapter, names) == [False, False]
    assert load(adapter, names, chunks(2)) == [False, False]
    adapter.close()


@pytest.mark.parametrize("recipe", ["raw", "lossless"])
def test_lmcaches_own_bench_verifies_every_byte(server, recipe):
    command = [Path(sys.executable).parent / "lmcache", "bench", "l2", "--no-skip-verify"]
    command += ["--rounds", "2", "--num-keys", "8", "--data-size-kb", "4096"]
    command += ["--l2-adapter", json.dumps(plugin(server.address, recipe=recipe, space=recipe))]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "LMCACHE_DISABLE_BANNER": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert re.findall(r"Total success: +(\d+)", said) == ["16", "0", "16"], said
    assert "erif" in said and "ismatch" not in said, said


@pytest.mark.parametrize("suite", SUITES)
def test_lmcaches_own_tests_pass(suite):
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "lmcache_suites", "-p", "no:cacheprovider", SUITE / suite],
        cwd=SUITE.parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path[1:]])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) >= SUITES[suite], done.stdout


def test_lmcaches_basic_check_passes(server):
    command = [sys.executable, "-m", "lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--num-keys", "8"]
    command += ["--obj-size", "1000000", "--l2-adapter", json.dumps(plugin(server.address, space="check"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for word in ("8/8 correctly absent", "Batch store OK", "8/8 found", "(loaded): 8/8", "(content): 8/8"):
        assert word in said, said
    assert "FAIL" not in said and "Failed" not in said, said

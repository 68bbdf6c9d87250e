"""A plugin of pytest: LMCache's own tests of adapters, with KvstowL2 where they have another store.

    python -m pytest -p lmcache_suites SUITE/tests/v1/distributed/test_native_connector_l2_adapter.py

`scripts/engine lmcache` unpacks SUITE, LMCache's tests of the same version. Each adapter gets a space
of its own at one server. What follows each replaced thing stays LMCache's: the adapter around the
connector, the controllers and the storage manager above it, and every assertion.
"""

from __future__ import annotations

import importlib.machinery
import itertools
import sys
import types

import kvstow
import kvstow.lmcache
import pytest
from lmcache.v1.distributed.l2_adapters import fs_l2_adapter, mock_l2_adapter, valkey_l2_adapter
from lmcache.v1.distributed.l2_adapters import native_connector_l2_adapter as native
from lmcache.v1.distributed.l2_adapters.native_plugin_l2_adapter import (
    NativePluginL2AdapterConfig,
    _create_native_plugin_l2_adapter,
)

# Tests of what LMCache's mock or its adapter for Valkey does alone, and why.
NOT_OURS = {
    "test_mock_l2_adapter.py::TestBandwidthSimulation": "the mock's own delays",
    "test_valkey_l2_adapter.py::TestStore::test_partial_failure": "faults of a server that is replaced",
    "test_valkey_l2_adapter.py::TestLoad::test_size_mismatch": "a value that the replaced server cut short",
    "test_valkey_l2_adapter.py::TestDelete::test_lock_blocks": "looks into the replaced server",
    "test_valkey_l2_adapter.py::TestDelete::test_refcount": "looks into the replaced server",
}

servers: list[kvstow.Server] = []
_kept: list[object] = []
_numbers = itertools.count()


def plugin(space="", max_capacity_gb=0.0, address=""):
    """The configuration of a native plugin with a space that nobody else has."""
    return NativePluginL2AdapterConfig(
        module_path="kvstow.lmcache",
        class_name="KvstowL2",
        adapter_params={
            "address": address or servers[0].address,
            "space": space or f"suite-{next(_numbers)}",
        },
        max_capacity_gb=max_capacity_gb,
    )


class Connector(kvstow.lmcache.KvstowL2):
    """In place of the mock of a connector, and of LMCache's for Redis."""

    def __init__(self, *_):
        super().__init__(servers[0].address, space=f"suite-{next(_numbers)}")


class Config:
    """In place of the configuration of LMCache's mock."""

    def __new__(cls, max_size_gb, mock_bandwidth_gb):
        return plugin(max_capacity_gb=max_size_gb)


class Adapter:
    """In place of the mock of an adapter."""

    def __new__(cls, config):
        return _create_native_plugin_l2_adapter(config)


class Valkey:
    """In place of the adapter for Valkey, whose prefixes are spaces here."""

    run = itertools.count()

    def __new__(cls, config):
        space = f"valkey-{next(cls.run)}-{config.key_prefix}"
        return _create_native_plugin_l2_adapter(plugin(space, config.max_capacity_gb))


class Files:
    """In place of the configuration of LMCache's files: a kvstowd whose disk is in that folder."""

    def __new__(cls, base_path, **_):
        servers.append(kvstow.Server("64MiB", base_path, disk_bytes="1GiB"))
        return plugin(address=servers[-1].address)


def keeping(make):
    """As `make`, but what it makes stays: some tests let go of values before their store has ended."""

    def make_and_keep(*arguments, **named):
        _kept.append(make(*arguments, **named))
        return _kept[-1]

    return make_and_keep


def pytest_configure(config):
    servers.append(kvstow.Server("1GiB"))
    mock_l2_adapter.MockL2Adapter, mock_l2_adapter.MockL2AdapterConfig = Adapter, Config
    valkey_l2_adapter.ValkeyL2Adapter = Valkey
    fs_l2_adapter.FSL2AdapterConfig = Files
    # The tests ask LMCache's mock for these beside the interface.
    whole = native.NativeConnectorL2Adapter
    name = native._object_key_to_string
    whole.debug_has_key = lambda self, key: self._client._exists([name(key)])[0][0]
    whole.debug_get_stored_object_count = lambda self: len(self._key_sizes)
    whole.debug_get_locked_key_count = lambda self: len(self._locked_keys)
    # The tests of Valkey and Redis look for a client and a server before they begin.
    glide = types.ModuleType("glide_sync")
    glide.__spec__ = importlib.machinery.ModuleSpec("glide_sync", None)
    sys.modules["glide_sync"] = glide
    redis = types.ModuleType("lmcache.lmcache_redis")
    redis.LMCacheRedisClient = Connector
    sys.modules["lmcache.lmcache_redis"] = redis


def pytest_collection_modifyitems(items):
    for item in items:
        for node in item.listchain():
            node.own_markers[:] = [m for m in node.own_markers if "Redis not" not in str(m.kwargs.get("reason"))]
        module = item.module
        if getattr(module, "MockNativeConnector", Connector) is not Connector:
            module.MockNativeConnector = Connector
            module.RecordingNativeConnector.__bases__ = (Connector,)
            module.create_memory_obj = keeping(module.create_memory_obj)
        if hasattr(module, "flush_redis"):
            module.flush_redis = lambda: None
        for test, why in NOT_OURS.items():
            if test in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"not of a store: {why}"))


def pytest_unconfigure(config):
    for server in servers:
        server.close()

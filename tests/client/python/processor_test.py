"""Old processors: the extension and kvstowd run without AVX-512, and without AVX, under an emulator.

wheel_test.py asks the same of the wheel.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kvstow
import pytest
from kvstow.programs import program

PROCESSORS = ["Haswell", "Nehalem"]  # AVX2 and no AVX-512; no AVX at all
EMULATOR = shutil.which("qemu-x86_64-static")

SERVES = """
import os, sys, kvstow.server, numpy as np
features = np._core._multiarray_umath.__cpu_features__
assert features["SSE42"] and not features["AVX512F"], "the emulator shows another processor"
assert features["AVX2"] == (os.environ["PROCESSOR"] == "Haswell"), "the emulator shows another processor"
kvstow.server.program = lambda name: os.environ["SERVER"]
kvstow.server._SECONDS_TO_START = 300.0
spec = kvstow.KvSpec(model="m", layers=2, kv_heads=2, head_dim=64, dtype="float16", page_tokens=64)
pages = np.random.default_rng(0).standard_normal((4, *spec.page_shape())).astype(np.float16)
with kvstow.Server() as server, kvstow.Client(server.address, timeout=120) as client:
    for recipe in ("raw", "lossless", "int8", "kvstow"):
        space = client.open_space(recipe, spec, recipe=recipe)
        keys = [b"%d" % i for i in range(len(pages))]
        puts = [kvstow.Page(key, page) for key, page in zip(keys, pages)]
        assert all(result.stored for result in space.put(puts)), recipe
        out = spec.empty(len(pages))
        assert all(result.hit for result in space.get(keys, out)), recipe
        error = np.square(out.astype(float) - pages).sum() / np.square(pages.astype(float)).sum()
        assert error == 0 if recipe in ("raw", "lossless") else 0 < error < 0.05, (recipe, error)
print(kvstow.__file__)
"""


def serves_under(processor, python, kvstowd, folder, environment):
    """What a server and its client say that both run on an emulated processor."""
    server = folder / f"kvstowd-{processor}"
    server.write_text(f'#!/bin/sh\nexec {EMULATOR} -cpu {processor} {kvstowd} "$@"\n')
    server.chmod(0o755)
    # Where numpy is told its processor, it is told this machine's.
    environment = {name: value for name, value in environment.items() if name != "OPENBLAS_CORETYPE"}
    done = subprocess.run(
        [EMULATOR, "-cpu", processor, python, "-c", SERVES],
        capture_output=True,
        text=True,
        env={**environment, "PROCESSOR": processor, "SERVER": str(server)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(EMULATOR is None, reason="qemu-user-static is not installed")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_it_serves_on_an_old_processor(processor, tmp_path):
    said = serves_under(processor, sys.executable, program("kvstowd"), tmp_path, os.environ)
    assert Path(said.strip()) == Path(kvstow.__file__)

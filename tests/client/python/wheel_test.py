"""The wheel: installed into a clean environment, it serves, and needs no library of the machine.

Needs KVSTOW_WHEEL, the wheel that scripts/wheel made.
"""

import os
import re
import subprocess
import venv
from pathlib import Path

import pytest
from processor_test import EMULATOR, PROCESSORS, serves_under

# Libraries that every Linux of the wheel's tag has (PEP 600).
OF_THE_SYSTEM = re.compile(
    r"ld-linux-x86-64|linux-vdso|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|z)\.so"
)

SERVES = '''
import kvstow, numpy as np
spec = kvstow.KvSpec(model="m", layers=2, kv_heads=2, head_dim=64, dtype="float16", page_tokens=64)
page = np.arange(spec.token_bytes * 32, dtype=np.uint16).view(np.float16).reshape(spec.page_shape())
with kvstow.Server() as server, kvstow.Client(server.address) as client:
    space = client.open_space("s", spec, recipe="lossless")
    assert space.put([kvstow.Page(b"k", page)])[0].outcome == "STORED"
    assert bytes(space.get([b"k"])[0].data) == page.tobytes()
print(kvstow.__file__)
'''


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """An environment with the wheel and what it depends on."""
    wheel = os.environ.get("KVSTOW_WHEEL")
    if not wheel:
        pytest.skip("KVSTOW_WHEEL names no wheel: scripts/wheel makes one")
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, wheel], check=True)
    return folder


def without_paths():
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_LIBRARY_PATH")}


def run(clean, *command):
    return subprocess.run(
        [clean / "bin" / command[0], *command[1:]],
        check=True,
        capture_output=True,
        text=True,
        env=without_paths(),
    ).stdout


def test_it_serves(clean):
    assert str(clean) in run(clean, "python", "-c", SERVES)


def test_the_console_scripts_are_the_programs(clean):
    assert "KV cache" in run(clean, "kvstowd", "--help")
    assert "kvstow bench" in run(clean, "kvstow", "bench", "--help")


def test_scripts_that_run_models_come_with_it_and_their_texts(clean):
    assert "kvstow-calibrate" in run(clean, "kvstow-calibrate", "--help")
    assert "kvstow-judge" in run(clean, "kvstow-judge", "--help")
    count = "from kvstow import mix; print(sum(len(text) for _, text in mix.read(())))"
    assert int(run(clean, "python", "-c", count)) > 100_000


def test_every_library_comes_with_it(clean):
    package = next((clean / "lib").glob("python3*/site-packages/kvstow"))
    binaries = [*package.glob("_native*.so"), *(package / "bin").iterdir()]
    binaries += (package.parent / "kvstow.libs").iterdir()
    assert len(binaries) > 10
    for binary in binaries:
        for line in run_ldd(binary):
            assert "not found" not in line, f"{binary}: {line}"
            if "kvstow.libs" not in line:
                assert OF_THE_SYSTEM.search(line), f"{binary} takes {line} from the machine"


def test_no_library_of_cuda_is_needed(clean):
    package = next((clean / "lib").glob("python3*/site-packages/kvstow"))
    binaries = [*package.glob("_native*.so"), *(package / "bin").iterdir()]
    binaries += (package.parent / "kvstow.libs").iterdir()
    needed = [line for binary in binaries for line in (binary.name, *run_ldd(binary))]
    assert not [line for line in needed if re.search("cuda|nvidia|nvrtc", line)]


@pytest.mark.skipif(EMULATOR is None, reason="qemu-user-static is not installed")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_it_serves_on_an_old_processor(clean, processor, tmp_path):
    kvstowd = next((clean / "lib").glob("python3*/site-packages/kvstow/bin/kvstowd"))
    said = serves_under(processor, clean / "bin" / "python", kvstowd, tmp_path, without_paths())
    assert str(clean) in said


def run_ldd(binary: Path):
    done = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True)
    return [line.strip() for line in done.stdout.splitlines() if "=>" in line]

"""The types that the package promises (py.typed), checked as a user's checker does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "client" / "python"
ENGINES = ("calibrate", "hf.py", "judge", "lm.py", "sglang", "vllm", "vllm_plugin.py")  # need their engines: scripts/test --engines

USE = '''
import kvstow
import kvstow.aio

async def use() -> None:
    async with kvstow.aio.Client() as client:
        space = await client.open_space("s", kvstow.KvSpec(
            model="m", layers=1, kv_heads=1, head_dim=64, dtype="float16", page_tokens=16))
        results: list[kvstow.GetResult] = await space.get([b"k"])
        async for layers, so_far in space.get_layers([b"k"], [bytearray(4096)]):
            print(layers.start, so_far[0].hit)
        print(results[0].tokens + 1)
'''


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package as it is installed: no links, with the generated stub."""
    import kvstow

    folder = tmp_path_factory.mktemp("typed")
    shutil.copytree(
        Path(kvstow.__file__).parent, folder / "kvstow", ignore=shutil.ignore_patterns("bin", *ENGINES)
    )
    shutil.copy(SOURCE / "pyproject.toml", folder)
    (folder / "use.py").write_text(USE)
    return folder


def check(command, folder):
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(folder)}
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_strict(package):
    check([sys.executable, "-m", "mypy", "--strict", "kvstow", "use.py"], package)


@pytest.mark.skipif(shutil.which("node") is None, reason="pyright needs node")
def test_pyright(package):
    check([sys.executable, "-m", "pyright", "-p", str(package), "--pythonpath", sys.executable], package)


def test_torch_is_not_imported():
    code = "import sys, kvstow, kvstow.aio; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

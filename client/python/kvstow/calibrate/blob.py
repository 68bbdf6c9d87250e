"""The calibration from K, V and the statistics: `kvstow codec calibrate` on a server of its own.

The pages of the texts go into a space with the model's whole spec, so that the calibration fits the
spaces that workers open for that model.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from kvstow import programs
from kvstow.calibrate.plan import Plan
from kvstow.calibrate.statistics import Stats, text_name
from kvstow.calibrate.work import Work
from kvstow.client import Client
from kvstow.progress import Progress
from kvstow.server import PATIENCE, Server
from kvstow.types import KvSpec, Page

_PAGE_TOKENS = 1024
_SPACE = "calibration"


def fit(plan: Plan, work: Work, spec: KvSpec, stats: Stats, progress: Progress) -> str:
    """Writes the calibration. Returns what to say of it.

    Raises RuntimeError, with what the program said, where it cannot.
    """
    stats_path = work.path("stats.safetensors")
    save_file(stats, stats_path, {"cases": str(plan.cases), "layers": str(spec.layers)})
    page_tokens = min(_PAGE_TOKENS, plan.context)
    spec = dataclasses.replace(spec, dtype="float16", page_tokens=page_tokens)
    raw = plan.cases * plan.context * 4 * spec.layers * spec.kv_heads * spec.head_dim
    with Server(f"{raw + raw // 8 + (64 << 20)}", local_bytes=0) as server:
        pages = _put(plan, work, spec, server, progress)
        progress.step(f"fitting {plan.recipe}", 1)
        arguments = ["--server", server.address, "--space", _SPACE, "--max-pages", str(pages)]
        arguments += ["--model-stats", str(stats_path), "--out", str(plan.out)]
        said = _calibrate([*arguments, "--recipe", plan.recipe])
        progress.advance()
    progress.end()
    if said["tokens"] != plan.cases * plan.context:  # else sensitivities are of other tokens
        plan.out.unlink()
        raise RuntimeError(f"only {said['tokens']} tokens came back from {server}: try again")
    return (
        f"calibration {said['calibration']} of {said['tokens']} tokens for {plan.recipe}\n"
        f"{plan.out}: {said['bytes']} bytes"
    )


def _calibrate(arguments: list[str]) -> dict[str, Any]:
    answer = programs.ask(["codec", "calibrate"], "--format", "json", *arguments)
    said: dict[str, Any] = json.loads(answer)
    return said


def _put(plan: Plan, work: Work, spec: KvSpec, server: Server, progress: Progress) -> int:
    """Puts the pages of all texts, whose keys are in their order. Returns how many they are."""
    progress.step("storing texts", plan.cases)
    number = 0
    with Client(server.address, timeout=PATIENCE) as client:
        space = client.open_space(_SPACE, spec, recipe="raw")
        for text in range(plan.cases):
            kv = work.load(text_name(text))
            for first in range(0, plan.context, spec.page_tokens):
                data = np.ascontiguousarray(kv[:, :, first : first + spec.page_tokens])
                result = space.put([Page(b"%08d" % number, data, first_position=first)])[0]
                if not result.stored:
                    why = f"{result.outcome}: {result.message}"
                    raise RuntimeError(f"a page of text {text} was not stored: {why}")
                number += 1
            progress.advance()
    return number

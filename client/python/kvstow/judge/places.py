"""Where the pages of a judgement go: a server of its own for each recipe, or one that runs.

Needs torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kvstow import programs
from kvstow.client import Client, Space
from kvstow.judge import measure
from kvstow.judge.plan import Plan
from kvstow.progress import Progress
from kvstow.server import PATIENCE, Server
from kvstow.types import KvSpec

Kv: TypeAlias = npt.NDArray[np.float16]
"""K and V of a text: [layers, 2, tokens, kv_heads, head_dim]."""

_SPACE = "judged"
_SECONDS_BETWEEN_LOOKS = 1.0
_LOOKS_AT_WAITING = 30  # a server looks at its spaces every five seconds


@dataclasses.dataclass(frozen=True)
class Place:
    """A space that takes pages."""

    space: Space
    address: str
    cold: bool  # pages are to be judged in their cold form
    title: str  # what is judged

    def cool(self) -> None:
        """Gives all pages of the server their cold form, by moving them to disk."""
        if self.cold:
            programs.ask(["evict"], "--tier", "host", "--server", self.address)


@contextlib.contextmanager
def own_server(
    recipe: str,
    spec: KvSpec,
    room: int,
    calibrations: Sequence[Path],
    *,
    normed_keys: bool = False,
) -> Iterator[Place]:
    """A space of this recipe on a server of its own, with a disk for cold pages.

    room: bytes of K and V that it shall hold.
    normed_keys: whether the model's keys pass a norm.
    """
    size = f"{room + (256 << 20)}"
    with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(calibrations):  # those of large models cannot be sent
            os.symlink(path.absolute(), Path(folder) / f"{number}-{path.name}")
        with (
            Server(size, disk, disk_bytes=size, local_bytes=0, calibrations=folder) as server,
            Client(server.address, timeout=PATIENCE) as client,
        ):
            space = client.open_space(_SPACE, spec, recipe=recipe, normed_keys=normed_keys)
            if not space.open:
                raise RuntimeError(f"the space was not opened: {space.message}")
            yield Place(space, server.address, True, recipe)


@contextlib.contextmanager
def of_server(plan: Plan, spec: KvSpec) -> Iterator[Place]:
    """The space of a server that runs. Raises ValueError where it holds another model's pages."""
    with Client(plan.server, timeout=PATIENCE) as client:
        space = client.find_space(plan.space)
        if space is None:
            where = f"{plan.server} has no space {plan.space}"
            raise ValueError(f"--space: {where}, or does not answer")
        there = _shape(space.spec)
        for name, here in _shape(spec).items():
            if here != there[name]:
                what = f"{name}={there[name]}, the model {here}"
                raise ValueError(f"--space: {plan.space} has {what}")
        if not measure.can_hold(space.spec):
            raise ValueError(f"--space: {plan.space} holds {space.spec.dtype}, which is not judged")
        if space.fidelity == "sparse":
            raise ValueError(f"--space: {plan.space} drops tokens, which is not judged")
        yield Place(space, plan.server, plan.cold, f"{plan.space} ({space.recipe})")


def _shape(spec: KvSpec) -> dict[str, object]:
    """What pages of a model have in common, whoever puts them."""
    shape: dict[str, object] = {name: getattr(spec, name) for name in ("layers", "kv_heads", "head_dim")}
    shape["head_dim_v"] = spec.head_dim if spec.head_dim_v is None else spec.head_dim_v
    shape |= {"rope.theta": spec.rope.theta, "rope.k_after_rope": spec.rope.k_after_rope}
    return shape


def fit(place: Place, held: Sequence[Kv], statistics: Path | None, progress: Progress) -> str:
    """Lets a server of recipe auto fit a cold form to texts that it gets, and loses afterwards.

    Returns what it says of that form. Raises RuntimeError where it fits nothing.
    """
    space = place.space
    if statistics and not space.send_statistics(statistics.read_bytes()):
        raise RuntimeError(f"--statistics: {space.message}")
    keys = []
    for number, kv in enumerate(held):
        keys += measure.put(space, kv, f"held {number}")
    progress.step("the server fits its cold form", 1)
    looks = 0
    while not (form := _fitted(place.address))["fits"]:
        looks += 1
        if "failed" in form["note"] or (looks > _LOOKS_AT_WAITING and "waits" in form["note"]):
            raise RuntimeError(f"--held: the server fitted nothing: {form['note']}")
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    progress.advance()
    space.delete(keys, force=True)
    if not form["recipe"]:
        return f"the server keeps kvstow for cold pages: {form['note']}"
    return (
        f"the server fitted {form['recipe']} to {form['tokens']} tokens: "
        f"{form['ratio']:.1f} x at {form['divergence']:.4f} nats, it foretells"
    )


def _fitted(address: str) -> dict[str, Any]:
    """What the server says of the one space that it has."""
    found: dict[str, Any] = json.loads(
        programs.ask(["spaces"], "--format", "json", "--server", address)
    )
    form: dict[str, Any] = found["spaces"][0]["fitted"]
    return form

"""LMCache's own bench of adapters, with its files, its Redis client and kvstow in turns.

    python lmcache_bench.py [--repeat 3] [--rounds 6] [--num-keys 16] [--data-size-kb 4096]

Needs redis-server (`scripts/setup --peers`). Prints the medians of all rounds. LMCache fills each value
with one byte; --values kv fills them with normal bfloat16 numbers instead, for recipes whose speed and
size depend on them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator

import kvstow
from lmcache_peer import RedisServer

# LMCache's command, with other values where they are asked for.
BENCH = """
import os, sys, torch
from lmcache.cli.commands.bench.l2_adapter_bench import data
if os.environ["VALUES"] == "kv":
    plain = data.make_memory_objects
    def make(*arguments, **named):
        objects = plain(*arguments, **named)
        if not named.get("fill_offset"):
            torch.manual_seed(0)
            for each in objects:
                each.raw_data.view(torch.bfloat16).normal_()
        return objects
    data.make_memory_objects = make
from lmcache.cli.main import main
sys.argv[0] = "lmcache"
sys.exit(main())
"""


def plugin(recipe: str, address: str) -> dict[str, object]:
    return {
        "type": "native_plugin",
        "module_path": "kvstow.lmcache",
        "class_name": "KvstowL2",
        "adapter_params": {"address": address, "recipe": recipe},
    }


@contextlib.contextmanager
def kvstow_adapter(recipe: str, notes: dict[str, float]) -> Iterator[dict[str, object]]:
    with kvstow.Server("4GiB") as server:
        yield plugin(recipe, server.address)
        page = urllib.request.urlopen(f"http://{server.http_address}/metrics").read().decode()
        raw, held = (
            float(re.search(rf"^kvstow_{name} (\S+)$", page, re.MULTILINE).group(1))  # type: ignore[union-attr]
            for name in ("raw_bytes", "encoded_bytes")
        )
        notes["ratio"] = raw / held


@contextlib.contextmanager
def files_adapter(kind: str, notes: dict[str, float]) -> Iterator[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        yield {"type": kind, "base_path": folder}


@contextlib.contextmanager
def redis_adapter(kind: str, notes: dict[str, float]) -> Iterator[dict[str, object]]:
    server = RedisServer()
    try:
        yield {"type": "resp", "host": "127.0.0.1", "port": server.port}
    finally:
        server.kill()


ADAPTERS = {
    "kvstow, raw": lambda notes: kvstow_adapter("raw", notes),
    "kvstow, lossless": lambda notes: kvstow_adapter("lossless", notes),
    "kvstow, int8": lambda notes: kvstow_adapter("int8", notes),
    "LMCache's Redis client": lambda notes: redis_adapter("resp", notes),
    "LMCache's files, fs": lambda notes: files_adapter("fs", notes),
    "LMCache's files, fs_native": lambda notes: files_adapter("fs_native", notes),
}


def run(name: str, arguments: argparse.Namespace, notes: dict[str, float]) -> dict[str, list[float]]:
    """Milliseconds of each round of each operation."""
    with ADAPTERS[name](notes) as adapter:
        command = [sys.executable, "-c", BENCH, "bench", "l2", "--l2-adapter", json.dumps(adapter)]
        command += ["--rounds", str(arguments.rounds), "--num-keys", str(arguments.num_keys)]
        command += ["--data-size-kb", str(arguments.data_size_kb)]
        command += ["--no-skip-verify"] if name != "kvstow, int8" else []
        environment = {**os.environ, "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false"}
        done = subprocess.run(
            command, capture_output=True, text=True, env={**environment, "VALUES": arguments.values}
        )
        said = done.stdout + done.stderr
        if done.returncode or "MISMATCH" in said:
            raise RuntimeError(f"{name}: {said[-3000:]}")
    found: dict[str, list[float]] = {}
    for operation, number, took in re.findall(r"\[(Store|Lookup|Load)\] Round (\d+): ([\d.]+) ms", said):
        if int(number) > 1:  # the first warms up
            found.setdefault(operation, []).append(float(took))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeat", type=int, default=3, help="of each adapter, in turns")
    parser.add_argument("--rounds", type=int, default=6, help="in a repetition")
    parser.add_argument("--num-keys", type=int, default=16)
    parser.add_argument("--data-size-kb", type=int, default=4096)
    parser.add_argument("--values", choices=("lmcache", "kv"), default="lmcache")
    parser.add_argument("adapters", nargs="*", metavar="ADAPTER", help=f"of {list(ADAPTERS)}; all if none is named")
    arguments = parser.parse_args()
    arguments.adapters = arguments.adapters or list(ADAPTERS)
    if unknown := set(arguments.adapters) - set(ADAPTERS):
        parser.error(f"no adapters: {sorted(unknown)}")
    took: dict[str, dict[str, list[float]]] = {name: {} for name in arguments.adapters}
    notes: dict[str, dict[str, float]] = {name: {} for name in arguments.adapters}
    for _ in range(arguments.repeat):
        for name in arguments.adapters:
            for operation, rounds in run(name, arguments, notes[name]).items():
                took[name].setdefault(operation, []).extend(rounds)
    size = arguments.num_keys * arguments.data_size_kb / 1024
    print("| adapter | store MB/s | load MB/s | look up | smaller |\n|---|---|---|---|---|")
    for name, found in took.items():
        store, load, lookup = (statistics.median(found[o]) for o in ("Store", "Load", "Lookup"))
        ratio = notes[name].get("ratio")
        print(
            f"| {name} | {1e3 * size / store:,.0f} | {1e3 * size / load:,.0f} | {lookup:.2f} ms | "
            + (f"{ratio:.2f} x |" if ratio else "|")
        )


if __name__ == "__main__":
    main()

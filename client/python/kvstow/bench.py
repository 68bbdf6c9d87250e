"""Measures this package beside the C++ client it is built on: `python -m kvstow.bench`.

Both put and get the same pages of 2 MiB at the same server, in turns, over each transport. The last
column is Python's speed over C++'s: the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kvstow.client import Client, Space
from kvstow.server import Server
from kvstow.types import Bounds, KvSpec, Page

_SPEC = KvSpec(
    model="bench", layers=16, kv_heads=8, head_dim=64, dtype="float16", page_tokens=64
)  # 2 MiB a page
_PAGE_BYTES = _SPEC.layers * 2 * _SPEC.page_tokens * _SPEC.kv_heads * _SPEC.head_dim * 2
_TRANSPORTS = {  # bytes of shared memory, direct connections
    "streams": (0, 0),
    "direct": (0, 8),
    "shared memory": (256 << 20, 8),
}


def _rooms(client: Client, transport: str, pages: int) -> list[np.ndarray[Any, Any]]:
    if transport == "shared memory":
        room = client.buffer(pages * _PAGE_BYTES)
    else:
        room = np.zeros(pages * _PAGE_BYTES, np.uint8)
    return [room[i * _PAGE_BYTES : (i + 1) * _PAGE_BYTES] for i in range(pages)]


def _seconds(call: Callable[[], list[Any]], good: tuple[str, ...]) -> float:
    start = time.perf_counter()
    results = call()
    took = time.perf_counter() - start
    wrong = [result for result in results if result.outcome not in good]
    if wrong:
        raise RuntimeError(f"a page was {wrong[0].outcome}: {wrong[0].message}")
    return took


def _round(space: Space, number: int, pages: list[Any], rooms: list[Any]) -> dict[str, float]:
    """Seconds of one put and one get by each; who goes first alternates."""
    native, info = space.client._native, space._info
    assert info is not None
    puts = {
        who: [Page(f"{who} {number} {i}".encode(), page) for i, page in enumerate(pages)]
        for who in ("c++", "python")
    }
    keys = {who: [page.key for page in pages] for who, pages in puts.items()}
    calls: dict[str, Callable[[], float]] = {
        "put c++": lambda: native.time_put(info, puts["c++"]),
        "put python": lambda: _seconds(lambda: space.put(puts["python"]), ("STORED",)),
        "get c++": lambda: native.time_get(info, keys["c++"], rooms, Bounds()),
        "get python": lambda: _seconds(lambda: space.get(keys["python"], rooms), ("HIT",)),
    }
    order = list(calls)
    if number % 2:
        order = [order[1], order[0], order[3], order[2]]
    seconds = {name: calls[name]() for name in order}
    space.delete(keys["c++"] + keys["python"], force=True)
    return seconds


def measure(transport: str, recipe: str, pages: int, rounds: int) -> list[dict[str, Any]]:
    """One row for put and one for get."""
    with Server(host_bytes="1GiB") as server:
        shared, direct = _TRANSPORTS[transport]
        with Client(server.address, shared_bytes=shared, direct_connections=direct) as client:
            space = client.open_space("bench", _SPEC, recipe=recipe)
            sources, rooms = (_rooms(client, transport, pages) for _ in range(2))
            random = np.random.default_rng(0)
            for source in sources:
                values = random.standard_normal(_PAGE_BYTES // 2, np.float32)
                source[:] = values.astype(np.float16).view(np.uint8)
            _round(space, 0, sources, rooms)  # warms up
            took = [_round(space, 1 + n, sources, rooms) for n in range(rounds)]
    rows = []
    size = pages * _PAGE_BYTES / 1e9
    for operation in ("put", "get"):
        ratios = [one[f"{operation} c++"] / one[f"{operation} python"] for one in took]
        speeds = {
            who: size / statistics.median(one[f"{operation} {who}"] for one in took)
            for who in ("c++", "python")
        }
        rows.append(
            {
                "transport": transport,
                "recipe": recipe,
                "operation": operation,
                "cpp_gbps": round(speeds["c++"], 3),
                "python_gbps": round(speeds["python"], 3),
                "ratio": round(statistics.median(ratios), 3),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m kvstow.bench",
        description="Puts and gets pages of 2 MiB from Python and from C++, in turns.",
    )
    parser.add_argument("--pages", type=int, default=8, help="in a call [8]")
    parser.add_argument("--rounds", type=int, default=40, help="of each, after one to warm up [40]")
    parser.add_argument("--recipe", default="raw", help="[raw]")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    if arguments.pages < 1 or arguments.rounds < 1:
        parser.error("--pages and --rounds must be 1 or more")
    rows = [
        row
        for transport in _TRANSPORTS
        for row in measure(transport, arguments.recipe, arguments.pages, arguments.rounds)
    ]
    if arguments.format == "json":
        print(json.dumps({"rows": rows}))
        return
    print(f"{'transport':<14} {'':<4} {'C++ GB/s':>9} {'Python GB/s':>12} {'ratio':>6}")
    for row in rows:
        print(
            f"{row['transport']:<14} {row['operation']:<4} {row['cpp_gbps']:>9.2f}"
            f" {row['python_gbps']:>12.2f} {row['ratio']:>6.2f}"
        )


if __name__ == "__main__":
    main()

"""LMCache's adapters for Redis and Valkey beside kvstow's remote tier, on one Redis Cluster.

    python lmcache_remote.py [--rounds 5] [--values 24] [--value-kib 4096] [CONTENDER...]

Starts `scripts/cluster`, three primaries and three replicas on loopback, anew for each contender. All run
under LMCache's own interface of adapters. One adapter stores values of normal bfloat16 numbers. Another
one, which has seen none of them, looks them up and loads them. For kvstow these are two nodes: node A
stores and sends to the cluster, node B is empty and loads from there.

Then a primary dies (SIGKILL), and a third adapter, which was connected before, looks all values up and
loads them: at once, and when the cluster says that it is ok again.

LMCache's Redis client knows no cluster: it has one redis-server of its own. Prints the medians of the
rounds but the first, in raw bytes a second, and what became of the values.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")

import kvstow
import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.memory_management import TensorMemoryObj
from lmcache_peer import PATIENCE, RedisServer, keys, memory_of, wait

SCRIPTS = Path(__file__).resolve().parents[4] / "scripts"


class Cluster:
    """Three primaries, of which the first dies, and three replicas."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.first = folder, 7101
        self._call("start", "--port", str(self.first), "--maxmemory", "2gb")
        self.ports = [self.first + i for i in range(6)]
        self.addresses = ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def _call(self, verb: str, *flags: str) -> None:
        subprocess.run([SCRIPTS / "cluster", verb, self.folder, *flags], check=True, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        os.kill(int((self.folder / f"{self.first}.pid").read_text()), signal.SIGKILL)

    def wait_until_ok(self) -> bool:
        """Whether a replica took over."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            promoted = any(ask(port, "role").startswith("master") for port in self.ports[3:])
            if promoted and "cluster_state:ok" in ask(self.ports[1], "cluster", "info"):
                return True
            time.sleep(0.02)
        return False

    def held(self) -> int:
        return sum(value_bytes(port) for port in self.ports if ask(port, "role").startswith("master"))

    def stop(self) -> None:
        self._call("stop")


class OneServer(RedisServer):
    """A server without a replica."""

    def wait_until_ok(self) -> bool:
        return False

    def held(self) -> int:
        return value_bytes(self.port)

    def stop(self) -> None:
        self.kill()


def ask(port: int, *command: str) -> str:
    return subprocess.run(["redis-cli", "-p", str(port), *command], capture_output=True, text=True).stdout


def value_bytes(port: int) -> int:
    """Of all values that a server holds, without what Redis itself takes."""
    each = "for _, name in ipairs(redis.call('keys', '*')) do sum = sum + redis.call('strlen', name) end"
    return int(ask(port, "eval", f"local sum = 0 {each} return sum", "0"))


class Adapter:
    """An adapter of LMCache's, called as its controllers do."""

    def __init__(self, config: dict[str, Any]) -> None:
        kind = get_l2_adapter_config_class(str(config["type"]))
        self._adapter: Any = create_l2_adapter(kind.from_dict(config))

    def store(self, keys: list[ObjectKey], values: list[TensorMemoryObj]) -> bool:
        task = self._adapter.submit_store_task(keys, values)
        wait(self._adapter.get_store_event_fd())
        return bool(self._adapter.pop_completed_store_tasks()[task].is_successful())

    def fetch(self, keys: list[ObjectKey], rooms: list[TensorMemoryObj]) -> int:
        """Looks all up and loads what is there. How many values came."""
        task = self._adapter.submit_lookup_and_lock_task(keys, {})
        wait(self._adapter.get_lookup_and_lock_event_fd())
        there = self._adapter.query_lookup_and_lock_result(task)
        found = [i for i in range(len(keys)) if there.test(i)]
        if not found:
            return 0
        names = [keys[i] for i in found]
        task = self._adapter.submit_load_task(names, [rooms[i] for i in found])
        wait(self._adapter.get_load_event_fd())
        came = self._adapter.query_load_result(task)
        self._adapter.submit_unlock(names)
        return sum(came.test(i) for i in range(len(found)))

    def close(self) -> None:
        self._adapter.close()


@dataclasses.dataclass
class Stage:
    """What a contender needs: its adapters, and how to learn that the cluster has what was stored."""

    store: Adapter
    load: Adapter
    survivor: Adapter
    sent: Callable[[], None] = lambda: None


@contextlib.contextmanager
def peers(config: dict[str, Any]) -> Iterator[Stage]:
    adapters = [Adapter(config) for _ in range(3)]
    yield Stage(*adapters)
    for adapter in adapters:
        adapter.close()


def metric(server: kvstow.Server, name: str) -> float:
    page = urllib.request.urlopen(f"http://{server.http_address}/metrics").read().decode()
    return sum(float(n) for n in re.findall(rf"^kvstow_{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE))


@contextlib.contextmanager
def kvstow_nodes(recipe: str, cluster: Cluster) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(kvstow.Server("4GiB", remote=cluster.addresses)) for _ in range(3)]

        def sent() -> None:
            end = time.monotonic() + PATIENCE
            while metric(nodes[0], "remote_sent_pages_total") < metric(nodes[0], "put_pages_total"):
                if time.monotonic() > end:
                    raise TimeoutError("node A did not send all pages")
                time.sleep(0.005)

        adapters = [
            Adapter(
                {
                    "type": "native_plugin",
                    "module_path": "kvstow.lmcache",
                    "class_name": "KvstowL2",
                    "adapter_params": {"address": node.address, "recipe": recipe},
                }
            )
            for node in nodes
        ]
        yield Stage(*adapters, sent)
        for adapter in adapters:
            adapter.close()


def valkey(cluster: Cluster) -> dict[str, Any]:
    return {"type": "valkey", "startup_nodes": cluster.addresses, "cluster_mode": True}


def resp(server: OneServer) -> dict[str, Any]:
    return {"type": "resp", "host": "127.0.0.1", "port": server.port}


CONTENDERS: dict[str, tuple[Callable[[Path], Any], Callable[[Any], contextlib.AbstractContextManager[Stage]]]] = {
    "kvstow, turboquant4": (Cluster, lambda cluster: kvstow_nodes("turboquant4", cluster)),
    "kvstow, int8": (Cluster, lambda cluster: kvstow_nodes("int8", cluster)),
    "kvstow, raw": (Cluster, lambda cluster: kvstow_nodes("raw", cluster)),
    "LMCache, valkey": (Cluster, lambda cluster: peers(valkey(cluster))),
    "LMCache, resp, one server": (lambda _: OneServer(), lambda server: peers(resp(server))),
}


def values(count: int, size: int) -> list[TensorMemoryObj]:
    made = [torch.empty(size, dtype=torch.uint8) for _ in range(count)]
    for data in made:
        data.view(torch.bfloat16).normal_()
    return [memory_of(data) for data in made]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.monotonic()
    try:
        answer = call()
    except TimeoutError:
        answer = "nothing"
    return answer, time.monotonic() - begin


def run(name: str, arguments: argparse.Namespace) -> str:
    """A row of the table."""
    size, count = arguments.value_kib << 10, arguments.values
    torch.manual_seed(0)
    stored, rooms = values(count, size), values(count, size)
    make_server, make_stage = CONTENDERS[name]
    with tempfile.TemporaryDirectory() as folder:
        server = make_server(Path(folder) / "redis")
        try:
            with make_stage(server) as stage:
                puts, gets = [], []
                for number in range(arguments.rounds):
                    names = keys(number * count, count)

                    def put() -> None:
                        if not stage.store.store(names, stored):
                            raise RuntimeError(f"{name}: a store failed")
                        stage.sent()

                    puts.append(timed(put)[1])
                    came, seconds = timed(lambda: stage.load.fetch(names, rooms))
                    gets.append(seconds)
                    if came != count:
                        raise RuntimeError(f"{name}: {came} of {count} values came")
                held = server.held() / (arguments.rounds * count * size)
                last = keys((arguments.rounds - 1) * count, count)
                server.kill()
                at_once = timed(lambda: stage.survivor.fetch(last, rooms))
                ok = server.wait_until_ok()
                later = timed(lambda: stage.survivor.fetch(last, rooms)) if ok else None
        finally:
            server.stop()
    rates = [count * size / 1e9 / statistics.median(took[1:]) for took in (puts, gets)]
    after = [f"{each[0]} in {each[1]:.2f} s" if each else "-" for each in (at_once, later)]
    return f"| {name} | {held:.3f} | {rates[0]:.2f} | {rates[1]:.2f} | {after[0]} | {after[1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--values", type=int, default=24, help="in a round")
    parser.add_argument("--value-kib", type=int, default=4096)
    names = f"of {list(CONTENDERS)}; all if none is named"
    parser.add_argument("contenders", nargs="*", metavar="CONTENDER", help=names)
    arguments = parser.parse_args()
    if unknown := set(arguments.contenders) - set(CONTENDERS):
        parser.error(f"no contenders: {sorted(unknown)}")
    rows = [run(name, arguments) for name in arguments.contenders or CONTENDERS]
    print("| contender | bytes in Redis, a raw byte | put GB/s | get GB/s ", end="")
    print(f"| of {arguments.values}, a primary just died | of {arguments.values}, cluster ok again |")
    print("|---|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()

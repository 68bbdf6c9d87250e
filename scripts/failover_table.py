#!/usr/bin/env python3
"""What a worker sees on a kvstow node while its remote tier fails: the table of docs/RELIABILITY.md.

Six Redis processes and two kvstowd run on this machine. Node A sends pages to the remote tier. On
node B, one worker reads pages that B holds, over and over. Another one looks up pages that only the
remote tier has, each once, and gets those that it finds. Then something fails. Every byte is compared
with what was put.

    PYTHONPATH=build/dev/python $(scripts/python) scripts/failover_table.py --bin build/dev/bin

It takes about two minutes. The times count where the machine has nothing else to do.
"""

import argparse
import os
import pathlib
import signal
import socket
import sys
import tempfile
import threading
import time

import numpy as np
from cluster_demo import ROOT, Cluster, Node, eventually

import kvstow

SPEC = kvstow.KvSpec(model="failover", layers=2, kv_heads=2, head_dim=64, dtype="float16", page_tokens=16)
FAR, NEAR = 12_000, 64  # pages that only the remote tier has; pages that B holds
CALM, AFTER = 3, 4  # seconds before the failure, and after all is well


def key_of(i):
    return b"page-%08d" % i


def page_of(i):
    return np.random.default_rng(i).integers(0, 15_000, SPEC.page_shape(), dtype=np.uint16).view(np.float16)


class Worker(threading.Thread):
    """A worker of node B, which notes each of its calls: when it began, how long it took, what came."""

    def __init__(self, address, step):
        super().__init__()
        self.client = kvstow.Client(address)
        self.space = self.client.open_space("failover", SPEC, recipe="raw")
        self.step, self.calls, self.wrong, self.stop = step, [], 0, False

    def run(self):
        while not self.stop and self.step(self):
            pass
        self.client.close()

    def read(self, keys, numbers):
        begin = time.monotonic()
        found = self.space.lookup(keys)
        middle = time.monotonic()
        hits = 0
        if found.pages:
            out = SPEC.empty(found.pages)
            results = self.space.get(keys[: found.pages], out, lease=found.lease)
            for i, result in enumerate(results):
                hits += result.hit
                self.wrong += result.hit and out[i].tobytes() != page_of(numbers[i]).tobytes()
        self.calls.append((begin, middle - begin, time.monotonic() - middle, hits, len(keys)))


def near_step(worker):
    first = FAR + 8 * (len(worker.calls) % (NEAR // 8))
    worker.read([key_of(i) for i in range(first, first + 8)], range(first, first + 8))
    return True


def far_step(worker):
    i = len(worker.calls)
    worker.read([key_of(i)], [i])
    time.sleep(0.002)
    return i + 1 < FAR


def put_all(address, numbers):
    with kvstow.Client(address) as client:
        space = client.open_space("failover", SPEC, recipe="raw")
        for begin in range(0, len(numbers), 64):
            some = numbers[begin : begin + 64]
            stored = space.put([kvstow.Page(key_of(i), page_of(i)) for i in some])
            if not all(result.stored for result in stored):
                sys.exit(f"FAILED: a put: {stored[0].outcome}")


class Trial:
    """One failure, with a cluster and nodes of its own."""

    def __init__(self, programs, folder):
        self.cluster = Cluster(folder)
        self.a = Node(programs, self.cluster.addresses, "A", "1GiB")
        self.b = Node(programs, self.cluster.addresses, "B", "1GiB")

    def pid(self, i):
        return int((self.cluster.folder / f"{self.cluster.port + i}.pid").read_text())

    def primaries_ok(self):
        """Returns whether the two other primaries call the cluster ok.

        It asks over a socket: programs that are started for it would take the processor from what is measured.
        """
        for i in (1, 2):
            with socket.create_connection(("127.0.0.1", self.cluster.port + i), timeout=5) as server:
                server.sendall(b"CLUSTER INFO\r\n")
                if b"cluster_state:ok" not in server.recv(65536):
                    return False
        return True

    def fill(self):
        put_all(self.a.address, range(FAR))
        put_all(self.b.address, range(FAR, FAR + NEAR))
        want = 2 * (FAR + NEAR)  # a record and a value each
        eventually(lambda: self.cluster.values() >= want, f"the pages are not all in Redis: {self.cluster.values()}")

    def run(self, failure, means):
        self.fill()
        near, far = Worker(self.b.address, near_step), Worker(self.b.address, far_step)
        near.start(), far.start()
        time.sleep(CALM)
        failed = time.monotonic()
        failure(self)
        well = failed
        if means == FAILOVER:
            eventually(lambda: not self.primaries_ok(), "nobody noticed")
            eventually(self.primaries_ok, "no replica took over")
            well = time.monotonic()
        time.sleep(AFTER)
        near.stop = far.stop = True
        near.join(), far.join()
        return self.report(near, far, failed, well, means == LOSS)

    @staticmethod
    def report(near, far, failed, well, lost):
        def p99(calls):
            return 1e3 * float(np.percentile([lookup + get for _, lookup, get, _, _ in calls], 99))

        before = [c for c in near.calls if c[0] < failed]
        during = [c for c in near.calls if failed <= c[0]]
        misses = [c for c in far.calls if c[0] >= failed and c[3] < c[4]]
        asked = [c for c in far.calls if failed <= c[0] < max(well, failed + 1)]
        last = max((c[0] + c[1] + c[2] for c in misses), default=None)
        after = "none" if last is None else f"{max(0.0, last - well):.1f}"
        return [
            f"{p99(before):.1f}, {p99(during):.1f}",
            str(sum(c[4] - c[3] for c in near.calls)),
            f"{1e3 * max(c[1] for c in far.calls if c[0] >= failed):.0f}",
            f"{1e3 * max(c[2] for c in far.calls if c[0] >= failed):.0f}",
            f"{len([c for c in misses if c[0] < max(well, failed + 1)])} of {len(asked)}",
            f"{well - failed:.1f}" if well > failed else "at once",
            "those that it had" if lost else after,
            str(near.wrong + far.wrong),
        ]

    def stop(self):
        for node in (self.a, self.b):
            if node.server.poll() is None:
                node.kill()
        for i in range(6):
            try:
                os.kill(self.pid(i), signal.SIGCONT)
            except (OSError, ValueError):
                pass
        self.cluster.call("stop")


def kill_redis(i):
    return lambda trial: os.kill(trial.pid(i), signal.SIGKILL)


def freeze_redis(i):
    return lambda trial: os.kill(trial.pid(i), signal.SIGSTOP)


def forget(trial):
    trial.cluster.ask(trial.cluster.port, "flushall")


# What fails, and what that means: a replica must take over, pages are lost for good, or neither.
FAILOVER, LOSS, NOTHING = range(3)
FAILURES = {
    "kill -9 of a primary": (kill_redis(0), FAILOVER),
    "a primary stands still": (freeze_redis(0), FAILOVER),
    "kill -9 of a replica": (kill_redis(3), NOTHING),
    "a primary forgets all": (forget, LOSS),
    "kill -9 of the node that sent the pages": (lambda trial: trial.a.kill(), NOTHING),
}
HEADINGS = ["", "local read p99, ms: before, after", "local misses", "slowest look-up, ms", "slowest get, ms"]
HEADINGS += ["remote misses", "cluster ok again, s", "last miss after that, s", "wrong bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin", help="folder of the programs")
    parser.add_argument("--only", help="the failures whose names contain this")
    args = parser.parse_args()
    print("| " + " | ".join(HEADINGS) + " |\n" + "|---" * len(HEADINGS) + "|", flush=True)
    for name, (failure, means) in FAILURES.items():
        if args.only and args.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(args.bin, pathlib.Path(folder))
            try:
                print("| " + " | ".join([name, *trial.run(failure, means)]) + " |", flush=True)
            finally:
                trial.stop()


if __name__ == "__main__":
    main()

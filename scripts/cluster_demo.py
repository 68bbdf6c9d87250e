#!/usr/bin/env python3
"""Two nodes over one Redis Cluster: what a worker puts on one node is a hit on the other.

`scripts/demo --cluster` runs it: six Redis processes and two kvstowd on this machine. Node A gets a
prompt. Node B, which has never seen it, serves it from the remote tier. Then one of the Redis
primaries dies, then both nodes; a new node starts with nothing and is warm. The demo ends with an
error when a page is missing that should be there, or has other bytes.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASE = ROOT / "tests/data/smollm2-wiki-256.safetensors"  # 256 tokens of SmolLM2-135M
TOKENS, PAGES = 256, 16
PATIENCE = 20  # seconds, for what happens in the background


def need(true, what):
    if not true:
        sys.exit(f"FAILED: {what}")


def eventually(ask, what):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.05)
    return need(False, what)


class Node:
    """A kvstowd of its own: no memory of earlier ones, no disk."""

    def __init__(self, programs, remote, name, host_bytes="64MiB"):
        self.programs, self.name = programs, name
        command = [programs / "kvstowd", "--listen=127.0.0.1:0", "--http-listen=off", f"--host-bytes={host_bytes}"]
        self.server = subprocess.Popen([*command, f"--remote={remote}"], stderr=subprocess.PIPE, text=True)
        log = []
        for line in self.server.stderr:
            log.append(line)
            if found := re.search(r"listening grpc=(\S+)", line):
                self.address = found[1]
                return
        sys.exit("kvstowd did not start:\n" + "".join(log))

    def kvstow(self, *arguments):
        command = [self.programs / "kvstow", *map(str, arguments), "--server", self.address, "--format", "json"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KVSTOW_")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.error = done.stderr or done.stdout
        return json.loads(done.stdout) if done.returncode == 0 else None

    def put(self, recipe):
        answer = self.kvstow("put", "--space", "demo", "--recipe", recipe, "--page-tokens", 16, CASE)
        need(answer is not None, f"{self.name}: put: {self.error}")
        return answer

    def get(self, out):
        return self.kvstow("get", "--space", "demo", CASE, out)

    def kill(self):
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
        self.server.stderr.close()


def free_port():
    """Returns the first of six ports that are free, as are those 10000 above."""
    for first in range(20001, 40000, 101):
        sockets = []
        try:
            for port in range(first, first + 6):
                for one in (port, port + 10000):
                    sockets.append(socket.socket())
                    sockets[-1].bind(("127.0.0.1", one))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    sys.exit("there are no six free ports in a row")


class Cluster:
    """Three primaries and three replicas."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.call("start", "--port", str(self.port))
        self.addresses = ",".join(f"127.0.0.1:{self.port + i}" for i in range(6))

    def call(self, verb, *flags):
        done = subprocess.run([ROOT / "scripts/cluster", verb, self.folder, *flags], capture_output=True, text=True)
        need(done.returncode == 0, f"scripts/cluster {verb}: {done.stdout}{done.stderr}")

    def kill_primary(self):
        os.kill(int((self.folder / f"{self.port}.pid").read_text()), signal.SIGKILL)

    def ask(self, port, *command):
        command = ["redis-cli", "-p", str(port), *command]
        return subprocess.run(command, capture_output=True, text=True).stdout

    def serves(self):
        """Returns whether a replica took over the slots of the dead primary."""
        promoted = any(self.ask(self.port + i, "role").startswith("master") for i in range(3, 6))
        return promoted and "cluster_state:ok" in self.ask(self.port + 1, "cluster", "info")

    def values(self):
        """Returns how many values the primaries hold."""
        return sum(int(self.ask(self.port + i, "dbsize") or 0) for i in range(3))


class Table:
    def __init__(self):
        self.rows = [["", "node", "hit tokens", "remote", "host", "ms"]]

    def add(self, what, node, answer, seconds):
        tiers = answer.get("tiers", {})
        counts = [str(tiers.get(tier, "-")) for tier in ("remote", "host")]
        self.rows.append([what, node.name, str(answer.get("hit_tokens", "-")), *counts, f"{1e3 * seconds:.0f}"])

    def show(self):
        widths = [max(len(row[i]) for row in self.rows) for i in range(len(self.rows[0]))]
        for row in self.rows:
            cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1])]
            print("  ".join(cells + [cell.rjust(width) for cell, width in zip(row[2:], widths[2:])]).rstrip())


class Demo:
    def __init__(self, programs, folder, recipe):
        self.programs, self.folder, self.recipe = programs, folder, recipe
        self.table = Table()
        self.nodes = []
        self.bytes = None  # that every node must give
        self.cluster = Cluster(folder / "redis")

    def start(self, name):
        self.nodes.append(Node(self.programs, self.cluster.addresses, name))
        return self.nodes[-1]

    def stop(self):
        for node in self.nodes:
            if node.server.poll() is None:
                node.kill()
        self.cluster.call("stop")

    def fetch(self, what, node):
        """Gets the whole prompt from a node, and compares its bytes with those of the other nodes."""
        out = self.folder / f"{node.name}.safetensors"

        def all_of_it():
            begin = time.monotonic()
            answer = node.get(out)
            whole = answer is not None and answer["hit_tokens"] == TOKENS
            return (answer, time.monotonic() - begin) if whole else None

        answer, seconds = eventually(all_of_it, f"{what}: not all pages came")
        self.table.add(what, node, answer, seconds)
        self.bytes = self.bytes or out.read_bytes()
        need(out.read_bytes() == self.bytes, f"{what}: other bytes came")

    def has_all(self, node):
        answer = node.kvstow("exists", "--space", "demo", CASE)
        return answer is not None and answer["hit_tokens"] == TOKENS

    def run(self):
        a, b = self.start("A"), self.start("B")
        begin = time.monotonic()
        self.table.add("a worker puts its prompt on A", a, a.put(self.recipe), time.monotonic() - begin)
        self.fetch("A serves it", a)
        eventually(lambda: self.cluster.values() >= 2 * PAGES + 1, "A's pages never reached the cluster")
        self.fetch("B serves it, from the remote tier", b)
        self.fetch("B serves it again, from its memory", b)
        self.cluster.kill_primary()
        self.fetch("a Redis primary dies: B's memory serves on", b)
        eventually(self.cluster.serves, "no replica took over")
        c = self.start("C")
        self.fetch("C is new, and warm after the failover", c)
        for node in (a, b, c):
            node.kill()
        d = self.start("D")
        self.fetch("all nodes died; D is new, and warm", d)
        need(d.kvstow("drop", "--space", "demo") is not None, d.error)
        time.sleep(1)  # a drop reaches every node within a second
        e = self.start("E")
        came = e.get(self.folder / "E.safetensors") is not None or self.has_all(e)
        need(not came, "a dropped space came back")
        self.table.show()
        print("\nremote, host: pages that came from there. Every node gave the same bytes.")
        print("D dropped the space: a second later E, which is new, finds nothing of it.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin", help="folder of the programs")
    parser.add_argument("--recipe", default="int8")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        demo = Demo(args.bin, pathlib.Path(folder), args.recipe)
        try:
            demo.run()
        finally:
            demo.stop()


if __name__ == "__main__":
    main()

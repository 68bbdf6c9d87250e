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
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASE = ROOT / "tests/data/smollm2-wiki-256.safetensors"  # 256 tokens of SmolLM2-135M
TOKENS = 256
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

    def __init__(self, programs, remote, name):
        self.programs, self.name = programs, name
        command = [programs / "kvstowd", "--listen=127.0.0.1:0", "--http-listen=off", "--host-bytes=64MiB"]
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


def cluster(verb, folder):
    done = subprocess.run([ROOT / "scripts/cluster", verb, folder], capture_output=True, text=True)
    need(done.returncode == 0, f"scripts/cluster {verb}: {done.stdout}{done.stderr}")
    return done.stdout


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

    def start(self, name):
        node = Node(self.programs, self.remote, name)
        self.nodes.append(node)
        return node

    def fetch(self, what, node):
        """Gets the prompt from a node that may have to learn of it first, and compares its bytes."""
        out = self.folder / f"{node.name}.out"
        begin = time.monotonic()
        answer = node.get(out)
        seconds = time.monotonic() - begin
        need(answer is not None and answer["hit_tokens"] == TOKENS, f"{what}: {answer or node.error}")
        self.table.add(what, node, answer, seconds)
        if not hasattr(self, "bytes"):
            self.bytes = out.read_bytes()
        need(out.read_bytes() == self.bytes, f"{what}: other bytes came")

    def open(self, node):
        """A worker opens its space on a node: the same model and recipe as everywhere."""
        need(node.kvstow("put", "--space", "demo", "--recipe", self.recipe, "--page-tokens", 16, "--tokens", 0, CASE), node.error)

    def run(self):
        self.remote = cluster("addresses", self.folder / "redis").strip()
        a, b = self.start("A"), self.start("B")
        begin = time.monotonic()
        put = a.put(self.recipe)
        self.table.add("a worker puts its prompt on A", a, put, time.monotonic() - begin)
        self.fetch("A serves it", a)
        return a, b, put


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin", help="folder of the programs")
    parser.add_argument("--recipe", default="int8")
    args = parser.parse_args()
    del args


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Load on a server of its own for some minutes: does its memory grow, is anything left behind?

    scripts/soak.py [--minutes 10] [--bin build/bin]

A kvstowd with little memory and a small disk gets, round after round: a trace's prompts from several
clients (lookups with leases, gets, puts that spill and evict), a case that is put, pinned, fetched
and unpinned, a tier that is emptied, a budget that changes and changes back. Its resident memory is
sampled every second. Prints one line of JSON: the slope of the memory after the warm-up (the first
third), in percent of its mean an hour, with the slope's standard error, and how many leases, pins
and file descriptors (but the disk tier's) there are above those of the start. Fails when leases, pins or descriptors are
left, or a call does.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRACE = os.path.join(ROOT, "tests/data/mooncake_conversation_1000.jsonl.gz")
CASE = os.path.join(ROOT, "tests/data/smollm2-wiki-256.safetensors")
LEASE_S = 2


class Server:
    def __init__(self, folder, programs):
        self.address = f"unix:{folder}/kvstow.sock"
        self.disk = os.path.join(folder, "disk")
        self.kvstow = os.path.join(programs, "kvstow")
        self.process = subprocess.Popen(
            [os.path.join(programs, "kvstowd"), "--listen", self.address, "--http-listen", "off",
             "--host-bytes", "128MiB", "--disk-path", self.disk,
             "--disk-bytes", "512MiB", "--lease-ttl", f"{LEASE_S}s", "--log-level", "error"])

    def run(self, *arguments, check=True):
        done = subprocess.run(
            [self.kvstow, *arguments, "--server", self.address, "--format", "json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if check and done.returncode != 0:
            raise RuntimeError(f"kvstow {' '.join(arguments)}: {done.returncode} {done.stderr}")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait(self):
        until = time.monotonic() + 30
        while self.run("ping", check=False) is None:
            if time.monotonic() > until or self.process.poll() is not None:
                raise RuntimeError("the server does not answer")
            time.sleep(0.1)

    def resident(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        raise RuntimeError("no VmRSS")

    def descriptors(self):
        """Sockets and all else but the files of the disk tier, of which it holds as many as it has."""
        count = 0
        for entry in os.scandir(f"/proc/{self.process.pid}/fd"):
            try:
                count += not os.readlink(entry.path).startswith(self.disk)
            except FileNotFoundError:
                pass  # closed meanwhile
        return count


def one_round(server, number, folder):
    space = f"soak-{number % 5}"
    server.run("replay", "--requests", "150", "--clients", "2", "--space", space + "-trace",
               "--recipe", "int8", "--page-tokens", "64", "--layers", "4", TRACE)
    case = ["--space", space, CASE]
    server.run("put", "--recipe", "rotated8", "--page-tokens", "16", *case)
    server.run("pin", *case)
    server.run("get", *case, os.path.join(folder, "out.safetensors"))
    server.run("unpin", *case)
    if number % 3 == 0:
        server.run("budget", "--tier", "host", "64MiB")
        server.run("budget", "--tier", "host", "128MiB")
    if number % 5 == 0:
        server.run("evict", "--tier", "host")


def slope(samples):
    """Of y over x by least squares, and its standard error."""
    xs, ys = zip(*samples)
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    sxx = sum((x - mean_x) ** 2 for x in xs)
    b = sum((x - mean_x) * (y - mean_y) for x, y in samples) / sxx
    rest = sum((y - mean_y - b * (x - mean_x)) ** 2 for x, y in samples)
    return b, (rest / (len(samples) - 2) / sxx) ** 0.5, mean_y


def soak(server, minutes, folder):
    server.wait()
    one_round(server, 0, folder)  # spaces and the disk's files are there
    time.sleep(LEASE_S + 1)
    descriptors = server.descriptors()
    samples, stop = [], threading.Event()
    begin = time.monotonic()

    def sample():
        while not stop.wait(1):
            samples.append((time.monotonic() - begin, server.resident()))

    sampler = threading.Thread(target=sample)
    sampler.start()
    rounds = 0
    try:
        while time.monotonic() - begin < 60 * minutes:
            rounds += 1
            one_round(server, rounds, folder)
    finally:
        stop.set()
        sampler.join()
    time.sleep(LEASE_S + 2)
    stats = server.run("stats")
    warm = [s for s in samples if s[0] > 20 * minutes]
    b, error, mean = slope(warm)
    counters = stats["counters"]
    return {"minutes": minutes, "rounds": rounds, "samples": len(warm), "mean_rss_mib": mean / 2**20,
            "slope_percent_an_hour": b * 3600 / mean * 100,
            "standard_error": error * 3600 / mean * 100,
            "leases_left": stats["leases"], "pins_left": stats["pinned_pages"],
            "descriptors_more": server.descriptors() - descriptors,
            "dropped_pages": counters["dropped_pages"], "demoted_bytes": counters["demoted_bytes"],
            "corrupt_segments": counters["corrupt_segments"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/bin"))
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder, flags.bin)
        try:
            result = soak(server, flags.minutes, folder)
        finally:
            server.process.terminate()
            server.process.wait()
    print(json.dumps(result))
    left = result["leases_left"], result["pins_left"], max(0, result["descriptors_more"])
    return 1 if any(left) or result["corrupt_segments"] else 0


if __name__ == "__main__":
    sys.exit(main())

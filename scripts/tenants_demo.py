#!/usr/bin/env python3
"""Two tenants on one server, with mutual TLS, quotas and an encrypted disk, at once.

`scripts/demo --tenants` runs it. `blue` has half of the host memory guaranteed, `green` may hold
an eighth of it. Both put the same prompt under the same name, and get it back; green then floods
the server. kvstowd is killed and comes back. The demo ends with an error when one of them sees or
loses what it should not.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASE = ROOT / "tests/data/smollm2-wiki-256.safetensors"  # 256 tokens of SmolLM2-135M
TOKENS = 256
FLOOD = 8  # copies of the prompt, 5.6 MiB of int8 each as raw
HOST_BYTES, GUARANTEE, LIMIT = "16MiB", 8 << 20, 2 << 20

ACCESS = {
    "tenants": {
        "blue": {"guarantee": {"host": GUARANTEE}},
        "green": {"limit": {"host": LIMIT}},
    },
    "identities": [
        {"certificate": "spiffe://demo/blue", "tenant": "blue", "role": "worker"},
        {"certificate": "spiffe://demo/green", "tenant": "green", "role": "worker"},
        {"certificate": "dns:operator.demo", "role": "admin"},
    ],
}
NAMES = {
    "server": "DNS:localhost,IP:127.0.0.1",
    "blue": "URI:spiffe://demo/blue",
    "green": "URI:spiffe://demo/green",
    "operator": "DNS:operator.demo",
}


def need(true, what):
    if not true:
        sys.exit(f"FAILED: {what}")


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_certificates(folder, names_of):
    """Makes a certificate authority, and a certificate and key for each name that it signs."""
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(folder, "req", "-x509", *new_key, "-days", "2", "-subj", "/CN=demo", "-keyout", "ca.key", "-out", "ca.pem")
    for who, names in names_of.items():
        openssl(folder, "req", *new_key, "-subj", f"/CN={who}", "-keyout", f"{who}.key", "-out", f"{who}.csr")
        (folder / "names").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        sign = ("x509", "-req", "-in", f"{who}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(folder, *sign, "-days", "2", "-extfile", "names", "-out", f"{who}.pem")


class Demo:
    def __init__(self, programs, folder):
        self.programs = programs
        self.folder = folder
        self.rows = []
        make_certificates(folder, NAMES)
        (folder / "access.json").write_text(json.dumps(ACCESS))
        (folder / "master.key").write_text(secrets.token_hex(32))
        self.start()

    def start(self):
        at = self.folder
        settings = {
            "listen": "127.0.0.1:0",
            "http-listen": "off",
            "host-bytes": HOST_BYTES,
            "disk-path": at / "store",
            "disk-bytes": "256MiB",
            "tls-cert": at / "server.pem",
            "tls-key": at / "server.key",
            "tls-client-ca": at / "ca.pem",
            "access": at / "access.json",
            "master-key": f"file:{at}/master.key",
        }
        command = [self.programs / "kvstowd"] + [f"--{name}={value}" for name, value in settings.items()]
        self.server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        log = []
        for line in self.server.stderr:
            log.append(line)
            if found := re.search(r"listening grpc=(\S+)", line):
                self.address = found[1]
                return
        sys.exit("kvstowd did not start:\n" + "".join(log))

    def stop(self, how=signal.SIGTERM):
        self.server.send_signal(how)
        self.server.wait()
        self.server.stderr.close()

    def kvstow(self, who, *arguments):
        """Runs the command line with the certificate of `who`. Returns its answer, or None."""
        at = self.folder
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KVSTOW_")}
        environment |= {
            "KVSTOW_SERVER": self.address,
            "KVSTOW_TLS_CA": str(at / "ca.pem"),
            "KVSTOW_TLS_CERT": str(at / f"{who}.pem"),
            "KVSTOW_TLS_KEY": str(at / f"{who}.key"),
        }
        command = [self.programs / "kvstow", *map(str, arguments), "--format", "json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.error = done.stderr or done.stdout
        return json.loads(done.stdout) if done.returncode == 0 else None

    def put(self, who, space):
        return self.kvstow(who, "put", "--space", space, "--recipe", "int8", "--page-tokens", 16, CASE)

    def get(self, who, space):
        return self.kvstow(who, "get", "--space", space, CASE, self.folder / f"{who}.out")

    def both(self, work):
        """Runs work(who) for both tenants at once. Returns the answers by tenant."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answers = {who: pool.submit(work, who) for who in ("blue", "green")}
            return {who: answer.result() for who, answer in answers.items()}

    def row(self, what, answers):
        for who, answer in answers.items():
            need(answer is not None, f"{who}: {what}: {self.error}")
            tiers = answer.get("tiers", {})
            self.rows.append(
                [what, who, str(answer.get("hit_tokens", "-"))]
                + [str(tiers.get(tier, "-")) for tier in ("host", "disk")]
                + [f"{answer['raw_bytes'] / 2**20:.2f}", f"{answer['stored_bytes'] / 2**20:.2f}"]
            )

    def got_all(self, what):
        answers = self.both(lambda who: self.get(who, "prompt"))
        self.row(what, answers)
        for who, answer in answers.items():
            need(answer["hit_tokens"] == TOKENS, f"{who}: {what}: {answer}")

    def held(self):
        rows = self.kvstow("operator", "quota")["tenants"]
        return {row["tenant"]: {t["tier"]: t["encoded_bytes"] for t in row["tiers"]} for row in rows}

    def load(self, who):
        """Returns GB/s of a put and of a get load of the tenant."""
        answer = self.kvstow(who, "bench", "--space", "load", "--pages", 96, "--page-tokens", 64, "--recipe", "int8")
        need(answer is not None, f"{who}: bench: {self.error}")
        return {row["operation"]: row["gbps"] for row in answer["rows"]}


def table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1])]
        print("  ".join(cells + [cell.rjust(width) for cell, width in zip(row[2:], widths[2:])]).rstrip())


def run(demo):
    demo.rows.append(["", "tenant", "hit tokens", "host", "disk", "raw MiB", "stored MiB"])
    demo.row("both put one prompt", demo.both(lambda who: demo.put(who, "prompt")))
    demo.got_all("both get it back")
    for i in range(FLOOD):
        need(demo.put("green", f"flood-{i}") is not None, demo.error)
    demo.got_all("after green's flood")
    held = demo.held()
    need(held["green"]["host"] <= LIMIT, f"green holds more than its limit: {held}")
    demo.put("blue", "only-blue")
    need(demo.get("green", "only-blue") is None, "green sees a space of blue's")
    unseen = demo.error.strip().splitlines()[-1]
    need(demo.kvstow("green", "quota") is None, "green may ask what only an operator may")
    demo.stop(signal.SIGKILL)
    demo.start()
    demo.got_all("after kill -9")
    alone = {who: demo.load(who) for who in ("blue", "green")}
    at_once = demo.both(demo.load)
    need(demo.kvstow("operator", "tenant", "drop", "green") is not None, demo.error)
    need(demo.get("green", "prompt") is None, "green's pages outlive it")
    need(demo.get("blue", "prompt")["hit_tokens"] == TOKENS, "blue lost pages with green")
    table(demo.rows)
    print("\nhost, disk: pages that came from there.")
    print(f"green may hold {LIMIT >> 20} MiB of host memory and holds {held['green']['host'] / 2**20:.2f} after its flood;")
    print(f"  blue holds {held['blue']['host'] / 2**20:.2f}, of {GUARANTEE >> 20} MiB that nobody can take from it.")
    print(f"green asks for a space of blue's: {unseen}")
    for way in ("put", "get"):
        speeds = [f"{who} {alone[who][way]:.2f} alone, {at_once[who][way]:.2f} beside the other" for who in alone]
        print(f"{way}, GB/s: " + "; ".join(speeds) + ".")
    print("The operator dropped green and its key: green's pages are gone, blue's are all there.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin", help="folder of the programs")
    programs = parser.parse_args().bin
    with tempfile.TemporaryDirectory() as folder:
        demo = Demo(programs, pathlib.Path(folder))
        try:
            run(demo)
        finally:
            demo.stop()


if __name__ == "__main__":
    main()

"""Two tenants on one server, with mutual TLS, quotas and an encrypted disk, as users set it up.

  two_tenants_test.py KVSTOWD KVSTOW CASE
"""

import json
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import unittest

from daemon import Daemon

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from tenants_demo import make_certificates  # noqa: E402

KVSTOWD, KVSTOW, CASE = sys.argv[1:4]

ACCESS = {
    "tenants": {"team-a": {"weight": 2, "guarantee": {"host": "4MiB"}}, "team-b": {"limit": {"host": "3MiB"}}},
    "identities": [
        {"certificate": "spiffe://test/team-a", "tenant": "team-a", "role": "worker"},
        {"certificate": "spiffe://test/team-b", "tenant": "team-b", "role": "worker"},
        {"certificate": "dns:ops.example", "role": "admin"},
    ],
}
NAMES = {
    "server": "DNS:localhost,IP:127.0.0.1",
    "team-a": "URI:spiffe://test/team-a",
    "team-b": "URI:spiffe://test/team-b",
    "operator": "DNS:ops.example",
}


class TwoTenants(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        make_certificates(self.folder, NAMES)
        (self.folder / "access.json").write_text(json.dumps(ACCESS))
        (self.folder / "master.key").write_text(secrets.token_hex(32))
        self.start()

    def tearDown(self):
        self.daemon.stop()

    def start(self):
        at = self.folder
        self.daemon = Daemon(
            KVSTOWD, "--host-bytes", "16MiB", "--disk-path", f"{at}/store", "--disk-bytes", "256MiB",
            "--tls-cert", f"{at}/server.pem", "--tls-key", f"{at}/server.key", "--tls-client-ca", f"{at}/ca.pem",
            "--access", f"{at}/access.json", "--master-key", f"file:{at}/master.key",
        )  # fmt: skip

    def kvstow(self, who, *arguments):
        at = self.folder
        shown = ["--tls-cert", f"{at}/{who}.pem", "--tls-key", f"{at}/{who}.key"] if who else []
        command = [KVSTOW, *arguments, "--server", self.daemon.address, "--tls-ca", f"{at}/ca.pem", *shown]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVSTOW_")}
        return subprocess.run([*command, "--format", "json"], capture_output=True, text=True, env=environment)

    def put(self, who, space, recipe):
        done = self.kvstow(who, "put", "--space", space, "--recipe", recipe, "--page-tokens", "16", CASE)
        self.assertEqual(done.returncode, 0, done.stderr)

    def hit_tokens(self, who, space):
        got = self.kvstow(who, "get", "--space", space, CASE, f"{self.folder}/out")
        return json.loads(got.stdout)["hit_tokens"] if got.returncode == 0 else None

    def tenants(self):
        rows = json.loads(self.kvstow("operator", "quota").stdout)["tenants"]
        return {row["tenant"]: {tier["tier"]: tier["encoded_bytes"] for tier in row["tiers"]} for row in rows}

    def test_each_has_its_own_and_no_more_than_its_share(self):
        self.put("team-a", "s", "raw")
        self.assertIsNone(self.hit_tokens("team-b", "s"), "the space of another tenant is not there")
        self.put("team-b", "s", "kvstow")
        for flood in range(4):
            self.put("team-b", f"flood-{flood}", "raw")
        self.assertEqual(self.hit_tokens("team-a", "s"), 256)
        self.assertEqual(self.hit_tokens("team-b", "s"), 256)
        held = self.tenants()
        self.assertGreaterEqual(held["team-a"]["host"], 4 << 20, "its guarantee")
        self.assertLessEqual(held["team-b"]["host"], 3 << 20, "its limit")
        self.assertIn("needs the role admin", self.kvstow("team-a", "status").stderr)
        self.assertNotEqual(self.kvstow(None, "spaces").returncode, 0, "without a certificate nobody gets in")

    def test_pages_come_back_and_a_dropped_tenant_does_not(self):
        self.put("team-a", "s", "raw")
        self.put("team-b", "s", "kvstow")
        self.daemon.process.kill()
        self.daemon.stop()
        store = b"".join(f.read_bytes() for f in (self.folder / "store").rglob("*") if f.is_file())
        self.assertNotIn(b"SmolLM2", store, "names of models are not in clear")
        self.start()
        self.assertEqual(self.hit_tokens("team-a", "s"), 256)
        self.assertEqual(self.hit_tokens("team-b", "s"), 256)
        self.assertEqual(self.kvstow("team-b", "tenant", "drop", "team-a").returncode, 1)
        self.assertEqual(self.kvstow("operator", "tenant", "drop", "team-a").returncode, 0)
        self.assertIsNone(self.hit_tokens("team-a", "s"))
        self.assertEqual(self.hit_tokens("team-b", "s"), 256)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

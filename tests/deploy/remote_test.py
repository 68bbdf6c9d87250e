"""The manifests of several kvstowds that share a Redis Cluster: in order, hardened, true of the servers, and at work.

  remote_test.py KVSTOWD KVSTOW PROJECT VERSION

The cluster runs here, on loopback, with the files of deploy/redis, where Redis and openssl are installed.
"""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import yaml

KVSTOWD, KVSTOW, PROJECT, VERSION = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4]
sys.path.insert(0, str(PROJECT / "tests/integration"))

from daemon import Daemon  # noqa: E402

DEPLOY = PROJECT / "deploy"
REDIS = DEPLOY / "redis"
REMOTE = DEPLOY / "kubernetes/remote"
COMPOSE = yaml.safe_load((DEPLOY / "compose/cluster.yaml").read_text())
KUSTOMIZATION = yaml.safe_load((REMOTE / "kustomization.yaml").read_text())
OBJECTS = [
    thing for name in KUSTOMIZATION["resources"]
    for thing in yaml.safe_load_all((REMOTE / name).read_text())
]
OPERATIONS = (PROJECT / "docs/OPERATIONS.md").read_text()
CASE = PROJECT / "tests/data/smollm2-wiki-256.safetensors"
# Those that kustomization.yaml tells how to make, with their keys.
SECRETS = {"kvstow-redis": {"password"}, "kvstow-redis-tls": {"tls.crt", "tls.key", "ca.crt"}}
PORTS = {"grpc": 7380, "http": 7381, "direct": 7382}
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "m": 2**20, "mb": 2**20,
         "g": 2**30, "gb": 2**30, "GB": 10**9}


def size(text):
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS[unit]


def directives():
    """(name, value) of each line of redis.conf that says something."""
    for line in (REDIS / "redis.conf").read_text().splitlines():
        if line and not line.startswith("#"):
            name, value = line.split(" ", 1)
            yield name, value


def objects(kind):
    return [thing for thing in OBJECTS if thing["kind"] == kind]


def workloads():
    return objects("DaemonSet") + objects("StatefulSet") + objects("Job")


def pods():
    return [(w["metadata"]["name"], w["spec"]["template"]["spec"], w["spec"]["template"]["metadata"]["labels"])
            for w in workloads()]


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def variables():
    """(where, name, value) of every variable of kvstowd."""
    for generator in KUSTOMIZATION["configMapGenerator"]:
        for literal in generator.get("literals", []):
            yield ("kustomization.yaml", *literal.split("=", 1))
    for name, pod, _ in pods():
        for container in containers(pod):
            for variable in container.get("env", []):
                if variable["name"].startswith("KVSTOW_"):
                    yield name, variable["name"], variable["value"]
    for name, service in COMPOSE["services"].items():
        for variable, value in service["environment"].items():
            if variable.startswith("KVSTOW_"):
                yield f"compose {name}", variable, value


def help_of(*command):
    return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout


def matches(selector, labels):
    if not all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items()):
        return False
    return all(labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", []))


class Manifests(unittest.TestCase):
    def test_every_yaml_file_is_read(self):
        files = [*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.yml")]
        self.assertGreaterEqual(len(files), 13)
        for file in files:
            for document in yaml.safe_load_all(file.read_text()):
                self.assertIsInstance(document, dict, file)

    def test_the_servers_take_every_setting_and_flag(self):
        known = help_of(KVSTOWD)
        found = list(variables())
        self.assertGreater(len(found), 10)
        for where, name, _ in found:
            flag = "--" + name.removeprefix("KVSTOW_").lower().replace("_", "-")
            self.assertRegex(known, rf"(?m)^\s+{flag} ", where)
        (node,) = objects("DaemonSet")
        (server,) = node["spec"]["template"]["spec"]["containers"]
        stop = server["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(stop[:2], ["kvstow", "drain"])
        for flag in [word for word in stop if word.startswith("--")]:
            self.assertRegex(help_of(KVSTOW, "drain"), rf"(?m)^\s+{flag} ")

    def test_no_server_waits_longer_for_a_drain_than_it_has(self):
        (node,) = objects("DaemonSet")
        pod = node["spec"]["template"]["spec"]
        stop = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        grace, timeout = (int(stop[stop.index(flag) + 1]) for flag in ("--grace", "--timeout"))
        self.assertLess(grace, timeout)
        self.assertLess(timeout + 10, pod["terminationGracePeriodSeconds"], "SIGTERM has 10 s for streams")

    def test_kustomize_finds_its_files(self):
        on_disk = {path.name for path in REMOTE.glob("*.yaml")} - {"kustomization.yaml"}
        self.assertEqual(set(KUSTOMIZATION["resources"]), on_disk)
        for generator in KUSTOMIZATION["configMapGenerator"]:
            for file in generator.get("files", []):
                self.assertTrue((REMOTE / file).resolve().is_file(), file)

    def test_what_pods_refer_to_is_there(self):
        maps = {generator["name"] for generator in KUSTOMIZATION["configMapGenerator"]}
        for name, pod, _ in pods():
            volumes = {}
            for volume in pod["volumes"]:
                volumes[volume["name"]] = volume
                if "secret" in volume:
                    keys = SECRETS[volume["secret"]["secretName"]]
                    self.assertLessEqual({item["key"] for item in volume["secret"].get("items", [])}, keys)
                if "configMap" in volume:
                    self.assertIn(volume["configMap"]["name"], maps)
            (workload,) = [w for w in workloads() if w["metadata"]["name"] == name]
            claims = {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", [])}
            mounted = {mount["name"] for container in containers(pod) for mount in container["volumeMounts"]}
            self.assertEqual(mounted, set(volumes) | claims, name)
            for container in containers(pod):
                for source in container.get("envFrom", []):
                    self.assertIn(source["configMapRef"]["name"], maps)
        header = (REMOTE / "kustomization.yaml").read_text()
        for secret, keys in SECRETS.items():
            self.assertIn(f"create secret generic {secret} ", header)
            for key in keys:
                self.assertIn(key, header)

    def test_pods_are_hardened_bounded_and_probed(self):
        for name, pod, _ in pods():
            self.assertTrue(pod["securityContext"]["runAsNonRoot"], name)
            self.assertEqual(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", name)
            self.assertFalse(pod["automountServiceAccountToken"], name)
            self.assertFalse({"hostNetwork", "hostIPC", "hostPID"} & set(pod), name)
            for container in containers(pod):
                context = container["securityContext"]
                self.assertTrue(context["readOnlyRootFilesystem"], name)
                self.assertFalse(context["allowPrivilegeEscalation"], name)
                self.assertEqual(context["capabilities"]["drop"], ["ALL"], name)
                added = context["capabilities"].get("add", [])
                self.assertEqual(added, ["CHOWN", "FOWNER"] if container["name"] == "folder" else [])
                self.assertEqual(set(container["resources"]), {"requests", "limits"}, name)
                if container["image"].startswith("kvstow"):
                    self.assertEqual(container["image"], f"kvstow:{VERSION}")
        (node,), (redis,) = objects("DaemonSet"), objects("StatefulSet")
        for workload in (node, redis):
            (container,) = workload["spec"]["template"]["spec"]["containers"]
            self.assertLess({"startupProbe", "livenessProbe", "readinessProbe"}, set(container))
        (server,) = node["spec"]["template"]["spec"]["containers"]
        self.assertEqual({p["name"]: p["containerPort"] for p in server["ports"]}, PORTS)
        for probe, path in (("startup", "/readyz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
            self.assertEqual(server[f"{probe}Probe"]["httpGet"], {"path": path, "port": "http"})

    def test_memory_fits(self):
        told = {name: value for where, name, value in variables() if where == "kustomization.yaml"}
        (node,), (redis,) = objects("DaemonSet"), objects("StatefulSet")
        limit = size(node["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"])
        used = size(told["KVSTOW_HOST_BYTES"]) + size(told["KVSTOW_LOCAL_BYTES"])
        # index-bytes is a 16th of the limit; puts, gets, leases, reports and the disk tier take 1.5 GiB.
        self.assertLessEqual(used + limit / 16 + 1.5 * 2**30, limit)
        limit = size(redis["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"])
        self.assertEqual(size(dict(directives())["maxmemory"]), limit * 3 // 4)
        for name, service in COMPOSE["services"].items():
            if name.startswith("redis-"):
                maxmemory = service["command"][service["command"].index("--maxmemory") + 1]
                self.assertLessEqual(size(maxmemory), size(service["mem_limit"]) * 3 / 4, name)
            if name.startswith("kvstow-"):
                limit = size(service["mem_limit"])
                host = size(service["environment"]["KVSTOW_HOST_BYTES"])
                self.assertLessEqual(host + limit / 16 + 1.5 * 2**30, limit, name)

    def test_selectors_find_their_pods(self):
        labels = {name: found for name, _, found in pods()}
        for workload in objects("DaemonSet") + objects("StatefulSet"):
            self.assertTrue(matches(workload["spec"]["selector"], labels[workload["metadata"]["name"]]))
        for service in objects("Service"):
            found = [n for n, l in labels.items() if matches({"matchLabels": service["spec"]["selector"]}, l)]
            self.assertEqual(found, [service["metadata"]["name"]])
        (redis,), (budget,) = objects("StatefulSet"), objects("PodDisruptionBudget")
        self.assertEqual(budget["spec"]["selector"], redis["spec"]["selector"])
        self.assertIn(redis["spec"]["serviceName"], [s["metadata"]["name"] for s in objects("Service")])

    def test_policies_cover_all_pods_and_let_the_servers_through(self):
        policies = objects("NetworkPolicy")
        for name, _, labels in pods():
            covering = [p for p in policies if matches(p["spec"]["podSelector"], labels)]
            self.assertEqual(len(covering), 1, name)
            self.assertEqual(covering[0]["spec"]["policyTypes"], ["Ingress", "Egress"])

        def open_from(source, target, port, direction):
            for policy in policies:
                here, there = (source, target) if direction == "egress" else (target, source)
                if not matches(policy["spec"]["podSelector"], here):
                    continue
                for rule in policy["spec"][direction]:
                    peers = rule["from" if direction == "ingress" else "to"]
                    if any(p["port"] == port for p in rule["ports"]) and any(
                            "namespaceSelector" not in p and matches(p["podSelector"], there) for p in peers):
                        return True
            return False

        labels = {name: found for name, _, found in pods()}
        for source, port in (("kvstow-node", 6379), ("kvstow-redis", 6379), ("kvstow-redis", 16379),
                             ("kvstow-redis-form", 6379)):
            for direction in ("ingress", "egress"):
                self.assertTrue(open_from(labels[source], labels["kvstow-redis"], port, direction),
                                (source, port, direction))
        self.assertFalse(open_from(labels["kvstow-node"], labels["kvstow-redis"], 16379, "ingress"))
        self.assertFalse(open_from(labels["kvstow-redis"], labels["kvstow-node"], 7380, "ingress"))

    def test_all_servers_are_named(self):
        (redis,), (job,) = objects("StatefulSet"), objects("Job")
        name, replicas = redis["metadata"]["name"], redis["spec"]["replicas"]
        every = [f"{name}-{i}.{name}:6379" for i in range(replicas)]
        self.assertEqual(job["spec"]["template"]["spec"]["containers"][0]["args"], every)
        services = COMPOSE["services"]
        every = [f"{n}:6379" for n in services if n.startswith("redis-")]
        self.assertEqual(len(every), 6)
        self.assertEqual(services["form"]["command"], every)
        for kvstow in ("kvstow-a", "kvstow-b"):
            self.assertEqual(services[kvstow]["environment"]["KVSTOW_REMOTE"].split(","), every)

    def test_compose_opens_loopback_only_and_mounts_what_is_there(self):
        for name, service in COMPOSE["services"].items():
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), f"{name}: {port}")
            for mount in service["volumes"]:
                source = mount.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((DEPLOY / "compose" / source).is_dir(), mount)
                    self.assertTrue(mount.endswith(":ro"), mount)
                else:
                    self.assertIn(source, COMPOSE["volumes"])
            self.assertEqual(service["cap_drop"], ["ALL"], name)
            self.assertTrue(service["read_only"], name)
            self.assertIn("no-new-privileges:true", service["security_opt"], name)
            self.assertEqual(service["secrets"], ["redis-password"], name)
        ignored = subprocess.run(["grep", "-qx", "/deploy/compose/redis-password", PROJECT / ".gitignore"], check=False)
        self.assertEqual(ignored.returncode, 0, "a password must not be committed")

    def test_the_manual_says_why_each_setting_of_redis_is_so(self):
        section = OPERATIONS.split("### Several servers\n")[1].split("\n### ")[0]
        for name, _ in directives():
            self.assertIn(f"`{name}", section, "docs/OPERATIONS.md, Several servers")


def free_ports(count):
    """Ports that nobody has, with nobody 10000 above: a server's bus is there. Below those that the system gives out."""
    found = []
    for port in range(21000, 22700):
        try:
            for number in (port, port + 10000):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


def make_certificates(folder):
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "tls.crt",
            "-extfile", "names")


@unittest.skipUnless(shutil.which("redis-cli") and shutil.which("openssl"), "no redis-cli or no openssl")
class Cluster(unittest.TestCase):
    """Six servers as redis.yaml starts them, but for their addresses and their memory."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvstow-redis-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.password = os.urandom(16).hex()
        (cls.folder / "password").write_text(cls.password + "\n")
        make_certificates(cls.folder)
        (cls.folder / "bin").mkdir()
        # Debian's redis-tools has the server's program under the other name.
        program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
        (cls.folder / "bin/redis-server").symlink_to(program)
        cls.environment = {
            **os.environ, "PATH": f"{cls.folder}/bin:{os.environ['PATH']}", "REDIS_CONFIG": str(REDIS / "redis.conf"),
            "REDIS_PASSWORD_FILE": str(cls.folder / "password"), "REDIS_TLS": str(cls.folder), "REDIS_HOSTNAME": "localhost",
        }
        cls.ports = free_ports(6)
        cls.servers = {}
        cls.addClassCleanup(lambda: [cls.stop(port) for port in list(cls.servers)])
        for port in cls.ports:
            cls.start(port)
        cls.formed = cls.form()

    @classmethod
    def start(cls, port):
        home = cls.folder / str(port)
        home.mkdir(exist_ok=True)
        with (home / "log").open("a") as log:
            cls.servers[port] = subprocess.Popen(
                [REDIS / "start", "--tls-port", str(port), "--bind", "127.0.0.1", "--maxmemory", "64mb"],
                env={**cls.environment, "REDIS_DATA": str(home), "REDIS_RUN": str(home)}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT)

    @classmethod
    def stop(cls, port):
        server = cls.servers.pop(port)
        server.kill()
        server.wait()

    @classmethod
    def form(cls):
        every = [f"127.0.0.1:{port}" for port in cls.ports]
        return subprocess.run([REDIS / "form", *every], env=cls.environment, capture_output=True, text=True, check=False)

    def ask(self, port, *command):
        return subprocess.run(
            ["redis-cli", "--tls", "--cacert", self.folder / "ca.crt", "-p", str(port), *command], check=True, text=True,
            capture_output=True, env={**self.environment, "REDISCLI_AUTH": self.password}).stdout

    def roles(self, port):
        """Of the servers that others have not given up: how many are primaries with slots, and how many replicas."""
        lines = [l for l in self.ask(port, "cluster", "nodes").splitlines() if "fail" not in l and "noaddr" not in l]
        return (sum("master" in l and bool(re.search(r"connected \d", l)) for l in lines), sum("slave" in l for l in lines))

    def wait_for_roles(self, port):
        while self.roles(port) != (3, 3):  # the test's time limit ends this
            time.sleep(0.1)

    def test_redis_takes_each_setting(self):
        self.assertEqual(self.formed.returncode, 0, self.formed.stdout + self.formed.stderr)
        told = {"port": "0", "maxmemory": str(64 * 2**20), "bind": "127.0.0.1"}  # arguments win
        for name, value in directives():
            answer = self.ask(self.ports[0], "config", "get", name).splitlines()
            self.assertEqual(answer[0] if answer else None, name, "not a setting of this Redis")
            got = answer[1] if len(answer) > 1 else ""
            if name.startswith("client-output-buffer-limit"):
                kind, hard, soft, seconds = value.split()
                self.assertIn(f"{'slave' if kind == 'replica' else kind} {size(hard)} {size(soft)} {seconds}", got)
            elif name in told:
                self.assertEqual(got, told[name])
            else:
                value = value.strip('"')
                self.assertEqual(got, str(size(value)) if re.fullmatch(r"\d+[gm]b", value) else value, name)

    def test_a_cluster_forms_and_forming_again_changes_nothing(self):
        self.wait_for_roles(self.ports[0])
        before = self.ask(self.ports[0], "cluster", "slots")
        again = self.form()
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(self.ask(self.ports[0], "cluster", "slots").count("localhost"), before.count("localhost"))
        self.wait_for_roles(self.ports[0])

    def test_a_server_that_lost_its_place_joins_again(self):
        self.wait_for_roles(self.ports[0])
        lost = next(p for p in self.ports if "role:slave" in self.ask(p, "info", "replication"))
        self.stop(lost)
        (self.folder / str(lost) / "nodes.conf").unlink()
        self.start(lost)
        again = self.form()
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
        self.wait_for_roles(next(p for p in self.ports if p != lost))

    def test_no_command_line_has_the_password(self):
        for port, server in self.servers.items():
            command = pathlib.Path(f"/proc/{server.pid}/cmdline").read_bytes()
            self.assertIn(str(port).encode(), command)
            self.assertNotIn(self.password.encode(), command)
            self.assertEqual((self.folder / str(port) / "redis.conf").stat().st_mode & 0o077, 0)

    def test_a_page_of_one_server_is_a_hit_on_another(self):
        self.wait_for_roles(self.ports[0])
        flags = ["--remote", ",".join(f"localhost:{port}" for port in self.ports[:2]),
                 "--remote-password-file", self.folder / "password", "--remote-tls-ca", self.folder / "ca.crt",
                 "--host-bytes", "64MiB", "--remote-wait", "2s"]
        with Daemon(KVSTOWD, *flags) as one, Daemon(KVSTOWD, *flags) as other:
            def kvstow(verb, server, *more):
                return subprocess.run([KVSTOW, verb, "--server", server.address, "--space", "s", CASE, *more],
                                      capture_output=True, text=True, check=False)

            put = kvstow("put", one)
            self.assertEqual(put.returncode, 0, put.stderr)
            out = self.folder / "out.safetensors"
            # It is sent in the background. The test's time limit ends this.
            while kvstow("get", other, out).returncode != 0:
                time.sleep(0.1)
        self.assertGreater(out.stat().st_size, 2**20)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)

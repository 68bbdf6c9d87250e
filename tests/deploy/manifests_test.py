"""The container file, the compose file and the Kubernetes manifests: in order, hardened, and true of the server.

  manifests_test.py KVSTOWD PROJECT VERSION
"""

import pathlib
import re
import subprocess
import sys
import unittest

import yaml

KVSTOWD, PROJECT, VERSION = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
DEPLOY = PROJECT / "deploy"
CONTAINERFILE = (DEPLOY / "container/Containerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
OBJECTS = [
    thing for name in ("node", "shared", "network")
    for thing in yaml.safe_load_all((DEPLOY / f"kubernetes/{name}.yaml").read_text())
]
PORTS = {"grpc": 7380, "http": 7381, "direct": 7382}
OF_KVSTOW = {"KVSTOW_SERVER", "KVSTOW_TLS_CA", "KVSTOW_TLS_NAME"}  # settings of the command line
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "g": 2**30, "G": 10**9, "GB": 10**9}


def size(text):
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS[unit]


def objects(kind):
    return [thing for thing in OBJECTS if thing["kind"] == kind]


def workloads():
    return objects("DaemonSet") + objects("StatefulSet")


def selects(selector, labels):
    return all(labels.get(name) == value for name, value in selector.items())


def settings(environment):
    return {name: value for name, value in environment.items() if name.startswith("KVSTOW_")}


class Manifests(unittest.TestCase):
    def environments(self):
        yield "Containerfile", dict(re.findall(r"(KVSTOW_\w+)=(\S+)", CONTAINERFILE))
        yield "compose.yaml", settings(COMPOSE["services"]["kvstow"]["environment"])
        for workload in workloads():
            container = workload["spec"]["template"]["spec"]["containers"][0]
            yield workload["metadata"]["name"], settings({e["name"]: e.get("value") for e in container["env"]})

    def test_the_server_takes_every_setting(self):
        for where, environment in self.environments():
            self.assertTrue(environment, where)
            # As a flag: --help tells names, and --version with flags checks nothing.
            known = subprocess.run([KVSTOWD, "--help"], capture_output=True, text=True, check=True).stdout
            for name in environment:
                if name in OF_KVSTOW:
                    continue
                flag = "--" + name.removeprefix("KVSTOW_").lower().replace("_", "-")
                self.assertRegex(known, rf"(?m)^\s+{flag} ", where)

    def test_each_server_has_tls_or_says_that_it_has_none(self):
        for where, environment in self.environments():
            if where == "Containerfile":  # it leaves that to whoever runs it
                self.assertFalse({"KVSTOW_TLS_CERT", "KVSTOW_INSECURE"} & set(environment), where)
            else:
                tls = {"KVSTOW_TLS_CERT", "KVSTOW_TLS_KEY"} <= set(environment)
                self.assertNotEqual(tls, environment.get("KVSTOW_INSECURE") == "true", where)

    def test_kvstow_in_a_pod_with_tls_knows_whom_to_trust(self):
        (pod,) = (w["spec"]["template"]["spec"] for w in objects("StatefulSet"))
        (container,) = pod["containers"]
        environment = {e["name"]: e.get("value") for e in container["env"]}
        self.assertRegex(environment["KVSTOW_TLS_NAME"], r"^\$\(POD_NAME\)\.kvstow\.\$\(POD_NAMESPACE\)\.svc$")
        names = [e["name"] for e in container["env"]]
        for name in ("POD_NAME", "POD_NAMESPACE"):  # a variable is replaced where it stands before
            self.assertLess(names.index(name), names.index("KVSTOW_TLS_NAME"))
        (folder,) = (m["mountPath"] for m in container["volumeMounts"] if m["name"] == "tls")
        self.assertEqual(environment["KVSTOW_TLS_CA"], f"{folder}/ca.crt")
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(command[:2], ["kvstow", "drain"])
        self.assertLess(int(command[-1]), pod["terminationGracePeriodSeconds"])
        head = (DEPLOY / "kubernetes/shared.yaml").read_text().split("apiVersion")[0]
        for key in ("tls.crt", "tls.key", "ca.crt"):
            self.assertIn(f"--from-file={key}=", head)

    def test_budgets_fit_into_the_memory_that_they_get(self):
        pairs = [(COMPOSE["services"]["kvstow"]["environment"]["KVSTOW_HOST_BYTES"], COMPOSE["services"]["kvstow"]["mem_limit"])]
        for workload in workloads():
            container = workload["spec"]["template"]["spec"]["containers"][0]
            host = next(e["value"] for e in container["env"] if e["name"] == "KVSTOW_HOST_BYTES")
            pairs.append((host, container["resources"]["limits"]["memory"]))
        for host, limit in pairs:
            # index-bytes is a 16th of the limit; puts, gets, leases, reports and the disk tier take 1.5 GiB.
            self.assertLessEqual(size(host) + size(limit) / 16 + 1.5 * 2**30, size(limit), (host, limit))

    def test_pods_are_hardened_and_probed(self):
        self.assertEqual([w["kind"] for w in workloads()], ["DaemonSet", "StatefulSet"])
        for workload in workloads():
            pod = workload["spec"]["template"]["spec"]
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            self.assertEqual(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
            self.assertFalse(pod["automountServiceAccountToken"])
            self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], 60)
            self.assertNotIn("hostNetwork", pod)
            (container,) = pod["containers"]
            self.assertEqual(container["image"], f"kvstow:{VERSION}")
            self.assertEqual({p["name"]: p["containerPort"] for p in container["ports"]}, PORTS)
            context = container["securityContext"]
            self.assertTrue(context["readOnlyRootFilesystem"])
            self.assertFalse(context["allowPrivilegeEscalation"])
            self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
            for probe, path in (("startup", "/readyz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
                scheme = {"scheme": "HTTPS"} if "KVSTOW_TLS_CERT" in {e["name"] for e in container["env"]} else {}
                self.assertEqual(container[f"{probe}Probe"]["httpGet"], {"path": path, "port": "http"} | scheme)
            self.assertEqual(set(container["resources"]), {"requests", "limits"})
            volumes = {v["name"] for v in pod.get("volumes", [])}
            volumes |= {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", [])}
            self.assertEqual({m["name"] for m in container["volumeMounts"]}, volumes)

    def test_every_selector_finds_its_pods(self):
        pods = [w["spec"]["template"]["metadata"]["labels"] for w in workloads()]
        for workload, labels in zip(workloads(), pods):
            self.assertTrue(selects(workload["spec"]["selector"]["matchLabels"], labels))
        for service in objects("Service"):
            found = [labels for labels in pods if selects(service["spec"]["selector"], labels)]
            self.assertEqual(len(found), 1, service["metadata"]["name"])
            self.assertEqual({p["name"]: p["port"] for p in service["spec"]["ports"]}, PORTS)
        (shared,) = objects("StatefulSet")
        self.assertIn(shared["spec"]["serviceName"], [s["metadata"]["name"] for s in objects("Service")])
        (budget,) = objects("PodDisruptionBudget")
        self.assertEqual(budget["spec"]["selector"], shared["spec"]["selector"])
        (policy,) = objects("NetworkPolicy")
        self.assertTrue(all(selects(policy["spec"]["podSelector"]["matchLabels"], labels) for labels in pods))

    def test_the_network_policy_opens_each_port_once_and_nothing_else(self):
        (policy,) = objects("NetworkPolicy")
        ports = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
        self.assertEqual(sorted(ports), sorted(PORTS.values()))
        self.assertTrue(all(rule["from"] for rule in policy["spec"]["ingress"]))
        self.assertEqual(policy["spec"]["egress"], [])
        self.assertEqual(policy["spec"]["policyTypes"], ["Ingress", "Egress"])

    def test_compose_mounts_what_is_there_and_opens_loopback_only(self):
        for name, service in COMPOSE["services"].items():
            for mount in service["volumes"]:
                source = mount.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((DEPLOY / "compose" / source).exists(), mount)
                    self.assertTrue(mount.endswith(":ro"), mount)
                else:
                    self.assertIn(source, COMPOSE["volumes"])
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), f"{name}: {port}")
            self.assertEqual(service["cap_drop"], ["ALL"], name)
            self.assertIn("no-new-privileges:true", service["security_opt"], name)
        self.assertTrue(COMPOSE["services"]["kvstow"]["read_only"])
        build = COMPOSE["services"]["kvstow"]["build"]
        self.assertTrue((DEPLOY / "compose" / build["context"] / build["dockerfile"]).exists())
        (job,) = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())["scrape_configs"]
        self.assertEqual(job["job_name"], "kvstow")
        self.assertEqual(job["static_configs"][0]["targets"], ["kvstow:7381"])

    def test_the_container_runs_as_nobody_special(self):
        last = CONTAINERFILE.split("\nFROM ")[-1]
        self.assertRegex(last, r"(?m)^USER 7380:7380$")
        self.assertRegex(last, r"(?m)^HEALTHCHECK .*kvstow")
        self.assertRegex(last, r"(?m)^EXPOSE 7380 7381 7382$")
        self.assertEqual(CONTAINERFILE.count("\nFROM debian:bookworm-slim"), 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

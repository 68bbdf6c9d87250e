"""The dashboard and the alert rules against a running kvstowd and against the documents.

  monitoring_test.py KVSTOWD PROJECT
"""

import json
import pathlib
import re
import sys
import unittest
import urllib.request

import yaml

KVSTOWD, PROJECT = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path.insert(0, str(PROJECT / "tests/integration"))

from daemon import Daemon  # noqa: E402

DASHBOARD = json.loads((PROJECT / "deploy/grafana/kvstow.json").read_text())
GROUPS = yaml.safe_load((PROJECT / "deploy/prometheus/alerts.yml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
OPERATIONS = (PROJECT / "docs/OPERATIONS.md").read_text()
RELIABILITY = (PROJECT / "docs/RELIABILITY.md").read_text()

# Series that are not kvstowd's: Prometheus makes the one, the node exporter the other.
ELSEWHERE = {"up", "node_filesystem_avail_bytes"}
SELECTOR = re.compile(r"\b((?:kvstow|process|node)_\w+|up)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|=)\s*"((?:[^"\\]|\\.)*)"')
CHOSEN = {"instance", "job"}  # labels that Prometheus adds


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions():
    """(where, expression) of everything that asks Prometheus."""
    for panel in panels():
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]


def scrape(url):
    """Metric -> labels of its series, each a dictionary."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        text = answer.read().decode()
    series = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)(?:\{(.*)\})? ", line).groups()
            series.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', labels or "")))
    return series


class Monitoring(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Just started: what nothing has happened to yet must be there as well, as a zero.
        with Daemon(KVSTOWD, "--host-bytes", "64MiB", "--device", "cpu") as daemon:
            cls.series = scrape(daemon.http + "/metrics")

    def test_every_series_that_is_asked_for_exists(self):
        for where, expression in expressions():
            found = SELECTOR.findall(expression)
            self.assertTrue(found, where)
            for name, matchers in found:
                if name in ELSEWHERE:
                    continue
                self.assertTrue(name in self.series, f"{where}: {name}")
                for label, how, value in MATCHER.findall(matchers):
                    if label in CHOSEN:
                        continue
                    there = {labels.get(label) for labels in self.series[name]}
                    for wanted in value.split("|") if how == "=~" else [value]:
                        self.assertIn(wanted, there, f"{where}: {name}{{{label}}}")

    def test_every_metric_is_in_the_tables(self):
        section = OPERATIONS.split("\n## Metrics\n")[1].split("\n## ")[0]
        named = set(re.findall(r"`(\w+)(?:\{[^`]*\})?`", section))
        self.assertGreater(len(named), 100)
        for series in self.series:
            name = re.sub(r"_(bucket|sum|count)$", "", series.removeprefix("kvstow_"))
            self.assertTrue(name in named, f"{name}: docs/OPERATIONS.md, Metrics")

    def test_what_is_summed_by_is_a_label(self):
        for where, expression in expressions():
            for labels in re.findall(r"by \(([^)]*)\)", expression):
                for label in set(labels.replace(" ", "").split(",")) - CHOSEN:
                    names = [name for name, _ in SELECTOR.findall(expression)]
                    self.assertTrue(any(label in s for n in names for s in self.series[n]), f"{where}: {label}")

    def test_every_promise_has_its_panel(self):
        section = RELIABILITY.split("## Promises")[1].split("\n## ")[0]
        promises = [f"{number}. {text}" for number, text in re.findall(r"^\| (\d+\w?) \| (.+) \|$", section, re.M)]
        self.assertGreater(len(promises), 15)
        titles = [panel["title"] for panel in panels()]
        self.assertEqual([t for t in titles if re.match(r"\d+\w?\. ", t)], promises)

    def test_the_dashboard_is_in_order(self):
        ids = [panel["id"] for panel in DASHBOARD["panels"]]
        self.assertEqual(len(set(ids)), len(ids))
        taken = set()
        for panel in DASHBOARD["panels"]:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells
            for target in panel.get("targets", []):
                self.assertEqual(target["datasource"]["uid"], "${datasource}", panel["title"])

    def test_every_alert_has_its_runbook(self):
        section = OPERATIONS.split("\n## Runbooks\n")[1].split("\n## ")[0]
        runbooks = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=\n### |\Z)", section, re.M | re.S))
        self.assertEqual(sorted(runbooks), sorted(rule["alert"] for rule in RULES))
        for rule in RULES:
            name = rule["alert"]
            self.assertTrue(rule["annotations"]["runbook_url"].endswith(f"/OPERATIONS.md#{name.lower()}"), name)
            self.assertIn(rule["labels"]["severity"], ("critical", "warning"), name)
            for part in ("**Means.**", "**Look.**", "**Do.**"):
                self.assertIn(part, runbooks[name], name)

    def test_every_alert_is_tested(self):
        tests = yaml.safe_load((PROJECT / "tests/deploy/alerts_test.yml").read_text())["tests"]
        names = {test["name"] for test in tests}
        for rule in RULES:
            self.assertLessEqual({f"{rule['alert']} fires", f"{rule['alert']} keeps quiet"}, names)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

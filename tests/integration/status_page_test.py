"""The status page as it comes over HTTP: whole HTML of our own, that trusts no text from outside.

  status_page_test.py KVSTOWD KVSTOW CASE
"""

import html.parser
import subprocess
import sys
import unittest
import urllib.request

from daemon import Daemon

KVSTOWD, KVSTOW, CASE = sys.argv[1:4]
ATTACK = "<script>alert('x')</script>"
VOID = {"meta", "link", "br", "img", "input"}


class Checker(html.parser.HTMLParser):
    """Reads a page and notes what is in it, and what is wrong with it."""

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.ids, self.links, self.texts, self.scripts = [], [], [], [], [], 0
        self.rows, self.columns = [], 0
        self.feed(text)
        self.close()
        self.wrong += [f"<{tag}> is not closed" for tag in self.open]

    def handle_starttag(self, tag, attributes):
        self.note(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.note(tag, attributes)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing at {self.getpos()}")
        if tag == "tr" and self.columns != self.rows[-1]:
            self.wrong.append(f"a row of {self.rows[-1]} cells in a table of {self.columns} columns")

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] in ("script", "style") and data.strip():
            self.wrong.append(f"<{self.open[-1]}> has content")

    def note(self, tag, attributes):
        if tag == "table":
            self.columns = 0
        elif tag == "tr":
            self.rows.append(0)
        elif tag in ("td", "th"):
            self.rows[-1] += 1
            self.columns += tag == "th"
        self.scripts += tag == "script"
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            elif name in ("src", "href"):
                self.links.append(value)
            elif name == "style" or name.startswith("on"):
                self.wrong.append(f"<{tag}> has the attribute {name}")


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.headers, answer.read().decode()


class StatusPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(KVSTOWD, "--host-bytes", "64MiB", "--device", "cpu")
        cls.kvstow("put", "--space", "team/model", "--page-tokens", "32", CASE)
        cls.kvstow("get", "--space", "team/model", CASE, "/dev/null", ok=(0, 1))
        cls.kvstow("stats", "--space", ATTACK, ok=(1,))
        _, cls.text = get(cls.daemon.http + "/")
        cls.page = Checker(cls.text)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    @classmethod
    def kvstow(cls, *arguments, ok=(0,)):
        run = subprocess.run([KVSTOW, *arguments, "--server", cls.daemon.address], capture_output=True, text=True)
        if run.returncode not in ok:
            raise AssertionError(f"{arguments}: {run.stderr}")

    def test_is_whole_html(self):
        self.assertEqual(self.page.wrong, [])
        self.assertEqual(sorted(set(self.page.ids)), sorted(self.page.ids))

    def test_has_every_part(self):
        parts = "head figures tiers hits bandwidth ages reuse pages spaces-bytes spaces-hits slow failing settings"
        self.assertLessEqual(set(parts.split()), set(self.page.ids))

    def test_tells_what_the_server_holds(self):
        for text in ("team/model", "8 in host", "100.0 %", "64.0 MiB", "1.88x"):
            self.assertTrue(any(text in t for t in self.page.texts), text)

    def test_refers_to_nothing_elsewhere(self):
        self.assertTrue(self.page.links)
        for link in self.page.links:
            self.assertRegex(link, r"^/[a-z./]+$")
            get(self.daemon.http + link)

    def test_the_policy_lets_only_files_of_ours_be(self):
        for path in ("/", "/parts", "/page.js", "/page.css", "/icon.svg", "/metrics"):
            headers, _ = get(self.daemon.http + path)
            policy = dict(rule.strip().split(" ", 1) for rule in headers["Content-Security-Policy"].split(";"))
            self.assertEqual(policy["default-src"], "'none'", path)
            self.assertEqual({policy[f"{what}-src"] for what in ("script", "style", "connect")}, {"'self'"}, path)
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff", path)
        self.assertNotIn("unsafe", headers["Content-Security-Policy"])

    def test_a_script_for_a_name_is_left_out(self):
        self.assertNotIn("alert", self.text)
        self.assertEqual(self.page.scripts, 1)  # page.js

    def test_the_parts_are_those_of_the_page(self):
        _, text = get(self.daemon.http + "/parts")
        parts = Checker(text)
        self.assertEqual(parts.wrong, [])
        self.assertEqual(["stale"] + parts.ids, self.page.ids)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

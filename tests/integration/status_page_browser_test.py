"""The status page in a headless Chromium: on a screen and on a telephone, by day and by night.

  status_page_browser_test.py CHROMIUM KVSTOWD KVSTOW CASE [FOLDER]

Leaves screenshots in FOLDER, if one is named.
"""

import subprocess
import sys
import unittest

from browser import Browser
from daemon import Daemon

CHROMIUM, KVSTOWD, KVSTOW, CASE = sys.argv[1:5]
SHOTS = sys.argv[5] if len(sys.argv) > 5 else None

COLOUR = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => +a + +b) / 3"
TOO_WIDE = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"


class StatusPage(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(KVSTOWD, "--host-bytes", "64MiB", "--device", "cpu")
        self.put("first")
        self.browser = Browser(CHROMIUM)
        try:
            self.browser.call("Browser.getVersion")
        except (AssertionError, OSError) as error:
            self.tearDown()
            self.skipTest(f"chromium does not start on this machine: {error}")

    def tearDown(self):
        self.browser.__exit__()
        self.daemon.stop()

    def put(self, space):
        command = [KVSTOW, "put", "--server", self.daemon.address, "--space", space, CASE]
        subprocess.run(command, check=True, capture_output=True)

    def open(self, name, **how):
        page = self.browser.open(self.daemon.http + "/", **how)
        if SHOTS:
            page.screenshot(f"{SHOTS}/{name}.png")
        return page

    def test_fits_on_a_screen_and_on_a_telephone(self):
        for width in (390, 820, 1280, 1920):
            page = self.open(f"{width}", width=width)
            self.assertEqual(page.evaluate("document.documentElement.scrollWidth"), width)
            self.assertEqual(page.evaluate(TOO_WIDE), 0, width)
            self.assertEqual(page.complaints, [])

    def test_is_light_by_day_and_dark_by_night(self):
        self.assertGreater(self.open("light").evaluate(COLOUR), 200)
        self.assertLess(self.open("dark", dark=True).evaluate(COLOUR), 50)

    def test_bars_are_as_long_as_what_they_show(self):
        page = self.open("bars")
        share = page.evaluate(
            "(() => { const bar = document.querySelector('#tiers .bars');"
            " const width = e => e.getBoundingClientRect().width;"
            " return width(bar.querySelector('.host:not(.faint)')) / width(bar); })()"
        )
        full = page.evaluate("document.querySelector('#tiers tbody tr').innerText.match(/([0-9.]+) %/)[1]")
        self.assertAlmostEqual(100 * share, float(full), delta=0.5)

    def test_refreshes_in_place(self):
        page = self.open("before")
        page.evaluate("window.mark = 1; document.getElementById('settings').open = true; undefined")
        self.put("second")
        page.wait_for("document.getElementById('spaces-bytes').innerText.includes('second')")
        self.assertEqual(page.evaluate("window.mark"), 1)  # the page was not loaded again
        self.assertTrue(page.evaluate("document.getElementById('settings').open"))
        self.assertEqual(page.complaints, [])

    def test_says_when_the_server_does_not_answer(self):
        page = self.open("serving")
        self.assertFalse(page.evaluate("document.getElementById('stale').checkVisibility()"))
        self.daemon.stop()
        page.wait_for("document.getElementById('stale').checkVisibility()")

    def test_the_policy_holds(self):
        page = self.open("policy")
        page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.bad = 1\">');"
            "const s = document.createElement('script'); s.textContent = 'window.bad = 1';"
            "document.body.append(s); undefined"
        )
        self.assertIsNone(page.evaluate("window.bad"))
        page.wait_for("document.images[0].complete")
        self.assertIsNone(page.evaluate("window.bad"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

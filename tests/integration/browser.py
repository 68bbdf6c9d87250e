"""Drives a headless Chromium over its pipe, with nothing but Python.

  with Browser("/usr/bin/chromium") as browser:
      page = browser.open("http://127.0.0.1:7381/", width=390, dark=True)
      page.evaluate("document.title")

The pipe carries messages of the Chrome DevTools Protocol, each with a zero byte behind it.
"""

import base64
import json
import os
import select
import subprocess
import tempfile
import time

SECONDS = 30


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.complaints = []  # errors of scripts, of the console and of the security policy

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, expression):
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, expression):
        """Waits until the expression holds."""
        end = time.monotonic() + SECONDS
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise AssertionError(f"never true: {expression}")

    def screenshot(self, path):
        height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        image = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(image["data"]))


class Browser:
    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        their_in, self.out = os.pipe()
        self.input, their_out = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4.
        shell = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'
        flags = [
            "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", f"--user-data-dir={self.folder.name}",
        ]
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", shell, program, *flags, "about:blank"],
            pass_fds=(their_in, their_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        self.buffer, self.last_id, self.pages = b"", 0, {}

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.input)
        self.folder.cleanup()

    def open(self, url, width=1280, height=900, dark=False):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Page.navigate", url=url)
        page.wait_for(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")
        return page

    def call(self, method, session=None, **parameters):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next_message()
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def next_message(self):
        while b"\0" not in self.buffer:
            if not select.select([self.input], [], [], SECONDS)[0]:
                raise AssertionError("chromium says nothing")
            piece = os.read(self.input, 1 << 20)
            if not piece:
                raise AssertionError("chromium ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        page = self.pages.get(event.get("sessionId"))
        if page is None:
            return
        parameters = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            page.complaints.append(parameters["exceptionDetails"]["text"])
        elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            page.complaints.append(parameters["entry"]["text"])

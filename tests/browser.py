"""A page in headless Chromium, driven over its debugging pipe (Chrome DevTools Protocol, no extra library)."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import contextmanager

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-quic", "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # the browser's own look-ups stay here, too
)  # fmt: skip


class Page:
    """One tab. `requests` and `errors` collect what the page asked for and what went wrong in it."""

    def __init__(self, into, out):
        self._into, self._out, self._rest, self._number, self._session = into, out, b"", 0, None
        self.requests, self.errors = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        while True:
            got = self._message(30)
            if got.get("id") == self._number:
                assert "error" not in got, got
                return got["result"]
            self._heard(got)

    def _message(self, timeout_s):
        while b"\0" not in self._rest:
            assert select.select([self._out], [], [], timeout_s)[0], "the browser does not answer"
            chunk = os.read(self._out, 1 << 20)
            assert chunk, "the browser ended"
            self._rest += chunk
        one, _, self._rest = self._rest.partition(b"\0")
        return json.loads(one)

    def _heard(self, got):
        params = got.get("params", {})
        if got.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif got.get("method") == "Network.webSocketCreated":
            self.requests.append(params["url"])
        elif got.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "?"))
        elif got.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])

    def open(self, url, *, width=1300, height=1200, dark=False):
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression in the page (a promise is awaited)."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def wait(self, condition, timeout_s=30):
        end = time.monotonic() + timeout_s
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"still not: {condition}"
            time.sleep(0.05)

    def elsewhere(self, *own):
        """What was asked for so far beyond addresses that begin so and beyond the page's own data; links that
        prepare a connection count, too, which the browser does not tell as requests."""
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 300)))")
        links = self.run("[...document.querySelectorAll('link')].map((link) => link.href)")
        return [url for url in (*self.requests, *links) if not url.startswith(("data:", *own))]

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def page(profile):
    """Yields a Page of a browser of its own, whose profile lies in the folder."""
    to_browser, into = os.pipe()
    out, from_browser = os.pipe()
    wire = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'  # the debugging pipe is at these two numbers
    command = ["bash", "-c", wire, CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    browser = subprocess.Popen(command, pass_fds=(to_browser, from_browser), **quiet)
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Page(into, out)
    finally:
        browser.kill()
        browser.wait(20)
        os.close(into)
        os.close(out)

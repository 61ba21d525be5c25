"""Starts real programs on free ports, waits until they are ready, and ends them by their process id."""

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

READY_S = 90  # bounds of waiting, not of work: a loaded machine is no failure


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def fetch(url, body=None, **headers):
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def until(what, seconds=READY_S, every=0.05):
    """Asks again and again; the first answer that is true."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            if found := what():
                return found
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(every)


class Program:
    """A program with one HTTP address."""

    def __init__(self, folder, name, line, port, ready):
        self.log, self.line, self.url = folder / f"{name}.log", line, f"http://127.0.0.1:{port}"
        self.ready = ready
        self.start()

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.line, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            until(lambda: self.process.poll() is not None or fetch(self.url + self.ready))
            assert self.process.poll() is None
        except AssertionError:
            self.end(kill=True)
            raise AssertionError(self.log.read_text()[-2000:]) from None

    def end(self, *, kill=False):
        self.process.kill() if kill else self.process.terminate()
        self.process.wait(READY_S)


class Prometheus(Program):
    def __init__(self, folder, config):
        file = folder / "prometheus.yml"
        file.write_text(json.dumps(config))  # JSON is YAML
        port = free_port()
        line = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver",
                "--enable-feature=exemplar-storage", "--log.level=warn"]  # fmt: skip
        super().__init__(folder, "prometheus", line, port, "/-/ready")
        self.write = f"{self.url}/api/v1/write"

    def api(self, path, **query):
        answer = json.loads(fetch(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def values(self, query):
        """{labels: value} of an instant query."""
        found = self.api("query", query=query)["result"]
        return {tuple(sorted(r["metric"].items())): float(r["value"][1]) for r in found}

    def value(self, query):
        """The one value, or None."""
        return next(iter(self.values(query).values()), None)


class Alertmanager(Program):
    def __init__(self, folder, config):
        file = folder / "alertmanager.yml"
        file.write_text(json.dumps(config))
        port = free_port()
        line = ["prometheus-alertmanager", f"--config.file={file}", f"--storage.path={folder / 'am'}",
                f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]  # fmt: skip
        super().__init__(folder, "alertmanager", line, port, "/-/ready")

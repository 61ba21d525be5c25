"""The exporter under load: a ring of 58 layers x 256 experts, a scrape after every step.

Run: make bench-exporter, or python benchmarks/exporter.py [SCRAPES]. Prints one line, and exits 1 past a bar:
a scrape of 30 ms (99 of 100), growth of memory, a counter that fell, or an update that the page never got.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from moexray.runtime.recorder import Ring, Site

LAYERS, EXPERTS, TOKENS, K = 58, 256, 32, 8  # DeepSeek-V3's MoE layers, decode of 32 requests
SHOWN = 27  # experts of a layer: as many as fit below the ceiling of 2,000 series
SCRAPES = 12_000
BAR_MS = 30.0  # specs: a scrape at the series ceiling
BAR_GROWTH = 8 << 20  # bytes between the first quarter and the end; the allocator's own noise
STEP_NS = 20_000_000


def main(scrapes: int) -> int:
    """Runs it; the exit code."""
    with tempfile.TemporaryDirectory(prefix="moexray-bench-") as name:
        Path(name).chmod(0o700)
        sites = [Site(f"model.layers.{y + 3}.mlp.gate", y + 3, EXPERTS, K) for y in range(LAYERS)]
        ring = Ring(sites, {"engine": "bench", "model": "M", "rank": 0}, folder=name)
        exporter, port = start(name)
        try:
            return measure(ring, exporter, port, scrapes)
        finally:
            exporter.send_signal(signal.SIGTERM)
            exporter.wait(20)


def start(folder: str) -> tuple[subprocess.Popen[str], int]:
    """The exporter in a process of its own, and its port."""
    line = [sys.executable, "-m", "moexray", "exporter", "--rings", folder, "--listen", "127.0.0.1:0",
            "--experts", str(SHOWN), "--ep", "8"]  # fmt: skip
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    said = process.stderr.readline() if process.stderr else ""
    return process, int(said.partition("127.0.0.1:")[2].partition("/")[0])


def measure(ring: Ring, exporter: subprocess.Popen[str], port: int, scrapes: int) -> int:
    """Writes a step, scrapes, checks; prints the line."""
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(EXPERTS, 0.5), LAYERS)
    pool = [rng.choice(EXPERTS, (64, TOKENS * K), p=w) for w in weights]  # drawn before: drawing is slow
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    times, last, fell, early = [], {}, 0, 0
    for step in range(scrapes):
        write(ring, step, pool)
        begun = time.perf_counter()
        page = scrape(connection)
        times.append(time.perf_counter() - begun)
        counters = read(page)
        fell += sum(counters.get(k, v) < v for k, v in last.items() if k[0] != "e" or k in counters)
        last = {**last, **counters}
        if step == scrapes // 4:
            early = memory(exporter.pid)
    growth = memory(exporter.pid) - early
    time.sleep(2.0)  # the exporter reads the ring twice a second
    lost = missing(ring, read(scrape(connection)), scrapes)
    series = sum(not line.startswith("#") for line in page.splitlines())
    p50, p99 = (float(np.percentile(times, q)) * 1e3 for q in (50, 99))
    print(f"{series} series, scrape p50 {p50:.1f} ms, p99 {p99:.1f} ms (bar {BAR_MS:.0f}), "
          f"RSS growth {growth / 2**20:+.1f} MiB over {scrapes} scrapes, counters that fell {fell}, "
          f"lost updates {lost}")
    return int(p99 > BAR_MS or growth > BAR_GROWTH or bool(fell) or bool(lost))


def write(ring: Ring, step: int, pool: list[np.ndarray]) -> None:
    """One step of all layers."""
    t0 = time.monotonic_ns()
    for site, drawn in enumerate(pool):
        ring.write(site, step, t0, t0 + 300_000, TOKENS, drawn[step % len(drawn)])
    ring.step(step, t0, t0 + STEP_NS, TOKENS, own_ns=50_000)


def scrape(connection: http.client.HTTPConnection) -> str:
    """The page as Prometheus asks for it."""
    connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    return connection.getresponse().read().decode()


def read(page: str) -> dict[tuple[str, ...], float]:
    """Counters of the page that are compared: e layer expert, c layer, n, d."""
    found: dict[tuple[str, ...], float] = {}
    for line in page.splitlines():
        name, _, rest = line.partition("{")
        labels, _, value = rest.rpartition("} ")
        if name == "moex_expert_tokens_total":
            parts = labels.split('"')
            found["e", parts[7], parts[9]] = float(value)
        elif name == "moex_routed_choices_total":
            found["c", labels.split('"')[7]] = float(value)
        elif name == "moex_decode_step_duration_seconds_count":
            found["n",] = float(value)
        elif name == "moex_exporter_dropped_total":
            found["d", labels] = float(value)
    return found


def missing(ring: Ring, counters: dict[tuple[str, ...], float], steps: int) -> int:
    """Choices and steps by which the page differs from what the ring itself counted."""
    totals = ring.layout.totals(ring._memory)  # noqa: SLF001  # the writer's own count, not the reader's
    lost = abs(steps - counters.get(("n",), 0.0))
    for site, row in zip(ring.sites, totals, strict=True):
        lost += abs(float(row.sum()) - counters.get(("c", str(site.layer)), 0.0))
        lost += sum(
            abs(float(row[int(k[2])]) - v) for k, v in counters.items() if k[:2] == ("e", str(site.layer))
        )
    return int(lost)


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else SCRAPES))

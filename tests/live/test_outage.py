"""A real Prometheus is away for a minute while an engine steps, and the exporter is scraped and sends remote write."""

import re
import shutil
import statistics
import sys
import threading
import time
from itertools import pairwise

import pytest

import live_servers as servers
from live_engine import Engine

AWAY_S = 60
AROUND_S = 15  # before and after
EVERY_S = 0.5  # of remote write: twice the 60 requests that are kept while the receiver is away
BATCH = 20  # steps
RATIO = 1.5  # of CPU time a step, with Prometheus away against the times before and after; noise of a shared machine
CHOICES = "moex_routed_choices_total"
SENT = f'{CHOICES}{{job="moexray",layer="0"}}'
SCRAPED = f'{CHOICES}{{job="scraped",layer="0"}}'

pytestmark = pytest.mark.soak


class Stepping(threading.Thread):
    """Has an engine step, a third of the time, and keeps what each batch says under the name of the phase."""

    def __init__(self, engine):
        super().__init__()
        self.engine, self.phase, self.over = engine, "before", threading.Event()
        self.seen = {}
        self.choices = 2 * 24  # the first forward of the engine

    def run(self):
        while not self.over.is_set():
            told = self.engine.tell("step", BATCH)
            self.seen.setdefault(self.phase, []).append(told)
            self.choices += told["choices"]
            self.over.wait(2 * BATCH * told["cpu_ns"] * 1e-9)

    def cpu(self, *phases):
        return statistics.median(one["cpu_ns"] for phase in phases for one in self.seen[phase])

    def waits(self, phase):
        """A step, mean."""
        return statistics.mean(one["waits"] for one in self.seen[phase]) / BATCH


def numbers(page, name, labels=""):
    found = re.findall(rf"^{name}{{[^}}]*{labels}[^}}]*}} (\S+)$", page, re.MULTILINE)
    return [float(x) for x in found]


def samples(server, series):
    """[(time, value)] as Prometheus holds them."""
    [found] = server.api("query", query=f"{series}[15m]")["result"]
    return [(float(t), float(v)) for t, v in found["values"]]


def ask(page, seconds):
    """Scrapes every second; the choices of the pages in their order."""
    until, found = time.monotonic() + seconds, []
    while time.monotonic() < until:
        found.append(numbers(page(), CHOICES, 'layer="0"')[0])
        time.sleep(1)
    return found


@pytest.mark.skipif(not shutil.which("prometheus"), reason="not installed: prometheus (.ci/run installs it)")
def test_prometheus_away_for_a_minute_costs_an_engine_nothing_and_is_made_up_for(tmp_path):
    folder = tmp_path / "rings"
    folder.mkdir(mode=0o700)
    port = servers.free_port()
    scrape = [{"job_name": "scraped", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]
    prometheus = servers.Prometheus(tmp_path, {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": scrape})
    engine = Engine(folder)
    line = [sys.executable, "-m", "moexray", "exporter", "--rings", str(folder), "--listen", f"127.0.0.1:{port}",
            "--remote-write", prometheus.write, "--remote-every", str(EVERY_S)]  # fmt: skip
    exporter = servers.Program(tmp_path, "exporter", line, port, "/metrics")
    stepping = Stepping(engine)

    def page():
        return servers.fetch(exporter.url + "/metrics")

    try:
        stepping.start()
        servers.until(lambda: prometheus.value(SENT) and prometheus.value(SCRAPED))
        scraped = ask(page, AROUND_S)
        prometheus.end()
        stepping.phase, went_s = "away", time.time()
        scraped += ask(page, AWAY_S)
        prometheus.start()
        stepping.phase, came_s = "after", time.time()
        scraped += ask(page, AROUND_S)
        stepping.over.set()
        stepping.join()
        servers.until(lambda: prometheus.value(SENT) == prometheus.value(SCRAPED) == stepping.choices)
        last = page()
        check_engine(stepping, last)
        assert scraped == sorted(scraped)
        assert len(scraped) >= (AWAY_S + AROUND_S) / 2
        check_samples(prometheus, last, went_s, came_s)
    finally:
        stepping.over.set()
        stepping.join()
        for program in (prometheus, exporter):
            program.end()
        engine.end()


def check_engine(stepping, page):
    """It took as long, waited as seldom, and every call was recorded and read."""
    assert {"before", "away", "after"} == set(stepping.seen)
    around, away = stepping.cpu("before", "after"), stepping.cpu("away")
    assert away < RATIO * around, (away, around)
    assert max(stepping.waits(phase) for phase in stepping.seen) < 0.5  # nothing in a step waits for anybody
    assert numbers(page, CHOICES, 'layer="0"') == [stepping.choices]
    for reason in ("overwritten", "not_recorded"):
        assert numbers(page, "moex_exporter_dropped_total", f'reason="{reason}"') == [0]


def check_samples(prometheus, page, went_s, came_s):
    """Of what was sent the oldest of the minute are missing and counted; counters go on where they were."""
    own, seen = samples(prometheus, SENT), samples(prometheus, SCRAPED)
    for found in (own, seen):
        assert all(a[1] <= b[1] for a, b in pairwise(found))
        assert found[0][0] < went_s
        assert found[-1][0] > came_s
    assert prometheus.value(f"resets({SENT}[15m])") == prometheus.value(f"resets({SCRAPED}[15m])") == 0
    assert [t for t, _ in own if came_s - 20 < t < came_s - 5]  # kept meanwhile, and sent afterwards
    between = [b - a for (a, _), (b, _) in pairwise(own)]
    gaps = [gap / statistics.median(between) - 1 for gap in between if gap > 3 * EVERY_S]
    [lost] = numbers(page, "moex_exporter_dropped_total", 'signal="samples",reason="queue_full"')
    requests = lost / len([x for x in page.splitlines() if x and not x.startswith("#")])
    assert requests > 20
    assert sum(gaps) == pytest.approx(requests, abs=5)

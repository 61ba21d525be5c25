"""What remedies do inside an engine is on the exporter's page, in another process."""

import contextlib
import os
import re
import sys
import time
from pathlib import Path

import pytest

import live_servers as servers
from live_engine import Engine
from moexray.core.errors import ExchangeError
from moexray.live.drain import Drain
from moexray.live.engines import Engines
from moexray.live.folder import Names
from moexray.live.page import Page
from moexray.runtime import guard as guards
from moexray.runtime import recorder, zero_copy
from moexray.runtime.arena import Arena, ExpertSlots
from moexray.runtime.buffers import BufferPool
from moexray.runtime.exchange import Options
from moexray.runtime.exchange.ladder import Exchange
from moexray.runtime.gc_window import GcWindow
from moexray.runtime.guard import Guard
from moexray.runtime.recorder import Ring
from moexray.runtime.rescheduler import Rescheduler

NAME = "moex_remedy_actions_total"
OUTCOMES = ("applied", "fallback", "skipped")
FACTS = {"engine": "e", "version": "1", "model": "M", "rank": 0, "device": "cpu"}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "rings"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def tallies(monkeypatch):
    """As in a process of its own, in which no remedy was made."""
    fresh = []
    monkeypatch.setattr(guards, "TALLIES", fresh)
    monkeypatch.setattr(recorder, "TALLIES", fresh)
    return fresh


def shown(page, remedy="router"):
    """[applied, fallback, skipped] of a page's text; None: no such series."""
    found = [re.search(rf'^{NAME}{{.*remedy="{remedy}",outcome="{o}"}} (\S+)$', page, re.MULTILINE) for o in OUTCOMES]
    return [int(float(m[1])) for m in found] if all(found) else None


def test_remedies_of_an_engine_are_on_the_page_of_another_process_and_never_fall(folder, tmp_path):
    port = servers.free_port()
    line = [sys.executable, "-m", "moexray", "exporter", "--rings", str(folder), "--listen", f"127.0.0.1:{port}"]
    exporter = servers.Program(tmp_path, "exporter", line, port, "/metrics")
    engines = [Engine(folder)]

    def page():
        return servers.fetch(exporter.url + "/metrics")

    def counts(*want):
        """Waits for these; on the way no counter falls or passes them."""
        before = shown(page()) or [0, 0, 0]

        def there():
            nonlocal before
            now = shown(page()) or [0, 0, 0]
            assert all(b <= n <= w for b, n, w in zip(before, now, want, strict=True)), (before, now, want)
            before = now
            return now == list(want)

        servers.until(there)

    try:
        [engine] = engines
        servers.until(lambda: "moex_routed_choices_total" in page())
        assert NAME + "{" not in page()  # no remedy, no series
        assert engine.tell("policy")
        assert engine.tell("step", 3)["counts"] == [6, 0, 0]  # two routers
        counts(6, 0, 0)
        engine.tell("broken")
        assert engine.tell("step", 2)["counts"] == [6, 4, 0]
        counts(6, 4, 0)
        assert engine.tell("again")  # another ring of the same process
        engine.tell("off")
        assert engine.tell("step", 1)["counts"] == [6, 4, 2]
        counts(6, 4, 2)
        engines.append(Engine(folder))  # another process of the same labels counts from 0 beside it
        engines[1].tell("policy")
        engines[1].tell("step", 2)
        counts(10, 4, 2)
        engine.end()
        engines[1].tell("step", 1)
        counts(12, 4, 2)
        exporter.end()
        exporter.start()  # the counts are in the rings, those of the dead one too while its ring is there
        servers.until(lambda: (shown(page()) or [0])[0] >= 6)
    finally:
        exporter.end()
        for one in engines:
            one.end()


def test_a_page_follows_one_process_over_its_rings_in_any_order(folder, tallies):
    def value(outcome):
        return source.page.value(NAME, "M", "e", 0, "buffers", outcome)

    source, guard = Engines(Page(), Drain(folder), Names()), Guard("buffers", patience=100)
    one, two = (Ring([], FACTS, folder=folder) for _ in range(2))
    for ring in (one, two, one, two):
        guard.run(int, int)
        guard.run(lambda: 1 // 0, int)
        ring.step(0, 0, 1)
        source.update()
    assert (value("applied"), value("fallback"), value("skipped")) == (4, 4, 0)
    one.close()
    guard.run(int, int)
    two.close()
    source.update()
    assert (value("applied"), value("fallback")) == (5, 4)
    Ring([], FACTS, folder=folder).step(0, 0, 1)  # the process goes on: nothing is counted anew
    source.update()
    assert (value("applied"), value("fallback")) == (5, 4)


def test_guards_that_are_gone_are_counted_and_those_of_a_recording_are_not(folder, tallies):
    ring = Ring([], FACTS, folder=folder)
    Guard("attach", told=False).run(int, int)
    ring.step(0, 0, 1)
    source = Engines(Page(), Drain(folder), Names())
    source.update()
    assert NAME.encode() + b"{" not in source.page.render(openmetrics=False)
    for _ in range(3):
        Guard("buffers").run(int, int)
    Guard("arena")
    ring.step(1, 1, 2)
    source.update()
    text = source.page.render(openmetrics=False).decode()
    assert shown(text, "buffers") == [3, 0, 0]
    assert shown(text, "arena") == [0, 0, 0]  # so that an increase is seen from the first on


def test_names_are_bounded(folder, tallies):
    ring = Ring([], FACTS, folder=folder)
    for number in range(3 * guards.MOST):
        Guard(f"{'é' * 30}{number}" if number == 1 else f"pool {number}").run(int, int)
        ring.step(number, 0, 1)
    [(reader, _)] = Drain(folder).poll()
    found = reader.remedies()
    assert len(found) == len(tallies) == guards.MOST
    assert "é" * 20 in found
    assert found["other"]["applied"] == 2 * guards.MOST + 1
    assert sum(one["applied"] for one in found.values()) == 3 * guards.MOST


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_counts_from_zero(folder, tallies):
    ring, guard = Ring([], FACTS, folder=folder), Guard("buffers")
    guard.run(int, int)
    ring.step(0, 0, 1)
    pid = os.fork()
    if not pid:
        guard.run(int, int)
        ring.step(1, 0, 1)
        os._exit(0)
    os.waitpid(pid, 0)
    source = Engines(Page(), Drain(folder), Names())
    source.update()
    assert source.page.value(NAME, "M", "e", 0, "buffers", "applied") == 2


def parcels():
    here, there = zero_copy.Port.pair()
    with here, there, zero_copy.Parcel.make(4096) as parcel, contextlib.suppress(ExchangeError):
        here.send(parcel).close()


def exchanged():
    with contextlib.suppress(ExchangeError), Exchange.open(f"tally {time.monotonic_ns()}", 0, 1, Options(rungs=("gloo", "shm"))) as one:
        one.all_to_all(b"abc", [3])


def collected():
    with GcWindow() as window:
        window.between()


def leased():
    slots = ExpertSlots(Arena(1 << 16), slots=2, slot_bytes=16)
    slots.lease("a", lambda view: None).__exit__(None, None, None)


ACTS = {
    "buffers": lambda: BufferPool().empty(3, "f4"), "arena": lambda: Arena(1 << 16).allocate(10), "experts": leased,
    "rescheduler": lambda: Rescheduler(100, bool).look(0.0, 1, pending=False, blocks=()), "gc-window": collected,
    "zero-copy": parcels, "exchange": exchanged,
}  # fmt: skip


def test_every_remedy_with_a_switch_is_told():
    text = (Path(__file__).parents[2] / "docs" / "remedies.md").read_text().partition("What all of them hold")[0]
    switches = {name for row in re.findall(r"^\|[^|]*\|[^|]*\|([^|]*)\|", text, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)}
    assert switches == {*ACTS, "router"}  # that one: above, in an engine


@pytest.mark.parametrize("name", ACTS)
def test_what_a_remedy_does_and_leaves_is_told(tallies, name):
    def counts():
        [one] = [t for t in tallies if t.name == name]
        return one.applied, one.fallbacks, one.skipped

    ACTS[name]()
    assert counts() == (1, int(name == "exchange"), 0)  # it went down from gloo, for want of a group
    guards.switch(name, on=False)
    try:
        ACTS[name]()
    finally:
        guards.switch(name, on=True)
    assert counts() == (1, int(name == "exchange"), int(name != "exchange"))  # that one is refused before a call

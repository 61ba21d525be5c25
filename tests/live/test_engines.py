"""Metrics of rings against what was written into them."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from moexray.live.drain import Drain
from moexray.live.engines import MEMORY, Engines
from moexray.live.folder import Names
from moexray.live.page import Page
from moexray.runtime.on_device import GAUGES
from moexray.runtime.recorder import Ring, Site

SITES = [Site("model.layers.1.mlp.gate", 1, 8, 2), Site("model.layers.2.mlp.gate", 2, 6, 2)]
FACTS = {"engine": "transformers", "version": "5", "model": "M", "rank": 0, "device": "cuda:0"}
MS = 1_000_000


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "rings"
    path.mkdir(mode=0o700)
    return path


def source(folder, *, trace=None, **names):
    return Engines(Page(), Drain(folder), Names(top=0, **names), trace=trace)


def write(ring, step, tokens=16, seed=0):
    """One step of both layers; the ids of each."""
    rng = np.random.default_rng([seed, step])
    ids = [rng.integers(0, s.experts, (tokens, s.k)) for s in ring.sites]
    for site, chosen in enumerate(ids):
        ring.write(site, step, 0, MS, tokens, chosen)
    ring.step(step, 0, 20 * MS, tokens, own_ns=50_000)
    return ids


def get(source, name, *labels, engine="transformers", rank=0):
    return source.page.value(name, "M", engine, rank, *labels)


def test_counters_equal_what_was_written(folder):
    ring, engines = Ring(SITES, FACTS, folder=folder), source(folder)
    want = {}
    for step in range(30):
        for site, ids in zip(SITES, write(ring, step), strict=True):
            found = np.bincount(ids.ravel(), minlength=site.experts)
            want[site.layer] = want.get(site.layer, 0) + found
            key = ("beyond", site.layer)
            want[key] = want.get(key, 0) + np.maximum(found - -(-found.sum() // site.experts), 0).sum()
        if step % 7 == 0:
            engines.update()
    engines.update()
    engines.update()  # nothing new: nothing is counted twice
    for site in SITES:
        shown = [get(engines, "moex_expert_tokens_total", site.layer, e) for e in range(site.experts)]
        assert shown == want[site.layer].tolist()
        assert get(engines, "moex_routing_collisions_total", site.layer) == want["beyond", site.layer]
        assert get(engines, "moex_expert_capacity_dropped_tokens_total", site.layer) == 0
    steps = [s.value for s in engines.page.samples() if s.name == "moex_decode_step_duration_seconds_count"]
    assert steps == [30]
    assert get(engines, "moex_hook_overhead_ratio") == pytest.approx(50_000 / (20 * MS))


def test_choices_that_name_no_expert(folder):
    ring, engines = Ring(SITES, FACTS, folder=folder), source(folder)
    ring.write(0, 0, 0, 1, 2, np.array([[-1, 3], [3, 99]]))
    engines.update()
    assert get(engines, "moex_expert_capacity_dropped_tokens_total", 1) == 2
    assert get(engines, "moex_routed_choices_total", 1) == 2


def test_what_was_overwritten_is_told_and_the_choices_miss_nothing(folder):
    ring = Ring(SITES, FACTS, folder=folder, max_bytes=80_000)
    engines = source(folder)
    for step in range(400):
        write(ring, step)
    engines.update()
    held = ring.layout.slots
    assert engines.page.value("moex_exporter_dropped_total", "records", "overwritten") == 400 * 3 - held
    assert get(engines, "moex_routed_choices_total", 1) == get(engines, "moex_routed_choices_total", 2) == 400 * 32


def test_an_engine_that_starts_again_goes_on(folder):
    engines = source(folder)
    for life in range(3):
        ring = Ring(SITES, FACTS, folder=folder)
        for step in range(10):
            write(ring, step, seed=life)
        ring.close()
        engines.update()
        assert get(engines, "moex_routed_choices_total", 1) == 320 * (life + 1)
    assert engines.drain.readers == {}


def test_an_exporter_that_starts_again_has_all_choices(folder):
    """The totals are the ring's: a killed exporter loses none of them, only records it never read."""
    ring, first = Ring(SITES, FACTS, folder=folder, max_bytes=80_000), source(folder)
    for step in range(100):
        write(ring, step)
    first.update()
    for step in range(100, 400):
        write(ring, step)
    second = source(folder)
    second.update()
    assert get(second, "moex_routed_choices_total", 1) == 400 * 32
    told = second.page.value("moex_exporter_dropped_total", "records", "overwritten")
    assert told == 400 * 3 - ring.layout.slots


KILLED = """
import os, signal, sys
import numpy as np
from moexray.runtime.flusher import Flusher
from moexray.runtime.recorder import Ring, Site
Flusher.wake = lambda _: True
ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=sys.argv[1])
for step in range(10):
    ring.hold(step, 1, 10**9, 1, calls=[(0, 1, 2, np.array([[1]]))])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_engine_held_back_is_told(folder):
    engines = source(folder)
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False, timeout=60)
    for _ in range(2):
        engines.update()
        assert engines.page.value("moex_exporter_dropped_total", "steps", "killed") == 9
    [steps] = [s.value for s in engines.page.samples() if s.name == "moex_decode_step_duration_seconds_count"]
    assert steps == 1


def test_the_schedulers_clock_is_counted_alone(folder):
    engines = source(folder)
    facts = {**FACTS, "engine": "vllm"}
    model, clock = Ring(SITES, facts, folder=folder), Ring([], {**facts, "role": "engine", "rank": None}, folder=folder)
    write(model, 0)
    for step in range(3):
        clock.step(step, 0, 10 * MS)
    engines.update()
    counts = {s.labels: s.value for s in engines.page.samples() if s.name == "moex_decode_step_duration_seconds_count"}
    assert counts == {(("model", "M"), ("engine", "vllm")): 3}
    assert get(engines, "moex_routed_choices_total", 1, engine="vllm") == 32


def test_gauges_of_the_allocator(folder):
    """All that a recording on a device tells, and no more: an unknown one has no series."""
    ring, engines = Ring([], FACTS, folder=folder, gauges=tuple(GAUGES)), source(folder)
    shown = {
        "reserved_bytes": ("moex_memory_reserved_bytes", 0, "all"),
        "allocated_bytes": ("moex_memory_allocated_bytes", 0, "all"),
        "inactive_split_bytes": ("moex_memory_stuck_bytes", 0, "all"),
        "retries": ("moex_allocator_retries_total", 0),
        "ooms": ("moex_allocator_oom_total", 0),
    }
    assert shown.keys() == GAUGES.keys()
    for value, (gauge, series) in enumerate(shown.items(), start=1):
        engines.update()
        assert get(engines, *series) is None
        ring.gauge(**{gauge: value})
        engines.update()
        assert get(engines, *series) == value


def test_exemplars_only_of_kept_steps(folder):
    kept = itertools.cycle(["", "cd" * 16])
    engines = source(folder, trace=lambda ring, batch: [next(kept) for _ in batch.records])
    ring = Ring(SITES, FACTS, folder=folder)
    ring.step(0, 0, 20 * MS)
    ring.step(1, 0, 40 * MS)
    engines.update()
    marks = [(s.labels[-1], s.exemplar.trace_id) for s in engines.page.samples() if s.exemplar]
    assert marks == [(("le", "0.05"), "cd" * 16)]


def test_layers_without_a_number_of_their_own_are_told_by_path(folder):
    sites = [Site("enc.0.gate", 0, 4, 1), Site("dec.0.gate", 0, 4, 1), Site("gate", -1, 4, 1)]
    ring, engines = Ring(sites, FACTS, folder=folder), source(folder)
    for site in range(3):
        ring.write(site, 0, 0, 1, 1, np.array([site]))
    engines.update()
    assert [get(engines, "moex_routed_choices_total", p) for p in ("enc.0.gate", "dec.0.gate", "gate")] == [1, 1, 1]


def test_a_file_that_is_no_ring_and_calls_that_failed_are_counted_once(folder, caplog):
    (folder / "1-2-3.ring").write_bytes(b"nothing")
    ring, engines = Ring(SITES, FACTS, folder=folder), source(folder)
    ring.failed()
    engines.update()
    engines.update()
    assert engines.page.value("moex_exporter_dropped_total", "rings", "refused") == 1
    [told] = [r.getMessage() for r in caplog.records]  # once
    assert "not a ring of moexray" in told
    assert engines.page.value("moex_exporter_dropped_total", "records", "not_recorded") == 1
    [lag] = [s.value for s in engines.page.samples() if s.name == "moex_exporter_lag_seconds"]
    assert 0 <= lag < 60


def test_a_ring_that_fills_quickly_is_read_oftener(folder, monkeypatch):
    now = 100.0
    monkeypatch.setattr("moexray.live.engines.time.monotonic", lambda: now)
    ring, engines = Ring(SITES, FACTS, folder=folder, max_bytes=1 << 17), source(folder)
    engines.update()
    idle = engines.every_s
    for step in range(ring.layout.slots // len(SITES)):
        write(ring, step)
    now = 100.4
    engines.update()
    full = engines.every_s
    now = 100.8
    engines.update()
    assert full <= idle / 2
    assert engines.every_s == idle


def test_an_engine_that_does_nothing_shows_no_skew_of_long_ago(folder, monkeypatch):
    """Else an alert would go on firing for what was, minutes after the last request."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    ring, engines = Ring(SITES, FACTS, folder=folder), source(folder)
    write(ring, 0, tokens=200)
    engines.update()
    skew, choices = get(engines, "moex_expert_skew_index", 1), get(engines, "moex_routed_choices_total", 1)
    assert (skew is not None, choices) == (True, 400)
    now = 159.0
    engines.update()
    assert get(engines, "moex_expert_skew_index", 1) == skew
    now = 161.0
    engines.update()
    assert get(engines, "moex_expert_skew_index", 1) is None
    write(ring, 1, tokens=200)
    engines.update()
    assert get(engines, "moex_expert_skew_index", 1) is not None
    assert get(engines, "moex_routed_choices_total", 1) == 800


def test_a_process_that_is_gone_leaves_counters_and_no_gauges(folder):
    ring, engines = Ring(SITES, FACTS, folder=folder, gauges=tuple(GAUGES)), source(folder)
    ring.gauge(**dict.fromkeys(GAUGES, 5.0))
    write(ring, 0)
    engines.update()
    gauges = {**dict.fromkeys(MEMORY, ("0", "all")), "moex_hook_overhead_ratio": ()}
    assert all(get(engines, name, *labels) is not None for name, labels in gauges.items())
    ring.close()
    engines.update()
    assert [get(engines, name, *labels) for name, labels in gauges.items()] == [None] * 4
    assert get(engines, "moex_routed_choices_total", 1) == 32

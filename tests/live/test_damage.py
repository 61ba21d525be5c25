"""Rings that are damaged, of another version, or no rings at all, beside a sound one: it alone is counted, whole."""

import json
import math
import os
import random
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider

from moexray.core.errors import ReadError
from moexray.live.bundle import Bundle
from moexray.live.drain import Drain, RingReader
from moexray.live.engines import Engines
from moexray.live.folder import Names
from moexray.live.page import Page
from moexray.live.record import Recorder, Wanted
from moexray.live.sampling import Decider, Keep
from moexray.live.spans import StepSpans
from moexray.runtime.recorder import Ring, Site
from moexray.runtime.ring_file import DESCRIPTION, LIVE, LIVE_AT

SITES = [Site("a.0", 0, 8, 2), Site("a.1", 1, 8, 2)]
FACTS = {"engine": "transformers", "version": "1", "rank": 0, "device": "cuda:0"}
VALUES = [None, -1, 0, 10**9, 2**70, "x", "\ud800", [], [[]], {}, math.nan, math.inf, True, "y" * 3000]
WORDS = [0, 1, 1 << 62, 1 << 63, (1 << 64) - 1, 10**18]


def ring(folder, model):
    """A small ring with fifty steps."""
    folder.mkdir(mode=0o700, exist_ok=True)
    made = Ring(SITES, {**FACTS, "model": model}, folder=folder, max_bytes=200_000, gauges=("reserved_bytes", "retries"))
    rng = np.random.default_rng(0)
    for step in range(50):
        for site in range(len(SITES)):
            made.write(site, step, 10, 20, 4, rng.integers(0, 8, (4, 2)))
        made.step(step, 0, 40, 4, 2)
    made.gauge(reserved_bytes=1e9, retries=3)
    return made


def bytes_anywhere(data, rnd):
    start = rnd.choice([0, LIVE_AT, 256, DESCRIPTION[0], DESCRIPTION[1]])
    for _ in range(rnd.randrange(1, 60)):
        data[min(start + rnd.randrange(500 if start else len(data)), len(data) - 1)] = rnd.randrange(256)


def words_of_the_writer(data, rnd):
    for _ in range(4):
        struct.pack_into("<Q", data, LIVE_AT + 8 * rnd.randrange(len(LIVE)), rnd.choice(WORDS))


def cut(data, rnd):
    del data[rnd.randrange(len(data)) :]


def description(data, rnd):
    about = json.loads(bytes(data[slice(*DESCRIPTION)]).rstrip(b"\0"))
    about[rnd.choice(list(about))] = rnd.choice([*VALUES, [dict.fromkeys(("path", "layer", "experts", "k"), rnd.choice(VALUES))] * 2])
    for site in about["sites"] if isinstance(about["sites"], list) else ():
        if isinstance(site, dict) and rnd.random() < 0.5:
            site[rnd.choice(["path", "layer", "experts", "k"])] = rnd.choice(VALUES)
    text = json.dumps(about).encode()
    data[slice(*DESCRIPTION)] = text.ljust(DESCRIPTION[1] - DESCRIPTION[0], b"\0")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([bytes_anywhere, words_of_the_writer, cut, description]), st.integers(0, 1 << 32))
def test_a_damaged_ring_costs_the_sound_one_nothing(damage, seed):
    rnd = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "rings")
        sound, other = ring(folder, "sound"), ring(Path(place, "other"), "damaged")
        data = bytearray(other.path.read_bytes())
        damage(data, rnd)
        (folder / other.path.name.replace("-", "-9", 1)).write_bytes(data)
        page = Page()
        spans = StepSpans(TracerProvider(shutdown_on_exit=False).get_tracer("t"), page, Decider(Keep(ratio=1.0)))
        engines = Engines(page, Drain(folder), Names(), trace=spans if rnd.random() < 0.5 else None)
        for _ in range(3):
            engines.update()
        for sample in page.samples():
            assert math.isfinite(sample.value), sample
            assert sample.value >= 0 or not sample.name.endswith(("_total", "_count", "_sum", "_bucket")), sample
        for openmetrics in (False, True):
            assert len(page.render(openmetrics=openmetrics)) < 1 << 20
        assert page.value("moex_routed_choices_total", "sound", "transformers", "0", "1") == 400
        for one in (sound, other):
            one.close()


def test_what_is_no_file_is_refused_and_waited_for_by_nobody(tmp_path):
    folder = tmp_path / "rings"
    sound = ring(folder, "sound")
    (folder / "1-1-1.ring").mkdir()
    os.mkfifo(folder / "1-1-2.ring")
    (folder / "1-1-3.ring").symlink_to(sound.path)
    (folder / "1-1-4.ring").symlink_to(folder / "nowhere")
    (folder / "1-1-5.ring").write_bytes(b"")
    drain = Drain(folder)
    assert [reader.path for reader, _ in drain.poll()] == [sound.path]
    assert len(drain.refused) == 5


def test_a_file_that_was_cut_off_while_it_is_read_is_given_up(tmp_path):
    """Its pages are gone: reading them would end the reader by SIGBUS."""
    first, second = ring(tmp_path / "rings", "first"), ring(tmp_path / "rings", "second")
    drain = Drain(tmp_path / "rings")
    assert len(drain.poll()) == 2
    os.truncate(first.path, 100)
    assert [reader.path for reader, _ in drain.poll()] == [second.path]
    assert "cut off" in drain.refused[first.path]


def test_without_files_to_open_a_ring_waits_for_the_next_look(tmp_path, monkeypatch):
    sound = ring(tmp_path / "rings", "sound")
    drain = Drain(tmp_path / "rings")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *_, **__: (_ for _ in ()).throw(OSError(24, "Too many open files")))
        assert drain.poll() == []
    assert [reader.path for reader, _ in drain.poll()] == [sound.path]
    assert drain.refused == {}


def test_the_recorder_goes_on_where_the_folder_of_the_rings_is_not_ours_any_more(tmp_path):
    """The engine runs under it: what it cannot read it counts."""
    folder = tmp_path / "rings"
    folder.mkdir(mode=0o700)
    recorder = Recorder(Bundle(tmp_path / "bundle", 1 << 20), Wanted(folder, "", ("x",)))
    folder.chmod(0o777)
    recorder.tick()
    recorder.tick()
    assert recorder.close("end")["missed"]["looks"] == 3


@pytest.mark.parametrize("size", [0, 100, DESCRIPTION[1]])
def test_a_short_file_is_refused(tmp_path, size):
    (tmp_path / "x.ring").write_bytes(bytes(size))
    with pytest.raises(ReadError):
        RingReader(tmp_path / "x.ring")

"""The collector's window: nothing unasked inside it, garbage goes between, and all is as before at the end."""

import gc
import logging

import pytest

from moexray.core.errors import UsageError
from moexray.runtime import gc_window
from moexray.runtime import guard as guards
from moexray.runtime.gc_window import GcWindow


@pytest.fixture(autouse=True)
def state(monkeypatch):
    """What the collector looks like before; each test must leave it like that."""
    monkeypatch.setattr(guards, "_said", set())
    monkeypatch.setattr(guards, "_off", set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)
    gc.unfreeze()
    before = look()
    yield before
    assert look() == before
    assert gc_window._windows == []


def look():
    return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), list(gc.callbacks)


class Node:
    def __init__(self):
        self.me = self


def make_cycles(count):
    for _ in range(count):
        Node()


def test_no_collection_is_unasked_and_between_frees():
    with GcWindow() as window:
        assert window.figures().frozen > 1000
        make_cycles(20_000)
        assert window.figures().unasked == 0
        assert window.between() >= 20_000
        assert window.between() == 0  # nothing new
        node = Node()
        window.between(idle=True)
        window.between(idle=True)
        del node  # has survived by now
        assert window.between(idle=True) >= 1
    figures = window.figures()
    assert (figures.asked, figures.unasked) == (4, 0)
    assert figures.longest_ns > 0


def test_the_valve_opens_where_between_is_never_called():
    with GcWindow(valve=5000) as window:
        make_cycles(20_000)
        assert window.figures().unasked > 0
        assert window.figures().collected > 0


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("threshold", [(0, 10, 10), (123, 4, 5)])
def test_settings_of_the_host_come_back(enabled, threshold, state):
    try:
        gc.set_threshold(*threshold)
        (gc.enable if enabled else gc.disable)()
        before = look()
        with pytest.raises(ZeroDivisionError), GcWindow():
            1 // bool(threshold[0] and gc.get_threshold() == threshold)  # raises: other thresholds, or still 0
        assert look() == before
    finally:
        gc.set_threshold(*state[1])
        gc.enable()


def test_what_the_host_froze_stays_frozen():
    gc.collect()
    gc.freeze()
    count = gc.get_freeze_count()
    with GcWindow() as window:
        assert window.figures().frozen == 0
    assert abs(gc.get_freeze_count() - count) < 100  # some died meanwhile
    gc.unfreeze()


def test_what_the_host_freezes_inside_stays_frozen(caplog):
    with caplog.at_level(logging.WARNING), GcWindow():
        kept = [[] for _ in range(1000)]
        gc.freeze()
    assert gc.get_freeze_count() >= len(kept)
    assert "stay frozen" in caplog.text
    gc.unfreeze()


def test_a_second_window_does_nothing(caplog):
    with caplog.at_level(logging.WARNING), GcWindow() as one, GcWindow() as two:
        assert two.figures().frozen == 0
        make_cycles(2000)
        assert two.between() == 0
        two.detach()
        assert one.between() > 0
    assert "a second one does nothing" in caplog.text


def test_what_the_host_sets_inside_stays(state):
    try:
        with GcWindow():
            gc.set_threshold(5000, 1, 1)
            gc.disable()
        assert (gc.get_threshold(), gc.isenabled()) == ((5000, 1, 1), False)
    finally:
        gc.set_threshold(*state[1])
        gc.enable()


def test_a_refused_window_can_be_attached_once_the_first_is_closed(monkeypatch):
    one, two = GcWindow().attach(), GcWindow().attach()
    assert (one.attached, two.attached) == (True, False)
    one.detach()
    assert two.attach().attached
    assert two.figures().frozen > 1000
    two.detach()
    guards.switch("gc-window", on=False)
    assert not one.attach().attached
    guards.switch("gc-window", on=True)
    assert one.attach().attached
    one.detach()


def test_safe_twice_and_switched_off(monkeypatch):
    window = GcWindow().attach().attach()
    window.detach()
    window.detach()
    monkeypatch.setenv(guards.VARIABLE, "gc-window")
    before = look()
    with GcWindow() as window:
        assert look() == before
        assert window.between() == 0


@pytest.mark.parametrize("valve", [float("nan"), -1, "x", None, 1.5, 1 << 31])
def test_a_valve_that_cannot_be(valve):
    with pytest.raises(UsageError, match="valve"):
        GcWindow(valve=valve)

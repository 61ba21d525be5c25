"""The guard: what the remedy raises never reaches the host, and is told once."""

import logging
import threading

import pytest

from moexray.runtime import guard as guards
from moexray.runtime.guard import Guard, say_once, switch


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    """Each test is a process of its own: nothing said, nothing switched off."""
    monkeypatch.setattr(guards, "_said", set())
    monkeypatch.setattr(guards, "_off", set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)


def broken(x):
    raise RuntimeError(f"no room for {x}")


def original(x):
    return ("original", x)


def test_the_remedy_answers():
    guard = Guard("router")
    assert guard.run(lambda x: ("remedy", x), original, 3) == ("remedy", 3)
    assert guard.figures() == guards.Figures(calls=1, fallbacks=0, skipped=0, error="")


def test_a_remedy_that_raises_falls_back_and_is_told_once(caplog):
    guard = Guard("router", patience=3)
    with caplog.at_level(logging.WARNING):
        results = [guard.run(broken, original, i) for i in range(5)]
    assert results == [("original", i) for i in range(5)]
    assert guard.figures() == guards.Figures(5, 3, 2, "RuntimeError: no room for 2")
    assert not guard.on
    [record] = caplog.records
    assert "remedy router raised RuntimeError: no room for 0" in record.message
    assert "MOEXRAY_OFF=router" in record.message
    guard.reset()
    assert guard.on


def test_a_second_guard_of_the_same_remedy_tells_nothing_again(caplog):
    for guard in (Guard("router"), Guard("router")):
        guard.run(broken, original, 1)
    assert len(caplog.records) == 1


def test_what_the_original_raises_is_the_hosts_own():
    guard = Guard("router")
    with pytest.raises(ZeroDivisionError):
        guard.run(broken, lambda x: 1 // 0, 1)
    with pytest.raises(KeyboardInterrupt):
        guard.run(lambda x: (_ for _ in ()).throw(KeyboardInterrupt), original, 1)


@pytest.mark.parametrize(
    ("value", "on"), [("", True), ("all", False), ("1", False), ("exchange, router", False), ("exchange", True)]
)
def test_the_environment_switches_off_for_good(monkeypatch, value, on):
    monkeypatch.setenv(guards.VARIABLE, value)
    guard = Guard("router")
    switch("router", on=True)
    assert guard.on is on
    assert guard.run(lambda x: "remedy", original, 1) == ("remedy" if on else ("original", 1))
    assert guard.figures().skipped == (not on)


@pytest.mark.parametrize("name", ["router", "all"])
def test_the_switch_works_while_the_process_runs(name):
    guard, other = Guard("router"), Guard("exchange")
    switch(name, on=False)
    assert (guard.on, other.on) == (False, name != "all")
    switch(name, on=True)
    assert guard.on
    assert other.on


def test_an_engine_thread_carries_on(caplog):
    """Four threads of a host call a remedy that raises every third time; every call has its result."""
    guard = Guard("exchange", patience=10_000)
    results = []

    def remedy(x):
        if x % 3 == 0:
            raise OSError("peer is gone")
        return ("remedy", x)

    def engine():
        results.extend(guard.run(remedy, original, x) for x in range(300))

    threads = [threading.Thread(target=engine) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 1200
    assert all(kind == ("original" if x % 3 == 0 else "remedy") for kind, x in results)
    assert guard.figures() == guards.Figures(1200, 400, 0, "OSError: peer is gone")
    assert len(caplog.records) == 1


def test_say_once(caplog):
    for _ in range(3):
        say_once("unknown router")
        say_once("another text", key="unknown router")
    assert [r.message for r in caplog.records] == ["unknown router"]


@pytest.mark.parametrize("words", ["all", "1", "true", "YES", "On", "Router", "exchange router", "a; router", " ,router,"])
def test_words_that_switch_off(monkeypatch, words):
    monkeypatch.setenv(guards.VARIABLE, words)
    assert not Guard("router").on


@pytest.mark.parametrize("words", ["", " ", ",", "0", "false", "off", "no", "routers", "exchange"])
def test_words_that_do_not(monkeypatch, words):
    monkeypatch.setenv(guards.VARIABLE, words)
    assert Guard("router").on


def test_an_error_is_told_by_its_first_line(caplog):
    """Torch puts a stack of C++ behind it."""
    guard = Guard("router")

    def raises():
        raise RuntimeError("no room " + "x" * 1000 + "\nframe #0: c10::Error")

    guard.run(raises, int)
    assert "frame" not in caplog.text
    assert guard.figures().error.startswith("RuntimeError: no room xx")
    assert len(guard.figures().error) == 300

"""The webhook under messages and clocks that nobody should send or have: answered, counted, nothing kept of them."""

import json
import time
from pathlib import Path

import pytest

from moexray.live import hook as hook_module
from moexray.live.hook import Hook, Options
from moexray.live.jobs import Jobs
from moexray.live.page import Page
from moexray.live.runs import Result
from moexray.live.serve import Request

START = "2026-01-02T03:04:05.678Z"
ALERT = {"status": "firing", "labels": {"alertname": "A"}, "startsAt": START, "endsAt": START, "fingerprint": "ab"}
BIG = "9" * 400


def message(alerts, **more):
    return json.dumps({"version": "4", "alerts": alerts, **more})


@pytest.fixture
def hook(tmp_path):
    made = Hook(Jobs(tmp_path), lambda *_: Result("b", "v", "c"), Page(), listen="127.0.0.1:0", options=Options(cooldown_s=60))
    yield made
    made.server._http.server_close()


def post(hook, body):
    kind = {"Content-Type": "application/json"}
    return hook.handle(Request("POST", "/alerts", kind, body.encode("utf-8", "surrogatepass")))


@pytest.mark.parametrize(
    "body",
    ["", "null", "5", '"x"', "[" * 100_000, '{"a":' * 20_000, "\ufeff{}", "\ud800", message([ALERT]).replace('"4"', "4"),
     *(message(alerts) for alerts in (None, {}, "x", [None], ["x"], [5], [[]], [ALERT] * (hook_module.MOST_ALERTS + 1))),
     *(message([{**ALERT, key: value}]) for key in ("fingerprint", "startsAt") for value in (None, [], {}, "", "../../x", "\ud800")),
     *(message([{**ALERT, "labels": value}]) for value in (None, [], "x", 5)), f'{{"version": "4", "alerts": {"9" * 5000}}}'],
)  # fmt: skip
def test_what_is_no_message_is_refused_and_counted(hook, body):
    assert post(hook, body).status == 400
    assert hook.page.value("moex_exporter_dropped_total", "alerts", "refused") == 1
    assert hook.jobs.listed() == []


@pytest.mark.parametrize("value", [None, [], {"a": 1}, "\ud800", "<script>", "a\nb", "x" * 1000, 5, True])
def test_labels_of_no_plain_letters_are_left_out(hook, value):
    assert post(hook, message([{**ALERT, "labels": {"alertname": value, "model": "m", "other": "x"}, "status": "firing"}])).status == 200
    [job] = hook.jobs.listed()
    assert job.labels == {"model": "m"}


@pytest.mark.parametrize("cut", [BIG, f"-{BIG}", "-1", "1.5", "1e400", "NaN", "true", '"5"', "null", "[]"])
def test_no_message_spoils_the_count_of_what_was_cut_off(hook, cut):
    assert post(hook, f'{{"version": "4", "alerts": [], "truncatedAlerts": {cut}}}').status == 200
    assert post(hook, '{"version": "4", "alerts": [], "truncatedAlerts": 3}').status == 200
    assert hook.page.value("moex_exporter_dropped_total", "alerts", "truncated") == 3


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
def test_a_clock_that_was_put_back_makes_no_cooldown(hook, monkeypatch, jump_s):
    """Else the alert would be looked into no more until the old time has come again."""
    now = 1e9
    monkeypatch.setattr(time, "time", lambda: now)
    post(hook, message([ALERT]))
    hook._deal(hook.jobs.take())
    now += jump_s
    post(hook, message([{**ALERT, "startsAt": "2026-01-03T00:00:00Z"}]))
    hook._deal(hook.jobs.take())
    assert {job.state for job in hook.jobs.listed()} == {"done"}


def test_a_disk_that_stays_full_does_not_have_the_diagnosis_run_again_and_again(hook, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    post(hook, message([ALERT]))
    monkeypatch.setattr(hook.jobs, "finish", full)
    pauses: list[float] = []

    def wait(seconds):
        pauses.append(seconds)
        if len(pauses) == 8:
            hook._end.set()

    monkeypatch.setattr(hook._end, "wait", wait)
    hook._working()
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    assert len(list(Path(hook.jobs.folder, "queue").iterdir())) == 1

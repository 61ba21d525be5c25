"""What a job starts: the newest recording, bounded in time; a workflow of plain strings."""

import os
from pathlib import Path

import pytest

from moexray.core.errors import MoexrayError
from moexray.live import runs as runs_module
from moexray.live.jobs import make_job
from moexray.live.runs import Local, RetryError, latest_bundle, workflow

INCIDENT = Path(__file__).resolve().parents[2] / "examples" / "incident"
START = "2026-01-02T03:04:05.678Z"


def test_a_run_is_bounded_in_time(tmp_path):
    with pytest.raises(MoexrayError, match="more than 0 s"):
        Local(INCIDENT, timeout_s=0.01)(make_job("ab", START, {}), tmp_path)


def test_the_newest_recording_is_taken(tmp_path):
    assert latest_bundle(tmp_path) == tmp_path
    for i, name in enumerate(("new", "old", "no")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("")
        if name != "no":
            (tmp_path / name / "manifest.json").write_text("{}")
        for item in (*(tmp_path / name).iterdir(), tmp_path / name):
            os.utime(item, (1000 - i, 1000 - i))
    assert latest_bundle(tmp_path).name == "new"
    os.utime(tmp_path / "old" / "x")
    assert latest_bundle(tmp_path).name == "old"


def test_a_workflow_has_nothing_but_strings_from_the_alert():
    body = workflow(make_job("ab", START, {"rank": "0"}), "ns", "t")
    assert all(isinstance(p["value"], str) for p in body["spec"]["arguments"]["parameters"])
    assert body["metadata"]["name"].removeprefix("moexray-").isalnum()


def test_a_diagnosis_that_was_killed_is_worth_another_try(tmp_path, monkeypatch):
    """As when the service is being stopped: the job is not lost with it."""
    monkeypatch.setattr(runs_module.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "python").chmod(0o700)
    with pytest.raises(RetryError, match="ended by signal 9"):
        Local(INCIDENT)(make_job("ab", START, {}), tmp_path)


def test_nothing_of_an_alert_is_on_the_command_line(tmp_path, monkeypatch):
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\nexit 2\n')
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(runs_module.sys, "executable", str(tmp_path / "python"))
    job = make_job("ab", START, {"alertname": "LABEL", "model": "LABEL"})
    with pytest.raises(MoexrayError, match="diagnose ended with 2"):
        Local(INCIDENT)(job, tmp_path)
    words = (tmp_path / "words").read_text()
    assert "LABEL" not in words
    assert str(INCIDENT) in words
    assert job.key in words


def test_ctrl_c_ends_the_hook_and_not_its_run(tmp_path, monkeypatch):
    """The terminal sends it to the whole group; a run that ends by it would count as a diagnosis that failed."""
    monkeypatch.setattr(runs_module.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text(f"#!/bin/sh\nps -o pgid= -p $$ > {tmp_path}/group\nexit 2\n")
    (tmp_path / "python").chmod(0o700)
    with pytest.raises(MoexrayError):
        Local(INCIDENT)(make_job("ab", START, {}), tmp_path)
    assert int((tmp_path / "group").read_text()) != os.getpgrp()

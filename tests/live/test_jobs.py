"""The queue on disk: kills, damage, bounds."""

import json
from dataclasses import asdict

import pytest

from moexray.core.errors import UsageError
from moexray.live import jobs as jobs_module
from moexray.live.jobs import Jobs, make_job

START = "2026-01-02T03:04:05.678Z"


def test_killed_between_the_two_steps_of_the_end(tmp_path):
    jobs = Jobs(tmp_path)
    job = make_job("ab", START, {})
    jobs.offer(job)
    waiting = (tmp_path / "queue" / f"{job.key}.json").read_bytes()
    jobs.finish(jobs.take(), "done", verdict="none")
    (tmp_path / "queue" / f"{job.key}.json").write_bytes(waiting)
    again = Jobs(tmp_path)
    assert again.take() is None
    assert [j.state for j in again.listed()] == ["done"]


def test_a_damaged_job_is_set_aside(tmp_path):
    Jobs(tmp_path)
    sound = asdict(make_job("ab", START, {"rank": "0"}))
    texts = ["{", '{"key": "x"}', "[]", "", "null", "[" * 100_000, json.dumps({**sound, "key": "other"})]
    texts += [json.dumps({**sound, key: value}) for key in sound for value in (None, [], {"a": 1})]
    for number, text in enumerate(texts):
        (tmp_path / "queue" / f"{number}.json").write_text(text.replace(sound["key"], str(number)))
    jobs = Jobs(tmp_path)
    assert jobs.listed() == []
    assert jobs.take() is None
    assert sorted(p.suffix for p in (tmp_path / "queue").iterdir()) == [".bad"] * len(texts)


@pytest.mark.parametrize("jump_s", [-1e6, 1e6])
def test_a_job_is_tried_again_whatever_the_clock_of_the_day_does(tmp_path, monkeypatch, jump_s):
    now = 1e9
    monkeypatch.setattr(jobs_module.time, "time", lambda: now)
    jobs = Jobs(tmp_path)
    jobs.offer(make_job("ab", START, {}))
    jobs.again(jobs.take(), 30, "away")
    assert jobs.take() is None
    now += jump_s
    assert jobs.take()


def test_old_jobs_and_reports_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs_module, "KEPT", 3)
    jobs = Jobs(tmp_path)
    for i in range(6):
        jobs.offer(make_job(f"{i:x}", START, {}))
        job = jobs.take()
        (jobs.reports / f"{job.key}.html").write_text("x")
        jobs.finish(job, "done")
        jobs.resolve(make_job(f"e{i:x}", START, {}).key, START)
    assert len(jobs.listed()) == len(list(jobs.reports.iterdir())) == len(list((tmp_path / "done").iterdir())) == 3
    assert len(list((tmp_path / "early").iterdir())) == 3


def test_a_state_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        Jobs(tmp_path / "file")

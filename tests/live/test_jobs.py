"""The queue on disk: kills, damage, bounds."""

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
    for name, text in (("a.json", "{"), ("b.json", '{"key": "x"}'), ("c.json", "[]")):
        (tmp_path / "queue" / name).write_text(text)
    assert Jobs(tmp_path).listed() == []
    assert sorted(p.suffix for p in (tmp_path / "queue").iterdir()) == [".bad"] * 3


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

"""The webhook: what is promised, what is run once, what is refused. A real Alertmanager: test_servers.py."""

import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from moexray.core.errors import MoexrayError
from moexray.live import jobs as jobs_module
from moexray.live.hook import Hook, Options, read_alerts
from moexray.live.jobs import Jobs
from moexray.live.page import Page
from moexray.live.runs import Argo, Grafana, Local, Result, RetryError
from moexray.live.serve import Reply, Server

INCIDENT = Path(__file__).resolve().parents[2] / "examples" / "incident"
START = "2026-01-02T03:04:05.678Z"


def alert(fingerprint="ab12", status="firing", starts=START, **labels):
    labels = {"alertname": "MoexFragmentationHigh", "rank": "0", **labels}
    ends = "2026-01-02T04:00:00Z" if status == "resolved" else "0001-01-01T00:00:00Z"
    return {"status": status, "labels": labels, "annotations": {}, "startsAt": starts, "endsAt": ends,
            "fingerprint": fingerprint}  # fmt: skip


def message(*alerts, **more):
    return {"version": "4", "groupKey": "g", "truncatedAlerts": 0, "status": "firing", "alerts": list(alerts), **more}


class Runs:
    """A runner that remembers; fails as told, waits where told."""

    def __init__(self, *fail, gate=None):
        self.fail, self.gate, self.jobs, self.busy, self.most = list(fail), gate, [], 0, 0
        self.lock = threading.Condition()

    def __call__(self, job, reports):
        with self.lock:
            self.jobs.append(job)
            self.busy += 1
            self.most = max(self.most, self.busy)
            self.lock.notify_all()
        try:
            if self.gate:
                assert self.gate.wait(20)
            if self.fail:
                raise self.fail.pop(0)
            return Result("bundle-1", "mem.fragmentation", "It is so.")
        finally:
            with self.lock:
                self.busy -= 1


@pytest.fixture
def hooked(tmp_path):
    made = []

    def make(runner=None, *, token="", limit=100, publish=None, start=True, state=tmp_path / "state", **options):
        page = Page()
        quick = Options(**{"first_pause_s": 0.01, "cooldown_s": 0.0, **options})
        hook = Hook(Jobs(state, limit), runner or Runs(), page, listen="127.0.0.1:0", token=token, options=quick,
                    publish=publish)  # fmt: skip
        if start:
            hook.start()
            made.append(hook)
        else:
            hook.server.start()
            made.append(hook.server)
        return hook

    yield make
    for one in made:
        one.close()


def post(hook, body, path="/alerts", **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(hook.server.url + path, data, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as why:
        with why:
            return why.code, why.read().decode()


def get(hook, path):
    with urllib.request.urlopen(hook.server.url + path, timeout=10) as answer:
        return answer.read().decode(), answer.headers


def settled(hook, count):
    """All jobs, once so many of them have ended."""
    deadline = time.monotonic() + 30
    with hook.jobs.changed:
        while sum(j.state != "queued" for j in hook.jobs.listed()) < count:
            assert hook.jobs.changed.wait(deadline - time.monotonic()), hook.jobs.listed()
    return hook.jobs.listed()


def test_an_alert_is_run_once_however_often_it_comes(hooked):
    runs = Runs()
    hook = hooked(runs)
    status, told = post(hook, message(alert()))
    assert (status, len(told["queued"])) == (200, 1)
    settled(hook, 1)
    for again in (message(alert()), message(alert(), alert()), message(alert(), alert("cd"), groupKey="other")):
        assert post(hook, again)[0] == 200
    jobs = settled(hook, 2)
    assert [j.fingerprint for j in runs.jobs] == ["ab12", "cd"]
    assert {j.state for j in jobs} == {"done"}
    assert {j.verdict for j in jobs} == {"mem.fragmentation"}


def test_the_same_alert_at_another_time_is_another_job(hooked):
    runs = Runs()
    hook = hooked(runs)
    post(hook, message(alert(), alert(starts="2026-01-02T05:00:00Z")))
    settled(hook, 2)
    assert len(runs.jobs) == 2


def test_within_the_cooldown_the_last_report_is_pointed_to(hooked):
    runs = Runs()
    hook = hooked(runs, cooldown_s=3600.0)
    post(hook, message(alert()))
    settled(hook, 1)
    post(hook, message(alert(starts="2026-01-02T05:00:00Z"), alert("cd")))
    jobs = {(j.fingerprint, j.state): j for j in settled(hook, 3)}
    assert set(jobs) == {("ab12", "done"), ("ab12", "cooldown"), ("cd", "done")}
    assert jobs["ab12", "done"].key in jobs["ab12", "cooldown"].note
    assert hook.page.value("moex_hook_runs_total", "cooldown") == 1


def test_the_cooldown_begins_when_the_run_ends(hooked):
    gate = threading.Event()
    runs = Runs(gate=gate)
    hook = hooked(runs, cooldown_s=3600.0, concurrency=2)
    post(hook, message(alert(), alert(starts="2026-01-02T05:00:00Z"), alert("cd")))
    with runs.lock:
        assert runs.lock.wait_for(lambda: runs.busy == 2, 20)
    assert {j.fingerprint for j in runs.jobs} == {"ab12", "cd"}  # never two runs of one alert
    with hook.jobs.changed:  # as if they had waited for long
        for known in (hook.jobs._waiting, hook.jobs._done):
            known.update({k: replace(j, received_s=j.received_s - 7200) for k, j in known.items()})
    gate.set()
    settled(hook, 3)
    assert len(runs.jobs) == 2
    assert hook.page.value("moex_hook_runs_total", "cooldown") == 1


def test_resolved_after_and_before_firing(hooked):
    hook = hooked(start=False)
    post(hook, message(alert()))
    _, told = post(hook, message(alert(status="resolved"), alert("cd", status="resolved")))
    assert len(told["resolved"]) == 2
    post(hook, message(alert("cd")))  # delivery has no order
    jobs = hook.jobs.listed()
    assert len(jobs) == 2
    assert {j.resolved_at for j in jobs} == {"2026-01-02T04:00:00Z"}
    post(hook, message(alert("ef", status="resolved")))
    assert len(hook.jobs.listed()) == 2  # what only ended is no job


def test_what_was_cut_off_is_counted(hooked):
    hook = hooked()
    status, told = post(hook, message(alert(), truncatedAlerts=7))
    assert (status, told["truncated"]) == (200, 7)
    assert hook.page.value("moex_exporter_dropped_total", "alerts", "truncated") == 7


def test_a_token_is_asked_for(hooked):
    hook = hooked(token="right")
    assert post(hook, message(alert()))[0] == 401
    assert post(hook, message(alert()), Authorization="Bearer wrong")[0] == 401
    assert hook.jobs.listed() == []
    assert post(hook, message(alert()), Authorization="Bearer right")[0] == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"[" * 100_000, {"version": "3", "alerts": []}, message(alerts=None), message(alerts={}),
     message(1), message({}), message(alert("../../etc")), message(alert("AB")), message(alert(starts="; rm -rf /")),
     message({**alert(), "labels": []}), message(*[alert()] * 501)],
    ids=range(15),
)  # fmt: skip
def test_what_is_no_message_is_refused(hooked, body):
    hook = hooked(start=False)
    assert post(hook, body)[0] == 400
    assert hook.page.value("moex_exporter_dropped_total", "alerts", "refused") == 1
    assert hook.jobs.listed() == []


def test_other_types_web_pages_and_paths(hooked):
    hook = hooked(start=False)
    assert post(hook, message(alert()), **{"Content-Type": "text/plain"})[0] == 415
    assert post(hook, message(alert()), Origin="http://evil.example")[0] == 403
    assert post(hook, message(alert()), path="/")[0] == 404
    for path in ("/reports/../queue/x.json", "/reports/" + "0" * 32 + ".html", "/reports/x.html"):
        with pytest.raises(urllib.error.HTTPError):
            get(hook, path)
    assert "moex_hook_runs_total" not in get(hook, "/metrics")[0]


def test_labels_are_data_and_nothing_else():
    evil = {"alertname": "$(reboot)", "model": "<script>", "rank": "0", "layer": "x" * 81, "unknown": "1", "job": 5}
    [(_, job, _)], _ = read_alerts(json.dumps(message(alert(**evil))).encode())
    assert job.labels == {"rank": "0"}


def test_a_full_queue_says_come_again_and_what_was_taken_is_known_then(hooked):
    gate = threading.Event()
    hook = hooked(Runs(gate=gate), limit=2)
    three = message(alert("a1"), alert("a2"), alert("a3"))
    assert post(hook, three)[0] == 503
    assert hook.page.value("moex_exporter_dropped_total", "alerts", "queue_full") == 1
    gate.set()
    settled(hook, 2)
    status, told = post(hook, three)
    assert (status, len(told["known"]), len(told["queued"])) == (200, 2, 1)


def test_nothing_is_promised_that_is_not_on_disk(hooked, monkeypatch):
    hook = hooked(start=False)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jobs_module, "_write_durably", full)
    status, text = post(hook, message(alert()))
    assert (status, text) == (503, "the queue cannot be written (No space left on device)\n")
    assert hook.jobs.listed() == []
    monkeypatch.undo()
    assert post(hook, message(alert()))[0] == 200


def test_a_killed_hook_goes_on_where_it_was(hooked, tmp_path):
    first = hooked(start=False)
    post(first, message(alert("a1"), alert("a2")))
    taken = first.jobs.take()  # it is killed while this one runs
    runs = Runs()
    second = hooked(runs)
    settled(second, 2)
    assert {j.fingerprint for j in runs.jobs} == {"a1", "a2"}
    assert taken.fingerprint == "a1"
    third = hooked(Runs())
    assert {j.state for j in third.jobs.listed()} == {"done"}
    assert post(third, message(alert("a1")))[1]["known"]


def test_no_more_runs_at_a_time_than_allowed(hooked):
    gate, runs = threading.Event(), Runs()
    runs.gate = gate
    hook = hooked(runs, concurrency=2)
    post(hook, message(*(alert(f"a{i}") for i in range(6))))
    with runs.lock:
        assert runs.lock.wait_for(lambda: runs.busy == 2, 20)
    gate.set()
    settled(hook, 6)
    assert runs.most == 2


def test_what_may_work_later_is_tried_again_then_given_up(hooked):
    hook = hooked(Runs(RetryError("away"), PermissionError("no")), tries=3)
    post(hook, message(alert()))
    [job] = settled(hook, 1)
    assert (job.state, job.tries) == ("done", 2)
    for i, (why, note) in enumerate([(RetryError("away"), "away"), (OSError("disk"), "the run failed (disk)")]):
        hook = hooked(Runs(*[why] * 5), tries=3, state=hook.jobs.folder / f"other{i}")
        post(hook, message(alert()))
        [job] = settled(hook, 1)
        assert (job.state, job.note) == ("failed", f"given up after 3 tries: {note}")


@pytest.mark.parametrize(("why", "note"), [(MoexrayError("no"), "no"), (RuntimeError("bug"), "RuntimeError: bug")])
def test_a_run_that_fails_does_not_stop_the_next(hooked, why, note):
    hook = hooked(Runs(why))
    post(hook, message(alert("a1"), alert("a2")))
    jobs = {j.fingerprint: j for j in settled(hook, 2)}
    assert (jobs["a1"].state, jobs["a1"].note, jobs["a2"].state) == ("failed", note, "done")
    assert hook.page.value("moex_hook_runs_total", "failed") == 1


def test_a_local_run_writes_report_log_and_annotation_with_one_trace_id(hooked, caplog):
    posted, came = [], threading.Event()

    def take(request):
        posted.append(json.loads(request.body))
        came.set()
        return Reply(200, b"{}")

    grafana = Server("127.0.0.1:0", take)
    grafana.start()
    caplog.set_level("INFO", logger="moexray.live.hook")
    hook = hooked(Local(INCIDENT), publish=Grafana(grafana.url, reports="http://hook/reports"))
    post(hook, message(alert(model="evil <b>")))
    [job] = settled(hook, 1)
    assert came.wait(20)
    grafana.close()
    assert (job.state, job.verdict, job.run) == ("done", "mem.fragmentation", "incident")
    page, headers = get(hook, f"/reports/{job.key}.html")
    assert "mem.fragmentation" in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert json.loads(get(hook, f"/reports/{job.key}.json")[0])["schema"] == "moexray.diagnosis/1"
    assert f"/reports/{job.key}.html" in get(hook, "/reports")[0]
    [body] = posted
    assert job.trace_id in body["text"]
    assert f"http://hook/reports/{job.key}.html" in body["text"]
    assert body["tags"] == ["moexray", "alertname:MoexFragmentationHigh", "rank:0"]
    [line] = [json.loads(r.message) for r in caplog.records if "moexray.hook" in r.message]
    assert line["trace_id"] == job.trace_id


def test_a_run_without_anything_to_diagnose(hooked, tmp_path):
    hook = hooked(Local(tmp_path / "nowhere"), tries=2)
    post(hook, message(alert()))
    [job] = settled(hook, 1)
    assert "does not exist" in job.note
    (tmp_path / "empty").mkdir()
    hook = hooked(Local(tmp_path / "empty"), state=tmp_path / "other")
    post(hook, message(alert()))
    [job] = settled(hook, 1)
    assert (job.state, "diagnose ended with 2" in job.note) == ("failed", True)


class ArgoStandIn:
    """A stand-in for an Argo server: it checks the path and the keys, and runs nothing."""

    def __init__(self, *statuses):
        self.statuses, self.bodies, self.tokens = list(statuses), [], []
        self.server = Server("127.0.0.1:0", self.answer)
        self.server.start()

    def answer(self, request):
        assert request.path == "/api/v1/workflows/ns"
        self.bodies.append(json.loads(request.body)["workflow"])
        self.tokens.append(request.headers.get("Authorization"))
        return Reply(self.statuses.pop(0) if self.statuses else 200, b"{}")


@pytest.mark.parametrize("statuses", [(), (500,), (503, 429), (409,)])
def test_argo_stand_in_gets_one_workflow_a_job(hooked, statuses):
    argo = ArgoStandIn(*statuses)
    hook = hooked(Argo(argo.server.url, "ns", "template-1", token="t"))
    post(hook, message(alert()))
    [job] = settled(hook, 1)
    argo.server.close()
    assert (job.state, job.run) == ("done", f"moexray-{job.key}")
    assert len({b["metadata"]["name"] for b in argo.bodies}) == 1
    assert argo.bodies[0]["spec"]["workflowTemplateRef"] == {"name": "template-1"}
    given = {p["name"]: p["value"] for p in argo.bodies[0]["spec"]["arguments"]["parameters"]}
    assert given["trace-id"] == job.trace_id
    assert given["label-alertname"] == "MoexFragmentationHigh"
    assert set(argo.tokens) == {"Bearer t"}


def test_argo_stand_in_that_refuses_is_not_asked_again(hooked):
    argo = ArgoStandIn(403)
    hook = hooked(Argo(argo.server.url, "ns", "template-1"))
    post(hook, message(alert()))
    [job] = settled(hook, 1)
    argo.server.close()
    assert (job.state, "answers 403" in job.note, len(argo.bodies)) == ("failed", True, 1)

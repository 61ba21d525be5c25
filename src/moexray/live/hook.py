"""`moexray hook`: Alertmanager's webhook starts a diagnosis by itself, and its report comes back.

An alert is answered with 2xx once its job is on disk; sent again, it is the same job. The same alert within
the cooldown points to the last report and runs nothing. What an alert says is not trusted: labels of an
allow-list and of a plain alphabet are shown and passed on as data, the rest is left out.
"""

from __future__ import annotations

import html
import json
import logging
import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moexray.core.errors import MoexrayError
from moexray.live.exporter import answer
from moexray.live.jobs import Job, Jobs, make_job
from moexray.live.runs import RetryError, log_line
from moexray.live.serve import Reply, Request, Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.live.page import Page
    from moexray.live.runs import Runner

__all__ = ["LABELS", "Hook", "Options", "read_alerts"]

LABELS = (
    "alertname", "severity", "model", "engine", "rank", "device", "layer", "direction", "instance", "job",
)  # fmt: skip
PLAIN = re.compile(r"[A-Za-z0-9_.:/ -]{1,80}")
FINGERPRINT = re.compile(r"[0-9a-f]{1,64}")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[0-9.:+Z-]{0,20}")
REPORT = re.compile(r"/reports/([0-9a-f]{32})\.(html|json)")
MOST_ALERTS = 500  # of one message
MOST_CUT = 1_000_000  # that a message may say were cut off: a counter never recovers from a wrong one
LONGEST_S = 60.0  # between two tries to write the queue
KINDS = {"html": "text/html; charset=utf-8", "json": "application/json"}
# A report is one page without any request; should one hold more than we wrote, the browser refuses it.
INLINE = "'unsafe-inline'"
POLICY = {
    "Content-Security-Policy": f"default-src 'none'; script-src {INLINE}; style-src {INLINE}; img-src data:",
    "X-Content-Type-Options": "nosniff",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How to run.

    Args:
        concurrency: Runs at a time.
        cooldown_s: The same alert is not run again within so many seconds of the end of its last run.
        tries: Of one job whose other side is away.
        first_pause_s: Before the second try; doubles.
    """

    concurrency: int = 1
    cooldown_s: float = 300.0
    tries: int = 8
    first_pause_s: float = 2.0


def read_alerts(body: bytes) -> tuple[list[tuple[str, Job, str]], int]:
    """(status, job, when it ended) of each alert of a webhook message, and how many were cut off.

    Raises:
        ValueError: it is no message of Alertmanager's version 4.
    """
    message = json.loads(body)
    if not isinstance(message, dict) or message.get("version") != "4":
        raise ValueError("not a webhook message of version 4")
    alerts = message.get("alerts")
    if not isinstance(alerts, list) or len(alerts) > MOST_ALERTS:
        raise ValueError(f"alerts must be a list of at most {MOST_ALERTS}")
    found = []
    for alert in alerts:
        fingerprint, starts = str(alert["fingerprint"]), str(alert["startsAt"])
        if not FINGERPRINT.fullmatch(fingerprint) or not MOMENT.fullmatch(starts):
            raise ValueError("an alert without a fingerprint or a start")
        labels = {
            name: value
            for name in LABELS
            if isinstance(value := alert.get("labels", {}).get(name), str) and PLAIN.fullmatch(value)
        }
        ends = str(alert.get("endsAt", ""))
        job = make_job(fingerprint, starts, labels)
        found.append((str(alert.get("status")), job, ends if MOMENT.fullmatch(ends) else "unknown"))
    cut = message.get("truncatedAlerts", 0)
    return found, cut if type(cut) is int and 0 < cut <= MOST_CUT else 0


class Hook:
    """Takes alerts, runs jobs, serves reports, from `start` to `close`.

    Args:
        jobs: The queue.
        runner: What a job starts.
        page: Counts runs and losses; served at /metrics.
        listen: HOST:PORT.
        token: Needed beyond loopback; empty for none.
        options: How to run.
        publish: Told of each job that ended, beside the log.
    """

    def __init__(
        self, jobs: Jobs, runner: Runner, page: Page, *, listen: str, token: str = "",
        options: Options | None = None, publish: Callable[[Job], None] | None = None,
    ) -> None:  # fmt: skip
        self.jobs, self.runner, self.page, self.publish = jobs, runner, page, publish
        self.options = options or Options()
        self.server = Server(listen, self.handle, token)
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._working, daemon=True) for _ in range(self.options.concurrency)
        ]

    def start(self) -> None:
        """Begins to answer, and goes on with what the last process left."""
        self.server.start()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends; a run in progress is waited for, what waits stays on disk."""
        self._end.set()
        with self.jobs.changed:
            self.jobs.changed.notify_all()
        for thread in self._threads:
            thread.join()
        self.server.close()

    def handle(self, request: Request) -> Reply:
        """Answers one request."""
        if request.path == "/metrics":
            return answer(self.page, request)
        if request.path == "/alerts" and request.method == "POST":
            return self._alerts(request)
        if request.path == "/reports" and request.method == "GET":
            return Reply(200, self._listing().encode(), KINDS["html"], POLICY)
        if (found := REPORT.fullmatch(request.path)) and request.method == "GET":
            file = self.jobs.reports / f"{found[1]}.{found[2]}"
            if file.is_file():
                return Reply(200, file.read_bytes(), KINDS[found[2]], POLICY)
        return Reply(404, b"POST /alerts, GET /reports, GET /metrics\n")

    def _alerts(self, request: Request) -> Reply:
        if not request.headers.get("Content-Type", "").startswith("application/json"):
            return Reply(415, b"application/json, please\n")
        try:
            alerts, cut = read_alerts(request.body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
            self.page.drop("alerts", "refused")
            return Reply(400, f"not understood: {why}\n".encode())
        if cut:
            self.page.drop("alerts", "truncated", cut)
        told: dict[str, Any] = {"queued": [], "known": [], "resolved": [], "truncated": cut}
        try:
            for status, job, ends in alerts:
                if status == "resolved":
                    self.jobs.resolve(job.key, ends)
                    told["resolved"].append(job.key)
                elif (how := self.jobs.offer(job)) == "full":
                    return self._busy("queue_full", "the queue is full")
                else:
                    told[how].append(job.key)
        except OSError as why:
            return self._busy("not_stored", f"the queue cannot be written ({why.strerror})")
        return Reply(200, json.dumps(told).encode(), KINDS["json"])

    def _busy(self, reason: str, text: str) -> Reply:
        """Alertmanager sends again what is answered with 5xx; what was queued is known by then."""
        _log.warning("alerts not taken: %s", text)
        self.page.drop("alerts", reason)
        return Reply(503, f"{text}\n".encode(), headers={"Retry-After": "30"})

    def _working(self) -> None:
        pause = self.options.first_pause_s
        while not self._end.is_set():
            if job := self.jobs.take():
                try:
                    self._deal(job)
                    pause = self.options.first_pause_s
                except OSError:  # the disk is full: the job is still in the queue, and is run again
                    _log.exception("the queue cannot be written")
                    self.jobs.release(job)
                    self._end.wait(pause)
                    pause = min(2 * pause, LONGEST_S)
                continue
            with self.jobs.changed:
                self.jobs.changed.wait(0.5)  # a job put back has its time

    def _deal(self, job: Job) -> None:
        last = self.jobs.last_run(job.fingerprint)
        age = time.time() - last.ended_s if last else -1.0
        if last and 0 <= age < self.options.cooldown_s:  # below 0: the clock was put back since
            note = f"the same alert was looked into {age:.0f} s before: {last.key}"
            ended = self.jobs.finish(job, "cooldown", note=note, run=last.run, verdict=last.verdict)
        else:
            try:
                ended = self._run(job)
            except RetryError as why:
                if job.tries + 1 < self.options.tries:
                    self.jobs.again(job, self.options.first_pause_s * 2**job.tries, why.what)
                    return
                note = f"given up after {job.tries + 1} tries: {why.what}"
                ended = self.jobs.finish(job, "failed", note=note)
        self.page.own.add("moex_hook_runs_total", 1, ended.state)
        _log.info("%s", log_line(ended))
        if self.publish and ended.state != "cooldown":
            self.publish(ended)

    def _run(self, job: Job) -> Job:
        try:
            result = self.runner(job, self.jobs.reports)
        except RetryError:
            raise
        except OSError as why:  # a disk that is full, a recording that just went: a try like another
            raise RetryError(f"the run failed ({why})") from why
        except MoexrayError as why:
            return self.jobs.finish(job, "failed", note=why.what)
        except Exception as why:  # noqa: BLE001  # the edge: one job must not stop the others
            _log.exception("a run failed; please report this")
            return self.jobs.finish(job, "failed", note=f"{type(why).__name__}: {why}")
        return self.jobs.finish(job, "done", run=result.run, verdict=result.verdict, claim=result.claim)

    def _listing(self) -> str:
        rows = []
        for job in self.jobs.listed():
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(job.received_s))
            has = (self.jobs.reports / f"{job.key}.html").is_file()
            verdict = html.escape(job.verdict or job.note or job.state)
            cell = f'<a href="/reports/{job.key}.html">{verdict}</a>' if has else verdict
            labels = html.escape(" ".join(f"{k}={v}" for k, v in job.labels.items()))
            ended = html.escape(job.resolved_at or "fires")
            rows.append(f"<tr><td>{when}</td><td>{labels}</td><td>{cell}</td><td>{ended}</td></tr>")
        head = "<tr><th>heard (UTC)</th><th>alert</th><th>verdict</th><th>ended</th></tr>"
        return f"<!doctype html><title>moexray hook</title><table>{head}{''.join(rows)}</table>\n"

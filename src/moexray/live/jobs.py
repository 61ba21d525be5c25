"""The queue of `moexray hook`: one job an alert, on disk before anything is promised.

Glossary: the *key* of a job is made of the alert's fingerprint and the moment it began, so that the same
alert, sent again or in another group, is one job. Nothing that an alert says names a file, but the key.

    STATE/queue/KEY.json   waits or runs       STATE/early/KEY.json   ended before it was heard of
    STATE/done/KEY.json    was dealt with      STATE/reports/KEY.*    what a run wrote
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Job", "Jobs", "State", "make_job"]

SCHEMA = "moexray.job/1"
KEPT = 1_000  # finished jobs, with their reports
LONGEST_S = 3_600.0  # that a job waits for its next try; a later moment is of a clock that was put back since
State = Literal["queued", "done", "failed", "cooldown"]
Offer = Literal["queued", "known", "full"]


@dataclass(frozen=True, slots=True)
class Job:
    """One alert to look into.

    Args:
        key: 32 hex digits.
        fingerprint: Of the alert's labels, as Alertmanager made it.
        starts_at: When it began, as written.
        labels: Those that are shown and passed on; values of a plain alphabet only.
        trace_id: 32 hex digits; the same in the log, the annotation and the workflow.
        received_s: Epoch seconds.
        ended_s: Epoch seconds at which it was dealt with; 0 before.
        resolved_at: When it ended; empty while it fires.
        state: See State.
        tries: Runs begun.
        not_before_s: Epoch seconds of the next try.
        verdict: Of the diagnosis; empty if there is none.
        claim: Of its first finding.
        note: Why it failed or was not run.
        run: Name of the workflow, or of the bundle.
    """

    key: str
    fingerprint: str
    starts_at: str
    labels: dict[str, str]
    trace_id: str
    received_s: float
    resolved_at: str = ""
    state: State = "queued"
    tries: int = 0
    not_before_s: float = 0.0
    verdict: str = ""
    claim: str = ""
    note: str = ""
    run: str = ""
    ended_s: float = 0.0
    schema: str = field(default=SCHEMA)


def make_job(fingerprint: str, starts_at: str, labels: dict[str, str]) -> Job:
    """A job with its key and trace id."""
    digest = hashlib.sha256(f"{fingerprint}\n{starts_at}".encode()).hexdigest()
    return Job(digest[:32], fingerprint, starts_at, labels, digest[32:], time.time())


class Jobs:
    """The jobs of a folder; threads may share it, processes may not.

    Args:
        folder: STATE; made if need be, for this user only.
        limit: Most jobs that wait.

    Raises:
        UsageError: it cannot be made or written.
    """

    def __init__(self, folder: Path, limit: int = 100) -> None:
        self.folder, self.limit = folder, limit
        self.changed = threading.Condition()
        try:
            for name in ("queue", "done", "early", "reports"):
                (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as why:
            hint = "name another --state"
            raise UsageError(f"{folder} cannot be written ({why.strerror})", hint=hint) from why
        self._done = {job.key: job for job in self._load("done")}
        for key in self._done:  # the process ended between the two steps of `finish`
            self._path("queue", key).unlink(missing_ok=True)
        self._waiting = {job.key: job for job in self._load("queue")}
        self._running: set[str] = set()

    @property
    def reports(self) -> Path:
        """Where runs write."""
        return self.folder / "reports"

    def offer(self, job: Job) -> Offer:
        """Puts a job into the queue, on disk before this returns.

        Raises:
            OSError: it could not be written: nothing was promised.
        """
        with self.changed:
            if job.key in self._done or job.key in self._waiting:
                return "known"
            if len(self._waiting) >= self.limit:
                return "full"
            early = self._path("early", job.key)
            if early.exists():
                job = replace(job, resolved_at=early.read_text("utf-8"))
            self._write("queue", job)
            early.unlink(missing_ok=True)
            self._waiting[job.key] = job
            self.changed.notify_all()
            return "queued"

    def resolve(self, key: str, ends_at: str) -> None:
        """Notes when an alert ended, also where it was never heard of before (delivery has no order)."""
        with self.changed:
            for place, jobs in (("queue", self._waiting), ("done", self._done)):
                if job := jobs.get(key):
                    jobs[key] = replace(job, resolved_at=ends_at)
                    self._write(place, jobs[key])
                    return
            _write_durably(self._path("early", key), ends_at.encode())
            _prune(self.folder / "early", "*.json")

    def take(self) -> Job | None:
        """The oldest job whose time has come, none of an alert that is being looked into.

        It belongs to the caller until `finish`, `again` or `release`.
        """
        now = time.time()
        with self.changed:
            busy = {self._waiting[key].fingerprint for key in self._running}
            free = [
                j for j in self._waiting.values()
                if j.fingerprint not in busy and not now < j.not_before_s < now + LONGEST_S
            ]  # fmt: skip
            if not free:
                return None
            job = min(free, key=lambda j: j.received_s)
            self._running.add(job.key)
            return job

    def again(self, job: Job, wait_s: float, note: str) -> None:
        """Puts a job back for another try."""
        with self.changed:
            later = self._waiting[job.key]
            later = replace(later, tries=later.tries + 1, not_before_s=time.time() + wait_s, note=note)
            self._write("queue", later)
            self._waiting[job.key] = later
            self._running.discard(job.key)
            self.changed.notify_all()

    def release(self, job: Job) -> None:
        """Puts a job back as it is."""
        with self.changed:
            self._running.discard(job.key)

    def finish(self, job: Job, state: State, **results: str) -> Job:
        """Ends a job."""
        with self.changed:
            known = self._waiting[job.key]
            ended = replace(known, state=state, ended_s=time.time(), **results)  # type: ignore[arg-type]
            self._write("done", ended)
            self._path("queue", job.key).unlink(missing_ok=True)
            del self._waiting[job.key]
            self._running.discard(job.key)
            self._done[job.key] = ended
            while len(self._done) > KEPT:
                oldest = min(self._done.values(), key=lambda j: j.received_s)
                for file in (self._path("done", oldest.key), *self.reports.glob(f"{oldest.key}.*")):
                    file.unlink(missing_ok=True)
                del self._done[oldest.key]
            self.changed.notify_all()
            return ended

    def last_run(self, fingerprint: str) -> Job | None:
        """The last job of an alert that was run."""
        with self.changed:
            own = [j for j in self._done.values() if j.fingerprint == fingerprint and j.state == "done"]
            return max(own, key=lambda j: j.ended_s, default=None)

    def listed(self) -> list[Job]:
        """All that are known, newest first."""
        with self.changed:
            return sorted((*self._waiting.values(), *self._done.values()), key=lambda j: -j.received_s)

    def _path(self, place: str, key: str) -> Path:
        return self.folder / place / f"{key}.json"

    def _write(self, place: str, job: Job) -> None:
        _write_durably(self._path(place, job.key), json.dumps(asdict(job)).encode())

    def _load(self, place: str) -> list[Job]:
        found = []
        for file in sorted((self.folder / place).glob("*.json")):
            try:
                job = Job(**json.loads(file.read_bytes()))
            except (OSError, ValueError, TypeError, RecursionError):  # written by another release, or by hand
                job = None
            if job is None or job.key != file.stem or not _is_sound(job):
                file.rename(file.with_suffix(".bad"))
                continue
            found.append(job)
        return found


def _is_sound(job: Job) -> bool:
    """Whether all fields are of their kind."""
    kinds: dict[str, Any] = {name: type(value) for name, value in asdict(make_job("", "", {})).items()}
    kinds |= dict.fromkeys(("received_s", "ended_s", "not_before_s", "tries"), (int, float))
    right = all(isinstance(getattr(job, name), kind) for name, kind in kinds.items())
    return right and all(isinstance(text, str) for pair in job.labels.items() for text in pair)


def _write_durably(path: Path, content: bytes) -> None:
    """Beside the target first; both the file and its name are on disk when this returns."""
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _prune(folder: Path, pattern: str) -> None:
    files = sorted(folder.glob(pattern), key=lambda f: f.stat().st_mtime)
    for file in files[:-KEPT]:
        file.unlink(missing_ok=True)

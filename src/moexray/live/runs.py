"""What a job of `moexray hook` starts: a diagnosis on this machine, or an Argo Workflow; and who is told.

Nothing of an alert reaches a command line: a local run gets the path of a recording and the job's key, a
workflow gets parameters.
"""

from __future__ import annotations

import http.client
import json
import logging
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from moexray.core.errors import MoexrayError
from moexray.live.folder import MANIFEST
from moexray.live.post import post

if TYPE_CHECKING:
    from pathlib import Path

    from moexray.live.jobs import Job
    from moexray.live.post import Answer

__all__ = [
    "Argo", "Grafana", "Local", "Result", "RetryError", "Runner", "latest_bundle", "log_line", "workflow",
]  # fmt: skip

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # of a namespace or template (RFC 1123)

_log = logging.getLogger(__name__)


class RetryError(MoexrayError):
    """It may work later: the other side is away or busy."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a run gave.

    Args:
        run: Bundle or workflow.
        verdict: Empty where it is not known yet (a workflow that was only started).
        claim: Of the first finding.
    """

    run: str
    verdict: str = ""
    claim: str = ""


class Runner(Protocol):
    """Deals with one job."""

    def __call__(self, job: Job, reports: Path) -> Result:
        """Runs it.

        Raises:
            RetryError: worth another try.
            MoexrayError: not worth one.
        """


def latest_bundle(folder: Path) -> Path:
    """The newest recording below a folder (each has a manifest), or the folder itself."""
    found = [file.parent for file in (*folder.glob(MANIFEST), *folder.glob(f"*/{MANIFEST}"))]
    return max(found, key=_written, default=folder)


def _written(bundle: Path) -> float:
    """When something was last written to a recording or one of its parts."""
    times = [bundle.stat().st_mtime]
    for item in bundle.iterdir():
        try:
            times.append(item.stat().st_mtime)
        except OSError:  # the recorder has just dropped it
            continue
    return max(times)


@dataclass(frozen=True, slots=True)
class Local:
    """Runs `moexray diagnose` on the newest recording.

    Args:
        bundles: Folder of recordings, or one recording.
        timeout_s: Of one run.
    """

    bundles: Path
    timeout_s: float = 600.0

    def __call__(self, job: Job, reports: Path) -> Result:
        """Writes reports/KEY.json and reports/KEY.html."""
        if not self.bundles.exists():
            raise RetryError(f"{self.bundles} does not exist", hint="moexray record writes there")
        bundle = latest_bundle(self.bundles).resolve()
        document, page = reports / f"{job.key}.json", reports / f"{job.key}.html"
        line = [sys.executable, "-m", "moexray", "diagnose", str(bundle), "--format", "json", "--quiet",
                "--fail-on", "never", "--report", str(page), "--force"]  # fmt: skip
        part = document.with_suffix(".part")
        with part.open("wb") as out:
            try:
                done = subprocess.run(  # noqa: S603  # a fixed list; the path is the operator's
                    line, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE,
                    timeout=self.timeout_s, check=False,
                    start_new_session=True,  # Ctrl-C ends the hook, which waits for the run, not the run
                )  # fmt: skip
            except subprocess.TimeoutExpired as why:
                took = f"diagnose ran for more than {self.timeout_s:.0f} s"
                raise MoexrayError(took, where=str(bundle)) from why
        if done.returncode < 0:  # the machine or the service is being stopped, or memory ran out
            raise RetryError(f"diagnose was ended by signal {-done.returncode}", where=str(bundle))
        if done.returncode:
            told = done.stderr.decode("utf-8", "replace").strip()[-500:]
            raise MoexrayError(f"diagnose ended with {done.returncode}: {told}", where=str(bundle))
        part.replace(document)
        found = json.loads(document.read_bytes())
        first = found["findings"][0]["claim"] if found["findings"] else ""
        return Result(bundle.name, found["verdict"], first)


@dataclass(frozen=True, slots=True)
class Argo:
    """Posts a workflow made from one template that the operator named.

    Args:
        url: Of the Argo server.
        namespace: Where it runs.
        template: Name of the WorkflowTemplate; it gets the job as parameters.
        token: Sent as bearer token; empty for none.
        timeout_s: Of the request.
    """

    url: str
    namespace: str
    template: str
    token: str = ""
    timeout_s: float = 10.0

    def __call__(self, job: Job, reports: Path) -> Result:  # noqa: ARG002
        """The workflow's name is made of the job's key: a second post of it is no second run."""
        body = {"workflow": workflow(job, self.namespace, self.template)}
        to = f"{self.url}/api/v1/workflows/{self.namespace}"
        answer = _post(to, body, self.token, self.timeout_s)
        name = body["workflow"]["metadata"]["name"]
        if answer.is_taken or answer.status == http.client.CONFLICT:
            return Result(name)
        why = f"the Argo server answers {answer.status}: {answer.text[:200]}"
        raise (RetryError if answer.may_pass_later else MoexrayError)(why, where=self.url)


def workflow(job: Job, namespace: str, template: str) -> dict[str, Any]:
    """An Argo Workflow (argoproj.io/v1alpha1) from a template; the job's facts are its parameters."""
    facts = {
        "key": job.key, "fingerprint": job.fingerprint, "starts-at": job.starts_at, "trace-id": job.trace_id,
        **{f"label-{k}": v for k, v in job.labels.items()},
    }  # fmt: skip
    parameters = [{"name": name, "value": value} for name, value in facts.items()]
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {
            "name": f"moexray-{job.key}",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "moexray"},
        },
        "spec": {"workflowTemplateRef": {"name": template}, "arguments": {"parameters": parameters}},
    }


@dataclass(frozen=True, slots=True)
class Grafana:
    """Posts an annotation for each job that was dealt with.

    Args:
        url: Of Grafana.
        token: Of a service account.
        reports: Address under which the reports can be read; empty for none.
    """

    url: str
    token: str = ""
    reports: str = ""

    def __call__(self, job: Job) -> None:
        """Failures are logged: the report itself is there.

        Grafana shows the text as HTML, so nothing but plain letters may come from the alert.
        """
        told = f"{job.verdict or job.note or 'workflow ' + job.run}. {job.claim}".replace("<", "&lt;")
        link = f" {self.reports}/{job.key}.html" if self.reports and job.verdict else ""
        body = {
            "time": int(job.received_s * 1000),
            "tags": ["moexray", *(f"{k}:{v}" for k, v in job.labels.items())],
            "text": f"{told}{link} trace {job.trace_id}",
        }
        answer = _post(f"{self.url}/api/annotations", body, self.token, 10.0)
        if not answer.is_taken:
            _log.warning("no annotation: %s answers %d: %s", self.url, answer.status, answer.text[:200])


def _post(url: str, body: Any, token: str, timeout_s: float) -> Answer:
    kind = {"Content-Type": "application/json"}
    return post(url, json.dumps(body).encode(), kind, token=token, timeout_s=timeout_s)


def log_line(job: Job) -> str:
    """One line of JSON for the log, with the trace id under the name that OpenTelemetry gives it."""
    event = {"event": "moexray.hook", "time_s": round(time.time(), 3), **asdict(job)}
    return json.dumps(event, ensure_ascii=True)

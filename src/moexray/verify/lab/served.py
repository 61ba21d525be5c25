"""A real vLLM server as an engine of the lab: the same jobs as `cluster.Engine`, over HTTP.

A request is one prompt of all tokens that a request of the lab has, answered with one token; the server takes
one request at a time, so that a step is a request. Latency is the time to the first token, counted from the
moment at which the request was meant to be sent. Expert counts come from moexray's plug-in in the worker, CPU
time, moves and holes from what `beside` put there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from moexray.core.errors import UsageError
from moexray.core.redact import redact
from moexray.verify.lab.cluster import LabError, Measured
from moexray.verify.lab.model import folder_of, token
from moexray.verify.lab.work import Steps

if TYPE_CHECKING:
    from types import TracebackType

    from moexray.verify.lab.work import Job, Plan
    from moexray.verify.load import Answer

__all__ = ["PYTHON", "Served", "command", "python_of"]

PYTHON = Path(".venv-vllm/bin/python")  # of `make vllm-env`
START_S, CALL_S = 400.0, 120.0  # patience: imports and warm-up on a loaded machine; a call of the worker
TOLD = 15  # last lines of the server's log that an error shows
MODEL = "lab"


def python_of(named: Path | None) -> Path:
    """The interpreter that has vLLM: the one named, else this one, else that of `make vllm-env`.

    Raises:
        UsageError: there is none, or the one named lacks vLLM or moexray.
    """
    if named is None and importlib.util.find_spec("vllm"):
        return Path(sys.executable)
    path = (named or PYTHON).absolute()  # not resolved: by its link Python knows its environment
    hint = "make vllm-env makes ./.venv-vllm; --vllm-python PATH names another that has vllm and moexray"
    if not path.is_file():
        raise UsageError(f"no vLLM: there is no interpreter {path}", hint=hint)
    ask = "import importlib.util as u, sys; sys.exit(not (u.find_spec('vllm') and u.find_spec('moexray')))"
    if subprocess.run([path, "-c", ask], capture_output=True, check=False).returncode:  # noqa: S603  the user's
        raise UsageError(f"{path} lacks vllm or moexray", hint=hint)
    return path


def command(python: Path, model: Path, port: int) -> list[str]:
    """The server's launch line."""
    return [
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", "1024", "--max-num-batched-tokens", "1024", "--max-num-seqs", "1",
        "--no-enable-prefix-caching", "--enforce-eager", "--dtype", "bfloat16",
        "--worker-extension-cls", "moexray.verify.lab.beside.Beside",
    ]  # fmt: skip


class Served:
    """A running server; a context. It ends with this process, however that ends.

    Args:
        plan: What to run.
        python: Interpreter that has vLLM, see `python_of`.

    Raises:
        LabError: the server does not come up, or fails later; the message has the last lines of its log.
    """

    def __init__(self, plan: Plan, python: Path) -> None:
        from moexray.verify.load import Target

        self.plan, self._model = plan, folder_of(plan.model)
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="moexray-lab-")))
        (self._folder / "rings").mkdir(mode=0o700)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url, self._log = f"http://127.0.0.1:{port}", self._folder / "server.log"
        self.command = command(python, self._model, port)
        only = {"allowed_token_ids": [token("a")]}  # a whole character: half a one is streamed without text
        self._target = Target(f"{self._url}/v1/completions", MODEL, max_tokens=1, extra=only)
        self._sizes = (0, 0)

    def __enter__(self) -> Self:
        from moexray.live.drain import Drain

        log = self._stack.enter_context(self._log.open("wb"))
        env = {
            **os.environ, "MOEXRAY_ATTACH": "1", "MOEXRAY_RINGS": str(self._folder / "rings"),
            "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
            "KINETO_LOG_LEVEL": "99", "TMPDIR": str(self._folder),  # its sockets go with it
        }  # fmt: skip
        keeper = [sys.executable, "-I", str(Path(__file__).with_name("keeper.py")), *self.command]
        try:
            self._keeper = subprocess.Popen(  # noqa: S603  our own command
                keeper, env=env, cwd=self._folder, stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
            self._await_health()
            self._drain = Drain(self._folder / "rings")
            asked = {"ranks": self.plan.ranks, "memory": asdict(self.plan.memory)}
            layers, experts = self._call("lab_open", asked)
            self._sizes = layers, experts
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def flat(self) -> np.ndarray:
        """[layers, experts], neighbouring experts on a rank."""
        return np.tile(np.arange(self._sizes[1]), (self._sizes[0], 1))

    def run(self, job: Job) -> Measured:
        """Asks all requests of a job of the server.

        `wall_s` and `cpu_s` are those of the worker's forward pass, `latency_s` the time to the first token.
        """
        self._drain.poll()
        fills = [job.fill_at(i, self.plan.memory) for i in range(len(job.prompts))]
        folder = None if job.folder is None else str(job.folder.absolute())
        self._call("lab_begin", {"slots": job.slots.tolist(), "layout": job.layout, "fills": fills,
                                 "folder": folder})  # fmt: skip
        answers = self._asked(job)
        notes = self._call("lab_end")
        failed = [a.error for a in answers if a.error]
        if failed:
            raise self._failed(f"{len(failed)} of {len(answers)} requests failed: {failed[0]}")
        counts = self._counted()
        if not len(notes) == len(counts) == len(answers):
            raise self._failed(
                f"{len(answers)} requests made {len(notes)} steps, of which {len(counts)} were recorded"
            )
        steps = Steps.of([tuple(note) for note in notes], [note[0] for note in notes])
        ttft = np.array([a.ttft_s for a in answers])
        if job.folder is not None:
            self._leave(job.folder, len(answers))
        return replace(Measured.of([steps]), latency_s=ttft, counts=counts)

    def close(self) -> None:
        """Ends the server and all that it started."""
        keeper = getattr(self, "_keeper", None)
        if keeper is not None:
            keeper.stdin.close()
            keeper.wait()
        self._stack.close()

    # ---- requests

    def _asked(self, job: Job) -> list[Answer]:
        """By the clock where the job has one, else one after the other."""
        from moexray.verify.load import drive

        prompts = job.prompts.reshape(len(job.prompts), -1).tolist()
        if job.arrivals is not None:
            return drive(self._target, prompts, job.arrivals)
        answers: list[Answer] = []
        for i, prompt in enumerate(prompts):
            if job.folder is not None and i in (0, job.calm):
                self._scrape(job.folder, i)
            answers += drive(self._target, [prompt], [0.0])
        return answers

    def _counted(self) -> np.ndarray:
        """[steps, layers, experts] pairs since the last poll, from the ring in the worker."""
        from moexray.live.drain import ROUTER

        found = [batch for ring, batch in self._drain.poll() if ring.meta.sites]
        if len(found) != 1:
            raise self._failed(f"{len(found)} recorders in the server, not 1")
        records = found[0].records
        rows = records["kind"] == ROUTER
        steps, at = np.unique(records["step"][rows], return_inverse=True)
        counts = np.zeros((len(steps), *self._sizes), np.int64)
        np.add.at(counts, (at, records["site"][rows]), found[0].counts[rows].astype(np.int64))
        return counts

    # ---- the server

    def _await_health(self) -> None:
        end = time.monotonic() + START_S
        while True:
            if self._keeper.poll() is not None:
                raise self._failed("the server ended while it started")
            try:
                self._get("/health")
            except OSError:
                if time.monotonic() > end:
                    raise self._failed(f"the server did not come up within {START_S:g} s") from None
                time.sleep(0.3)
            else:
                return

    def _call(self, method: str, asked: dict[str, Any] | None = None) -> list[Any]:
        """Calls a method of `beside.Beside` in the worker."""
        body = {"method": method, "args": [] if asked is None else [json.dumps(asked)]}
        request = urllib.request.Request(  # noqa: S310  our own server
            f"{self._url}/collective_rpc", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=CALL_S) as answer:  # noqa: S310
                found: list[Any] = json.load(answer)["results"][0]
        except OSError as why:
            raise self._failed(f"{method} in the worker failed: {why}") from why
        return found

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self._url}{path}", timeout=5) as answer:  # noqa: S310  our own server
            text: bytes = answer.read()
        return text.decode("utf-8", "replace")

    def _scrape(self, folder: Path, number: int) -> None:
        """Its metrics page, each sample with the time."""
        stamp = f" {time.time_ns() // 1_000_000}"
        lines = self._get("/metrics").splitlines()
        stamped = (line if line.startswith("#") or not line.strip() else line + stamp for line in lines)
        (folder / "metrics").mkdir(parents=True, exist_ok=True)
        (folder / "metrics" / f"scrape-{number:05d}.prom").write_text("\n".join(stamped) + "\n")

    def _leave(self, folder: Path, requests: int) -> None:
        """What the server itself leaves behind."""
        self._scrape(folder, requests)
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "logs" / "launch.txt").write_text(redact(shlex.join(self.command)) + "\n")
        (folder / "logs" / "server.log").write_bytes(self._log.read_bytes())

    def _failed(self, what: str) -> LabError:
        lines = self._log.read_text("utf-8", "replace").splitlines()[-TOLD:]
        return LabError("\n".join((what, "the last lines of its log:", *(f"  {line}" for line in lines))),
                        where=shlex.join(self.command))  # fmt: skip

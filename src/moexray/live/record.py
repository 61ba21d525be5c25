"""What `moexray record` does: drains the rings of an engine and looks around it, once every TICK_S.

Sources, each on its own clock: rings (routing and times of steps), /metrics pages, nvidia-smi, the host's
memory. The engine is never waited for and never asked: if this process dies, it goes on as before.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import shlex
import shutil
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray import __version__
from moexray.core.errors import MoexrayError
from moexray.core.redact import redact
from moexray.live.drain import ROUTER, STEP, Drain

if TYPE_CHECKING:
    from moexray.live.bundle import Bundle
    from moexray.live.drain import Batch, RingReader

__all__ = ["TICK_S", "Recorder", "Wanted"]

TICK_S = 0.5  # of what is recorded a kill of the recorder loses at most this
SCRAPE_S, HOST_S, MANIFEST_S = 5.0, 10.0, 5.0
PAGE_BYTES = 16 << 20  # of a metrics page; vLLM's has 50 kB
TIMEOUT_S = 2.0
SMI_FIELDS = (
    "timestamp,index,uuid,memory.total,memory.used,memory.free,memory.reserved,utilization.gpu,"
    "utilization.memory,clocks.sm,clocks.max.sm,clocks_event_reasons.active,power.draw,power.limit,"
    "temperature.gpu"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is recorded.

    Args:
        rings: Folder of the rings; None: none are read.
        url: Of a metrics page, or of its server.
        command: That is run, for the manifest.
    """

    rings: Path | None = None
    url: str = ""
    command: tuple[str, ...] = ()


class Recorder:
    """Fills a bundle; `tick` every TICK_S, then `close`.

    Attributes:
        missed: What was not seen: records overwritten unread, steps that an engine held back when it was
            killed, scrapes that failed, calls that the engine's side could not record, looks at the folder
            of the rings that failed.
    """

    def __init__(self, bundle: Bundle, wanted: Wanted) -> None:
        self.bundle, self._wanted = bundle, wanted
        self.missed = {"records": 0, "steps": 0, "scrapes": 0, "failures": 0, "looks": 0}
        self._drain = None if wanted.rings is None else Drain(wanted.rings, remove=bool(wanted.command))
        self._began = time.time()
        self._due = {"scrape": 0.0, "host": 0.0, "manifest": 0.0}
        self._failures: dict[Path, int] = {}
        self._own: set[Path] = set()
        self._engines: dict[str, dict[str, Any]] = {}
        self._scrapes = self._steps = 0
        self._fetch: _Fetch | None = None
        self._smi = _smi()

    def tick(self) -> None:
        """Takes what there is; never raises for what the disk, the engine or the network does."""
        now = time.monotonic()
        self._rings()
        self._page()
        if self._smi is not None:
            self._smi.read(self.bundle)
        for name, every, call in (
            ("scrape", SCRAPE_S, self._scrape),
            ("host", HOST_S, self._host),
            ("manifest", MANIFEST_S, self._adopt),
        ):
            if now >= self._due[name]:
                self._due[name] = now + every
                call()

    def close(self, ended: str) -> dict[str, Any]:
        """Takes the rest, and writes the manifest: what is in the bundle and what is not.

        Args:
            ended: How the recording ended, for the manifest.
        """
        self._rings()
        self._scrape()
        self._page(wait=True)
        if self._smi is not None:
            self._smi.read(self.bundle)
            self._smi.stop()
        self._adopt(ended)
        return self._facts(ended)

    @property
    def found(self) -> bool:
        """Whether anything was recorded of an engine or its page."""
        return bool(self._steps or self._scrapes or any(e["steps"] for e in self._engines.values()))

    def _rings(self) -> None:
        if self._drain is None:
            return
        try:
            given = self._drain.poll()
        except (MoexrayError, OSError):  # the folder is gone, or not ours any more; CMD runs on
            self.missed["looks"] += 1
            return
        for ring, batch in given:
            self.missed["records"] += batch.dropped
            if ring.path not in self._drain.readers:  # its writer is gone, this was the rest
                self.missed["steps"] += ring.lost()
            self._failures[ring.path] = ring.live()["failures"]
            rank = 0 if ring.meta.rank is None else ring.meta.rank
            name = f"rank{rank}_{ring.meta.pid}"
            self._engines[str(ring.path.name)] = {
                "engine": ring.meta.engine, "version": ring.meta.version, "model": ring.meta.model,
                "rank": rank, "pid": ring.meta.pid, "role": ring.meta.role, "device": ring.meta.device,
                "steps": ring.live()["steps"],
            }  # fmt: skip
            if not len(batch.records):
                continue
            stem = "steps" if ring.meta.role == "model" else "engine_steps"
            rows = batch.records[batch.records["kind"] == STEP]
            if len(rows):
                ended, took = ring.meta.wall(rows["t1_ns"]) / 1e9, (rows["t1_ns"] - rows["t0_ns"]) / 1e6
                text = "".join(f"{t:.6f},{ms:.3f}\n" for t, ms in zip(ended, took, strict=True))
                self._steps += len(rows)
                self.bundle.append(f"latency/{stem}_{name}.csv", text, header="t_s,step_ms\n")
            if ring.meta.sites:
                text = "".join(map(_line, _windows(ring, batch)))
                self.bundle.append(f"routing/expert_counts_{name}.jsonl", text)
        self.missed["failures"] = sum(self._failures.values())

    def _scrape(self) -> None:
        """Starts to fetch the page; what comes is written by a later tick."""
        if self._wanted.url and self._fetch is None:
            self._fetch = _Fetch(self._wanted.url)

    def _page(self, *, wait: bool = False) -> None:
        fetch = self._fetch
        if fetch is None or (fetch.thread.is_alive() and not wait):
            return
        fetch.thread.join(TIMEOUT_S + 1)
        self._fetch = None
        if not fetch.page:
            self.missed["scrapes"] += 1
            return
        self._scrapes += 1
        stamp = f" {fetch.at_s * 1000:.0f}"
        lines = fetch.page.decode("utf-8", "replace").splitlines()
        stamped = (s if not s.strip() or s.startswith("#") or _has_stamp(s) else s + stamp for s in lines)
        text = "\n".join(stamped) + "\n"
        self.bundle.file("metrics", f"metrics/scrape-{self._scrapes:05d}.prom", text.encode())

    def _host(self) -> None:
        with contextlib.suppress(OSError):
            self.bundle.file("gpu", "gpu/meminfo.txt", Path("/proc/meminfo").read_bytes())

    def _adopt(self, ended: str = "") -> None:
        for folder in ("memory", "traces"):
            for path in (self.bundle.folder / folder).glob("*"):
                if path.suffix != ".new" and path not in self._own:
                    self._own.add(path)
                    self.bundle.adopt(folder, path)
        self.bundle.manifest(self._facts(ended))

    def _facts(self, ended: str) -> dict[str, Any]:
        engines = list(self._engines.values())
        return {
            "made_by": f"moexray record {__version__}", "host": platform.node(),
            "command": redact(shlex.join(self._wanted.command)), "url": redact(self._wanted.url),
            "began_s": self._began, "seconds": round(time.time() - self._began, 3), "ended": ended,
            "ranks": len({e["rank"] for e in engines}), "engines": engines, "steps": self._steps,
            "scrapes": self._scrapes, "missed": dict(self.missed),
            "clocks": {"latency": "epoch", "routing": "epoch", "metrics": "epoch", "gpu": "local, no zone"},
        }  # fmt: skip


def _windows(ring: RingReader, batch: Batch) -> list[dict[str, Any]]:
    """A batch as one row per site: sums over its steps."""
    records, found = batch.records, []
    for number, site in enumerate(ring.meta.sites):
        rows = (records["site"] == number) & (records["kind"] == ROUTER)
        if not rows.any():
            continue
        mine = records[rows]
        took = mine["t1_ns"] - mine["t0_ns"]
        found.append({
            "step": int(mine["step"][0]), "layer": site.layer if site.layer >= 0 else number,
            "expert_counts": batch.counts[rows][:, : site.experts].sum(axis=0, dtype=np.int64).tolist(),
            "steps": len(mine), "t_s": round(float(ring.meta.wall(mine["t1_ns"][-1:])[0]) / 1e9, 6),
            "rows": int(mine["rows"].sum()), "block_ms_mean": round(float(took.mean()) / 1e6, 4),
            "block_ms_max": round(float(took.max()) / 1e6, 4),
        })  # fmt: skip
    return found


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"


def _has_stamp(line: str) -> bool:
    """Whether a sample carries its own time stamp, or an exemplar."""
    return len(line.rpartition("}")[2].split()) > (1 if "}" in line else 2) or " # " in line


class _Fetch:
    """A metrics page on its way, in a thread of its own: a slow server must not hold up the rings."""

    def __init__(self, url: str) -> None:
        self._url = url if "/metrics" in url else f"{url.rstrip('/')}/metrics"
        self.page, self.at_s = b"", 0.0
        self.thread = threading.Thread(target=self._run, name="moexray-scrape", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            with urllib.request.urlopen(self._url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the command checks
                page = answer.read(PAGE_BYTES)
            self.page, self.at_s = page, time.time()


class _Smi:
    """nvidia-smi, told once to go on by itself; its lines are read as they come."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._rest, self._header = process, b"", ""

    def read(self, bundle: Bundle) -> None:
        out = self._process.stdout
        data = b"" if out is None else out.read()  # not blocking
        whole, cut, self._rest = (self._rest + (data or b"")).rpartition(b"\n")
        text = (whole + cut).decode("utf-8", "replace")
        if not self._header and text:
            self._header, _, text = text.partition("\n")
            self._header += "\n"
        if text:
            bundle.append("gpu/nvidia_smi.csv", text, header=self._header)

    def stop(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)


def _smi() -> _Smi | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        command = [tool, f"--query-gpu={SMI_FIELDS}", "--format=csv", "-lms", "1000"]
        process = subprocess.Popen(  # noqa: S603 - the driver's tool, fixed arguments
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    if process.stdout is not None:
        os.set_blocking(process.stdout.fileno(), False)
    return _Smi(process)

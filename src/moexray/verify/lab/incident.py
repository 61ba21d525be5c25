"""An incident from its making to the proof of its cure: capture, diagnosis, remedies, interleaved A/B."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import UsageError
from moexray.verify.lab.bundle import write_rest
from moexray.verify.lab.cluster import Engine, LabError
from moexray.verify.lab.pressure import PressureSpec
from moexray.verify.lab.served import Served, python_of
from moexray.verify.lab.traffic import Traffic, fitted, stale
from moexray.verify.lab.trial import Arm, compare
from moexray.verify.lab.truth import LATE_RANK, judge, truth_of
from moexray.verify.lab.work import Job, Late, Plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from moexray.verify.lab.cluster import Measured

__all__ = ["ENGINES", "INCIDENTS", "SCHEMA", "Setup", "run"]

SCHEMA = "moexray.lab/1"
INCIDENTS, ENGINES, RANKS = ("frag", "skew", "both", "late"), ("hf", "ep", "vllm"), 2
CALM, FAULTY = 24, 72  # recorded steps before and after the onset
PROFILED = 24  # requests of each kind that tell what the experts get
MEMORY_FAULTS = ("mem.fragmentation", "mem.alloc_stall")
ROUTING_FAULTS = ("ep.skew", "ep.drift")
LATE = Late(LATE_RANK, 0.1, 8)  # some three steps long, rare enough that the engine keeps up
NOTE = (
    "The arena and the cache that fills it are injected beside the engine; the work buffers in it are those "
    "that the experts compute in. Model, routing, exchange and moves are real."
)
NOTE_VLLM = (
    "The arena, the cache that fills it and the work buffers in it are injected beside the engine, in the "
    "worker of a real vLLM server: it is not vLLM's own allocator. vLLM on CPUs has no expert "
    "parallelism: the ranks are those of the placement that the arena is given, the rows on them come "
    "from the real routing. Server, model, routing, requests and moves are real. p50_s and p99_s are "
    "times to the first token, CPU time is that of the worker's forward pass."
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setup:
    """What to run.

    Args:
        incident: "frag", "skew", "both"; "late" for the engine "ep".
        engine: "hf", "ep" or "vllm".
        seed: Of everything that is drawn.
        model: See `model.load`.
        requests: Measured per arm; P99 wants 1,000.
        memory: Of each rank.
        vllm_python: Interpreter that has vLLM, for "vllm"; see `served.python_of`.
    """

    incident: str = "both"
    engine: str = "ep"
    seed: int = 0
    model: str = "skewed"
    requests: int = 1_000
    memory: PressureSpec = PressureSpec()  # noqa: RUF009  frozen
    vllm_python: Path | None = None

    def __post_init__(self) -> None:
        for name, known in (("incident", INCIDENTS), ("engine", ENGINES)):
            if getattr(self, name) not in known:
                raise UsageError(f"no {name} {getattr(self, name)!r}", hint=f"one of {', '.join(known)}")
        if self.incident == "late" and self.engine != "ep":
            raise UsageError("a late peer needs a process for each rank", hint="--engine ep")


def run(setup: Setup, folder: Path, say: Callable[[str], None] = logger.info) -> dict[str, Any]:
    """Makes the incident, has it diagnosed, repairs it and measures both sides.

    Args:
        setup: What to run.
        folder: Gets `artefacts/` (all that the diagnosis sees), `truth.json`, `report.html`, `lab.json`.
        say: Gets a line per stage.

    Returns:
        The document `moexray.lab/1`.

    Raises:
        LabError: the engine or the diagnosis failed.
        UsageError: torch or transformers is not installed, or vLLM.
    """
    plan = Plan(setup.model, setup.engine, RANKS, replace(setup.memory, seed=setup.seed))
    with Served(plan, python_of(setup.vllm_python)) if setup.engine == "vllm" else Engine(plan) as engine:
        say(f"{setup.engine} is up with the model {setup.model!r}")
        scene = _scene(setup, engine)
        artefacts = folder / "artefacts"
        recorded = engine.run(scene.recorded(artefacts))
        write_rest(artefacts, recorded, scene.slots, RANKS)
        truth = truth_of(setup.incident, setup.engine, scene.traffic, recorded, CALM)
        _put(folder / "truth.json", truth)
        say(f"{len(recorded)} steps recorded; diagnosing")
        diagnosis = _diagnosed(artefacts, folder / "report.html")
        said = ", ".join(dict.fromkeys(f["id"] for f in diagnosis["findings"] if f["severity"] != "info"))
        say(f"diagnosed: {said or 'nothing'}; measuring both arms")
        arms = scene.arms(diagnosis, recorded)
        outcomes = compare(engine, arms, scene.prompts, setup.requests, setup.seed)
    document = {
        "schema": SCHEMA, "seed": setup.seed, "engine": setup.engine, "incident": setup.incident,
        "model": setup.model, **outcomes, "remedies": list(arms[1].says),
        "note": NOTE_VLLM if setup.engine == "vllm" else NOTE,
        "diagnosis": diagnosis, "truth": truth, **judge(diagnosis, truth),
    }  # fmt: skip
    _put(folder / "lab.json", document)
    return document


@dataclass(frozen=True, slots=True)
class _Scene:
    """What is asked, and where experts lie, in the incident and before.

    Args:
        setup: What to run.
        traffic: Its prompts.
        slots: The placement that the incident finds.
    """

    setup: Setup
    traffic: Traffic
    slots: np.ndarray

    @property
    def pressed(self) -> float:
        """Share of memory that keys and values take in the incident."""
        memory = self.setup.memory
        return memory.fill if self.setup.incident in ("frag", "both") else memory.calm

    @property
    def late(self) -> Late | None:
        """Who comes late in the incident."""
        return LATE if self.setup.incident == "late" else None

    def prompts(self, rng: np.random.Generator, requests: int) -> np.ndarray:
        """Requests of the incident."""
        floods = self.setup.incident in ("skew", "both")
        return (self.traffic.flood if floods else self.traffic.usual)(rng, requests)

    def recorded(self, artefacts: Path) -> Job:
        """Usual steps, then those of the incident."""
        rng = np.random.default_rng([self.setup.seed, 1])
        prompts = np.concatenate([self.traffic.usual(rng, CALM), self.prompts(rng, FAULTY)])
        return Job(prompts, self.slots, "shared", self.pressed, calm=CALM, folder=artefacts, late=self.late)

    def arms(self, diagnosis: dict[str, Any], recorded: Measured) -> tuple[Arm, Arm]:
        """The incident, and what remains of it after the remedies for what was diagnosed."""
        told = [f for f in diagnosis["findings"] if f["severity"] != "info"]
        ids = {f["id"] for f in told}
        says, layout, slots, late = [], "shared", self.slots, self.late
        if ids.intersection(MEMORY_FAULTS):
            layout = "split"
            says.append(
                "keys and values in fixed pages (runtime.arena.Pages), buffers in the rest of the arena"
            )
        if ids.intersection(ROUTING_FAULTS):
            slots = fitted(recorded.counts[CALM:].sum(axis=0), RANKS)
            says.append("experts placed anew for the loads of the incident (algorithms.placement)")
        if late and any(f["id"] == "comm.straggler_wait" and f["subject"]["rank"] == late.rank for f in told):
            says.append(f"rank {late.rank} no longer comes late (by hand, where the diagnosis said to look)")
            late = None
        before = Arm("shared", self.slots, self.pressed, (), self.late)
        return before, Arm(layout, slots, self.pressed, tuple(says), late)


def _scene(setup: Setup, engine: Engine | Served) -> _Scene:
    """Profiles both kinds of traffic and lays the experts out as the incident wants them."""
    traffic = Traffic.of(setup.seed)
    rng = np.random.default_rng([setup.seed, 0])
    flat = engine.flat
    usual, hot = (
        engine.run(Job(make(rng, PROFILED), flat, "split", setup.memory.calm)).counts.sum(axis=0)
        for make in (traffic.usual, traffic.flood)
    )
    slots = stale(usual, hot) if setup.incident in ("skew", "both") else fitted(usual, RANKS)
    return _Scene(setup, traffic, slots)


def _diagnosed(artefacts: Path, report: Path) -> dict[str, Any]:
    """The command as a user gives it: it sees the artefacts alone."""
    command = [sys.executable, "-m", "moexray", "diagnose", str(artefacts), "--format", "json", "--quiet",
               "--report", str(report), "--force"]  # fmt: skip
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own command
    if done.returncode not in (0, 1):
        why = done.stderr.strip()[-500:] or done.stdout.strip()[-500:]
        raise LabError(f"the diagnosis failed: {why}", where=str(artefacts), hint="run it by hand")
    document: dict[str, Any] = json.loads(done.stdout)
    logger.info("diagnosed within %.1f s", time.monotonic() - begin)
    return document


def _put(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")

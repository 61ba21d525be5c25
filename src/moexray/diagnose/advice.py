"""advice.*: whether our own medicine is safe here, read from launch lines, environments and logs."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from moexray.algorithms.conf import VARIABLES
from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.pattern import lazy
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["Launch", "expandable_check", "expandable_segments", "launches"]

EXPANDABLE = lazy(r"expandable_segments\s*:\s*true\b", re.IGNORECASE)
ON = lazy(r"true|1|yes|on", re.IGNORECASE)
ID = "advice.expandable_segments_unsafe"


@dataclass(frozen=True, slots=True)
class Launch:
    """One server as far as its command, environment and echoed configuration tell.

    Args:
        engine: vllm, sglang, tensorrt_llm, torch; None if unknown.
        settings: Canonical option or variable -> value as written.
        rows: The rows it was made of.
        failed: Log rows in which custom all-reduce or legacy CUDA IPC failed.
        reduce_off: The engine's log says that custom all-reduce is not used.
    """

    engine: str | None
    settings: Mapping[str, str]
    rows: tuple[Row, ...]
    failed: tuple[Row, ...] = ()
    reduce_off: bool = False
    folder: str = ""
    served: bool = field(default=False)

    @property
    def expandable(self) -> bool | None:
        """Whether expandable segments are on; None if no allocator setting was seen."""
        value = next((self.settings[c] for c in VARIABLES if c in self.settings), None)
        return None if value is None else bool(EXPANDABLE.search(value))

    @property
    def tensor_parallel(self) -> int | None:
        """Tensor parallel size; None if it was not given."""
        value = self.settings.get("tensor_parallel_size", "")
        return int(value) if value.isdigit() else None

    def on(self, key: str) -> bool:
        """Whether a flag is set to a word that means yes."""
        return bool(ON.fullmatch(self.settings.get(key, "")))

    @property
    def clashes(self) -> tuple[str, ...]:
        """Users of memory that expandable segments cannot serve, in words."""
        found = []
        size = self.tensor_parallel
        if size is not None and size > 1 and not self.on("disable_custom_all_reduce") and not self.reduce_off:
            found.append(f"custom all-reduce (tensor parallel size {size}, not disabled)")
        if self.on("enable_sleep_mode"):
            found.append("sleep mode")
        return tuple(found)


def launches(run: Run) -> list[Launch]:
    """The servers of a run: one per command; what a log echoes completes the only command of its folder."""
    commands: dict[tuple[str, str], list[Row]] = {}
    echoes: dict[str, list[Row]] = {}
    exports: dict[str, list[Row]] = {}
    for row in run.rows("launch"):
        folder = posixpath.dirname(row["source"])
        if row["origin"] == "command":
            commands.setdefault((row["source"], row["where"]), []).append(row)
        elif row["origin"] == "environment":
            exports.setdefault(row["source"], []).append(row)
        else:
            echoes.setdefault(folder, []).append(row)
    logs: dict[str, list[Row]] = {}
    for row in run.rows("log"):
        if row["kind"] == "mem.custom_all_reduce":
            logs.setdefault(posixpath.dirname(row["source"]), []).append(row)
    places = {posixpath.dirname(s) for s in exports} | set(echoes) | set(logs)
    everywhere = len(commands) == 1  # one server only: whatever was read is about it
    out = []
    for (source, where), rows in commands.items():
        folder = posixpath.dirname(source)
        alone = sum(posixpath.dirname(s) == folder for s, _ in commands) == 1
        near = places if everywhere else {folder}
        inline = [r for r in exports.get(source, []) if r["where"] == where]
        shared = [r for r in exports.get(source, []) if (source, r["where"]) not in commands]
        if alone:
            shared = [r for s, rs in exports.items() if posixpath.dirname(s) in near for r in rs]
        echoed = [r for f in sorted(near) for r in echoes.get(f, [])] if alone else []
        log = [r for f in sorted(near) for r in logs.get(f, [])]
        out.append(_launch([*rows, *inline, *shared, *echoed], log, folder))
    taken = places if everywhere else {posixpath.dirname(s) for s, _ in commands}
    for folder in sorted(places - taken):
        env = [r for s, rs in exports.items() if posixpath.dirname(s) == folder for r in rs]
        out.append(_launch([*env, *echoes.get(folder, [])], logs.get(folder, []), folder))
    return out


def _launch(rows: list[Row], log: list[Row], folder: str) -> Launch:
    settings: dict[str, str] = {}
    for row in rows:
        settings.setdefault(row["key"], row["value"] or "")
    engine = next((r["engine"] for r in rows if r["engine"]), None)
    failed = tuple(r for r in log if (r["fields"] or {}).get("state") == "failed")
    off = any((r["fields"] or {}).get("state") == "off" for r in log)
    return Launch(engine, settings, tuple(rows), failed, off, folder)


def expandable_check(run: Run, source: str) -> tuple[str, str]:
    """Whether expandable segments may be proposed for the server whose record stands in `source`.

    Returns:
        (state, words): "clear", "blocked", "on" (already set) or "unknown", and what was looked at.
    """
    folder = posixpath.dirname(source)
    found = launches(run)
    near = [x for x in found if x.folder == folder] or found
    clash = next((c for x in near for c in x.clashes), None)
    if clash:
        return "blocked", clash
    if any(x.expandable for x in near):
        return "on", "expandable segments are on already"
    if any(x.tensor_parallel is not None or x.engine for x in near):
        return "clear", "the launch settings show neither of them"
    return "unknown", "check all three first, no launch settings were given"


def expandable_segments(run: Run, _limits: Limits) -> list[Finding]:
    """advice.expandable_segments_unsafe: the setting together with a feature that it breaks."""
    out: list[Finding] = []
    for launch in launches(run):
        if launch.expandable and (launch.clashes or launch.failed):
            out.append(_unsafe(launch))
        elif launch.failed and launch.expandable is None:
            out.append(_cannot_tell(launch))
    if len(out) > 1:
        certain = [f for f in out if f.severity == "error"] or out
        best = max(certain, key=lambda f: f.confidence)
        evidence = tuple(e for f in certain for e in f.evidence)[:12]
        return [replace(best, evidence=evidence)]
    return out


def _unsafe(launch: Launch) -> Finding:
    env = next(c for c in VARIABLES if c in launch.settings)
    clash = " and ".join(launch.clashes) or "custom all-reduce or another user of legacy CUDA IPC"
    text = f"The allocator uses expandable segments together with {clash}; these do not work together."
    if launch.failed:
        text += " The log confirms it: the failure is in that component."
    text += (
        " Memory of expandable segments cannot be exported through legacy CUDA IPC."
        if launch.failed or "all-reduce" in clash
        else " Sleep mode needs an allocator of its own."
    )
    options = [remedy("drop-expandable-segments", env=env)]
    if "all-reduce" in clash or launch.failed:
        options.append(remedy("disable-custom-all-reduce"))
    if "sleep" in clash:
        options.append(remedy("no-sleep-mode"))
    return Finding(
        id=ID,
        severity="error",
        confidence=0.95 if launch.failed else 0.85,
        claim=text,
        evidence=(*_lines(launch), *_failures(launch)),
        remedies=tuple(options),
    )


def _cannot_tell(launch: Launch) -> Finding:
    return Finding(
        id=ID,
        severity="info",
        confidence=0.4,
        claim="Custom all-reduce (legacy CUDA IPC) failed; expandable segments would explain that, but the "
        "allocator setting is not known.",
        evidence=_failures(launch),
        remedies=(remedy("disable-custom-all-reduce"),),
        settle_with=("the launch line with PYTORCH_ALLOC_CONF / PYTORCH_CUDA_ALLOC_CONF",),
    )


def _lines(launch: Launch) -> tuple[Evidence, ...]:
    shown: dict[tuple[str, str], Evidence] = {}
    for row in launch.rows:
        others = ("tensor_parallel_size", "enable_sleep_mode", "disable_custom_all_reduce")
        if row["key"] in VARIABLES + others:
            shown.setdefault(
                (row["source"], row["where"]), Evidence(row["source"], row["where"], row["text"])
            )
    values = {k: v for k, v in launch.settings.items() if k in ("tensor_parallel_size", "data_parallel_size")}
    first = next(iter(shown.values()))
    return (
        (*shown.values(), Evidence(first.source, first.where, pairs(values)))
        if values
        else tuple(shown.values())
    )


def _failures(launch: Launch) -> tuple[Evidence, ...]:
    return tuple(Evidence(r["source"], r["where"], r["text"]) for r in launch.failed[:3])

"""`nvidia-smi -q`, whole or with -d MEMORY, CLOCK, PERFORMANCE, POWER, PIDS: `key : value` lines.

Sections are told by their titles and, where a paste has kept it, by indentation: a MIG device has a
block of memory of its own, and blocks other than framebuffer memory (BAR1, confidential compute) are
kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.gpu_samples import Sample, Samples, fault_of, size, when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]


START = lazy(r"=+NVSMI LOG=+")
GPU = lazy(r"GPU ((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*(?::\s*(.*))?$")
PAIR = lazy(r"(\s*)(\S.*?)\s*:\s+(\S.*?)\s*$")
TITLE = lazy(r"(\s*)([A-Z][A-Za-z0-9 /().-]*?)\s*:?\s*$")
# (section, key) in lower case -> column of table gpu and factor
NUMBERS: dict[tuple[str, str], tuple[str, float]] = {
    ("fb memory usage", "total"): ("total_bytes", 1), ("fb memory usage", "reserved"): ("reserved_bytes", 1),
    ("fb memory usage", "used"): ("used_bytes", 1), ("fb memory usage", "free"): ("free_bytes", 1),
    ("utilization", "gpu"): ("util_ratio", 0.01), ("utilization", "memory"): ("mem_util_ratio", 0.01),
    ("clocks", "sm"): ("sm_mhz", 1), ("max clocks", "sm"): ("sm_max_mhz", 1),
    ("temperature", "gpu current temp"): ("temp_c", 1),
    ("power readings", "power draw"): ("power_w", 1), ("power readings", "power limit"): ("power_limit_w", 1),
    ("gpu power readings", "power draw"): ("power_w", 1),
    ("gpu power readings", "instantaneous power draw"): ("power_w", 1),
    ("gpu power readings", "average power draw"): ("power_w", 1),
    ("gpu power readings", "current power limit"): ("power_limit_w", 1),
}  # fmt: skip
REASONS = ("clocks throttle reasons", "clocks event reasons")
PROCESS = frozenset({"process id", "gpu instance id", "type", "name", "used gpu memory"})
ENDS_MIG = frozenset({"accounting mode", "driver model"})


@dataclass(slots=True)
class _State:
    samples: Samples
    t_s: float | None = None
    sample: Sample | None = None
    section: str = ""
    mig_indent: int | None = None
    instance: dict[str, int] = field(default_factory=dict)
    process: dict[str, str] = field(default_factory=dict)
    order: int = 0
    attached: int | None = None
    pending: list[Sample] = field(default_factory=list)


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds a sample for each GPU block, and its MIG instances and processes."""
    state = _State(Samples("q"))
    live = False
    for line in lines:
        text = line.text
        if START.search(text):
            _end_log(state, out)
            live = True
            continue
        stripped = text.strip()
        if m := GPU.match(stripped):
            _end_gpu(state, out)
            if m[2] and not fault_of(m[2]):
                continue
            live = True
            state.sample = Sample(m[1], None, line.number)
            state.section, state.mig_indent = "", None
            if m[2]:
                state.sample.note("device", fault_of(m[2]))
            continue
        if live and stripped:
            _line(text, line.number, state, out)
    _end_log(state, out)
    state.samples.flush(out, "")


def _line(text: str, number: int, state: _State, out: Reading) -> None:
    if m := PAIR.match(text):
        _pair(len(m[1]), m[2].lower(), m[3], number, state, out)
    elif m := TITLE.match(text):
        _title(len(m[1]), m[2].lower(), state, out)


def _title(indent: int, title: str, state: _State, out: Reading) -> None:
    _end_process(state, out)
    if title.startswith("mig device") and title != "mig devices":
        _end_instance(state, out)
        state.mig_indent = indent
    elif state.mig_indent is not None and indent and indent <= state.mig_indent:
        _end_instance(state, out)
        state.mig_indent = None
    state.section = title


def _pair(indent: int, key: str, value: str, number: int, state: _State, out: Reading) -> None:
    sample = state.sample
    if sample is None:
        if key == "timestamp":
            state.t_s = when(value)
        elif key == "driver version":
            state.samples.driver = value
        elif key == "attached gpus" and value.isdigit():
            state.attached = int(value)
        return
    if key in ENDS_MIG or (state.mig_indent is not None and indent and indent <= state.mig_indent):
        _end_instance(state, out)
        state.mig_indent = None
    if state.mig_indent is not None:
        _instance(key, value, number, state)
        return
    if key == "product name":
        state.samples.names[sample.key] = value
    elif state.section == "mig mode" and key == "current" and value in ("Enabled", "Disabled"):
        state.samples.mig[sample.key] = value == "Enabled"
    elif state.section in REASONS:
        sample.flag(_reason(key), value)
        if (fault := fault_of(value)) and fault in ("lost", "error"):
            sample.note("reason", fault)
    elif key in PROCESS or state.section == "processes":
        if key == "process id" and "process id" in state.process:
            _end_process(state, out)
        state.process |= {key: value, "line": str(number)}
    else:
        _field(sample, state.section, key, value)


def _field(sample: Sample, section: str, key: str, value: str) -> None:
    """A number of the card, or what stands in its place."""
    if found := NUMBERS.get((section, key)):
        if found[0] not in sample.numbers:
            sample.put(found[0], value, found[1])
    elif fault_of(value) in ("lost", "error"):
        sample.note(key.replace(" ", "_"), fault_of(value))


def _reason(key: str) -> str:
    key = "gpu_idle" if key == "idle" else key
    return key.replace(" ", "_")


def _instance(key: str, value: str, number: int, state: _State) -> None:
    names = {"index": "index", "gpu instance id": "instance", "compute instance id": "compute"}
    if key in names and value.isdigit():
        state.instance[names[key]] = int(value)
        state.instance["line"] = number
    elif (
        state.section == "fb memory usage" and key in ("total", "used") and (found := size(value)) is not None
    ):
        state.instance[f"{key}_bytes"] = int(found)


def _end_instance(state: _State, out: Reading) -> None:
    if "total_bytes" in state.instance and state.sample is not None:
        line = state.instance.pop("line", 0)
        out.add("mig", where=f"line {line}", key=state.sample.key, **state.instance)
        state.samples.mig[state.sample.key] = True
    state.instance = {}


def _end_process(state: _State, out: Reading) -> None:
    got = state.process
    state.process = {}
    pid = got.get("process id", "")
    if state.sample is None or not pid:
        if got:
            state.process = {k: v for k, v in got.items() if k == "gpu instance id"}
        return
    used = size(got.get("used gpu memory", ""))
    instance = got.get("gpu instance id", "")
    out.add(
        "gpu_process",
        where=f"line {got['line']}",
        t_s=state.t_s,
        key=state.sample.key,
        instance=int(instance) if instance.isdigit() else None,
        pid=int(pid) if pid.isdigit() else None,
        kind=got.get("type"),
        name=got.get("name"),
        used_bytes=None if used is None else int(used),
    )


def _end_gpu(state: _State, out: Reading) -> None:
    sample = state.sample
    if sample is None:
        return
    _end_process(state, out)
    _end_instance(state, out)
    state.pending.append(sample)
    state.sample = None


def _end_log(state: _State, out: Reading) -> None:
    """Numbers the devices of a log by their order, if all attached ones are in it."""
    _end_gpu(state, out)
    whole = state.attached == len(state.pending)
    for i, sample in enumerate(state.pending):
        sample.device = i if whole else None
        if sample.numbers or sample.flags is not None or sample.errors or sample.missing:
            state.samples.add(sample, state.t_s)
    for row in (*out.tables.get("gpu_process", ()), *out.tables.get("mig", ())):
        keys = [s.key for s in state.pending]
        if whole and row.get("device") is None and row.get("key") in keys:
            row["device"] = keys.index(row["key"])
    state.pending, state.t_s, state.attached = [], None, None

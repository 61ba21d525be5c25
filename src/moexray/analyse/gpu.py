"""Devices over time, from nvidia-smi in every form and from DCGM's metrics; plain Python, no judgement.

Glossary: a *device series* is all that one file says of one device, in the order of time; a *pair* is a
device beside the allocator statistics of the rank that runs on it.
"""

from __future__ import annotations

import math
import statistics
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moexray.core.run import Batch, Row, Run

__all__ = ["SLOWDOWNS", "Device", "Pair", "Throttling", "devices", "pair_up", "processes_of", "throttling"]

NUMBERS = (
    "t_s", "total_bytes", "reserved_bytes", "used_bytes", "free_bytes", "util_ratio", "mem_util_ratio",
    "sm_mhz", "sm_max_mhz", "power_w", "power_limit_w", "temp_c",
)  # fmt: skip
WORDS = ("flags", "errors", "missing")
# Clock reasons that are power or thermal slowdowns; idle, sync boost and application clocks are none.
SLOWDOWNS = frozenset({
    "sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
    "thermal_slowdown", "hw_power_brake",
})  # fmt: skip
NOT_ASKED = "?"
MIB = 1 << 20
# DCGM field -> (column, factor); sizes are MiB, shares percent (or 0..1 where a reader has scaled them).
DCGM: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_FB_USED": ("used_bytes", MIB), "DCGM_FI_DEV_FB_FREE": ("free_bytes", MIB),
    "DCGM_FI_DEV_FB_RESERVED": ("reserved_bytes", MIB), "DCGM_FI_DEV_FB_TOTAL": ("total_bytes", MIB),
    "DCGM_FI_DEV_GPU_UTIL": ("util_ratio", 0.01), "DCGM_FI_DEV_MEM_COPY_UTIL": ("mem_util_ratio", 0.01),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_mhz", 1), "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1),
    "DCGM_FI_DEV_GPU_TEMP": ("temp_c", 1),
}  # fmt: skip
DCGM_REASONS = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
# Bits of the same mask as in nvmlClocksEventReasons (nvml.h, dcgm_fields.h).
BITS = {
    0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Device:
    """All samples of one device of one file, oldest first.

    Args:
        source: The file.
        form: table, q, query, dmon, xml, dcgm.
        key: Tells devices of the file apart.
        device: Index as nvidia-smi counts; None if unknown.
        name: Product, "" if unknown.
        mig: MIG is enabled; None if the file does not say.
        numbers: Column of table `gpu` -> values, NaN where unknown.
        words: flags, errors, missing, one text a sample.
        lines: Line of each sample in the file, -1 if it has none.
    """

    source: str
    form: str
    key: str
    device: int | None
    name: str
    mig: bool | None
    numbers: Mapping[str, Sequence[float]]
    words: Mapping[str, Sequence[str]]
    lines: Sequence[int]

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def label(self) -> str:
        """How to call it in a sentence."""
        return (
            f"device {self.device}"
            if self.device is not None
            else f"device {self.key}"
            if self.key
            else "the GPU"
        )

    def last(self, name: str) -> float | None:
        """The newest known value of a column."""
        return next((v for v in reversed(self.numbers[name]) if not math.isnan(v)), None)

    def where(self, index: int) -> str:
        """Where a sample stands."""
        return f"line {self.lines[index]}" if self.lines[index] >= 0 else f"{self.label}, sample {index + 1}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A device and the statistics of the allocator on it.

    Args:
        device: The device.
        stats: Rows of memory_stats of one rank and device, oldest first.
        sure: Paired by an index of the content, or because there is only one of each.
    """

    device: Device
    stats: tuple[Row, ...]
    sure: bool


@dataclass(frozen=True, slots=True)
class Throttling:
    """What the samples under load say.

    Args:
        loaded: Samples under load that tell clock reasons.
        flagged: Of these, samples with a power or thermal slowdown.
        flagged_mhz: Median SM clock of the flagged ones; None if unknown.
        free_mhz: Median SM clock of the unflagged ones; None if there are none.
        reasons: Slowdown -> samples under load.
        first: Index of the first flagged sample under load.
    """

    loaded: int
    flagged: int
    flagged_mhz: float | None
    free_mhz: float | None
    reasons: Mapping[str, int]
    first: int | None


def devices(run: Run) -> list[Device]:
    """Every device of every file, samples in the order of time (of the file where times are unknown)."""
    groups: dict[tuple[str, str, str], list[tuple[Batch, list[int]]]] = {}
    for batch in run.batches("gpu"):
        rows: dict[str, list[int]] = {}
        for i, key in enumerate(batch.columns["key"]):
            rows.setdefault(str(key), []).append(i)
        for key, at in rows.items():
            form = str(batch.attrs.get("form", ""))
            groups.setdefault((batch.source, form, key), []).append((batch, at))
    return [*(_device(*place, parts) for place, parts in groups.items()), *_dcgm(run)]


def _device(source: str, form: str, key: str, parts: list[tuple[Batch, list[int]]]) -> Device:
    """Joins the rows of one device out of the batches of its file."""

    def column(name: str) -> list[Any]:
        values = [v for b, at in parts for v in map(b.columns[name].__getitem__, at)]
        return values if order is None else [values[i] for i in order]

    order: list[int] | None = None
    times = array("d", column("t_s"))
    if not any(map(math.isnan, times)) and any(b < a for a, b in pairwise(times)):
        order = sorted(range(len(times)), key=times.__getitem__)
    indices = set(column("device"))
    index = int(indices.pop()) if len(indices) == 1 else -1
    facts = parts[0][0].attrs
    return Device(
        source,
        form,
        key,
        index if index >= 0 else None,
        str(facts.get("names", {}).get(key, "")),
        facts.get("mig", {}).get(key),
        {n: array("d", column(n)) for n in NUMBERS},
        {n: column(n) for n in WORDS},
        array("q", column("line")),
    )


def _dcgm(run: Run) -> list[Device]:
    """Devices of DCGM's exporter: one sample for each scrape."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    known = {*DCGM, *DCGM_REASONS}
    for order, batch in enumerate(run.batches("metrics")):
        at: dict[str, dict[str, Any]] = {}
        for name, labels, value in zip(
            batch.columns["name"], batch.columns["labels"], batch.columns["value"], strict=True
        ):
            if name not in known or value != value:  # noqa: PLR0124 (NaN)
                continue
            pairs = dict(p.partition("=")[::2] for p in str(labels).split(","))
            key = "/".join(
                p for p in (pairs.get("Hostname", ""), pairs.get("gpu", pairs.get("UUID", ""))) if p
            )
            sample = at.setdefault(key, {"gpu": pairs.get("gpu", ""), "name": pairs.get("modelName", "")})
            if name in DCGM:
                column, factor = DCGM[name]
                sample[column] = float(value) * (1.0 if factor == 0.01 and value <= 1 else factor)
            else:
                sample["flags"] = " ".join(w for bit, w in BITS.items() if int(value) & bit)
        t_s = batch.attrs.get("t_s")
        for key, sample in at.items():
            sample["t_s"] = float(order if t_s is None else t_s)
            found.setdefault((batch.source, key), []).append(sample)
    return [_from_scrapes(key, samples, source) for (source, key), samples in _joined(found).items()]


def _joined(
    found: Mapping[tuple[str, str], list[dict[str, Any]]],
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Scrapes of one device in several files make one series, named by the first file."""
    first: dict[str, str] = {}
    out: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (source, key), samples in found.items():
        out.setdefault((first.setdefault(key, source), key), []).extend(samples)
    return out


def _from_scrapes(key: str, samples: list[dict[str, Any]], source: str) -> Device:
    for s in samples:
        if {"used_bytes", "free_bytes"} <= set(s):
            s.setdefault("total_bytes", s["used_bytes"] + s["free_bytes"] + s.get("reserved_bytes", 0.0))
    samples.sort(key=lambda s: s["t_s"])
    gpu = samples[0]["gpu"]
    return Device(
        source,
        "dcgm",
        key,
        int(gpu) if gpu.isdigit() else None,
        samples[0]["name"],
        None,
        {n: [s.get(n, math.nan) for s in samples] for n in NUMBERS},
        {"flags": [s.get("flags", NOT_ASKED) for s in samples], "errors": [""] * len(samples),
         "missing": [""] * len(samples)},
        [-1] * len(samples),
    )  # fmt: skip


def throttling(device: Device, load_ratio: float) -> Throttling:
    """Counts slowdowns among the samples under load; samples of unknown load are left out.

    Args:
        device: Its samples.
        load_ratio: Utilisation from which a sample is under load.
    """
    flagged: list[int] = []
    free: list[int] = []
    reasons: dict[str, int] = {}
    for i, (util, words) in enumerate(zip(device.numbers["util_ratio"], device.words["flags"], strict=True)):
        if words == NOT_ASKED or not util >= load_ratio:
            continue
        active = SLOWDOWNS.intersection(words.split())
        (flagged if active else free).append(i)
        for name in active:
            reasons[name] = reasons.get(name, 0) + 1
    return Throttling(
        len(flagged) + len(free),
        len(flagged),
        _median(device.numbers["sm_mhz"][i] for i in flagged),
        _median(device.numbers["sm_mhz"][i] for i in free),
        reasons,
        flagged[0] if flagged else None,
    )


def _median(values: Iterable[float]) -> float | None:
    known = [v for v in values if not math.isnan(v)]
    return statistics.median(known) if known else None


def pair_up(run: Run, found: Sequence[Device]) -> list[Pair]:
    """Pairs allocator statistics with devices that tell their memory in use.

    An index in the content decides: the device of the statistics, else the rank where one node's devices
    are given. Without one, the only device whose memory in use can hold what is reserved. Where several
    nodes are given, ranks are counted through their devices in the order of the files, and the pair is
    not sure.
    """
    stats: dict[tuple[Any, Any], list[Row]] = {}
    for row in run.rows("memory_stats"):
        if row["reserved_bytes"] is not None or row["allocated_bytes"] is not None:
            stats.setdefault((row["rank"], row["device"]), []).append(row)
    nodes = _nodes([d for d in found if d.last("used_bytes") is not None])
    every = [d for node in nodes for d in node]
    out: list[Pair] = []
    for (rank, index), rows in stats.items():
        ordered = tuple(sorted(rows, key=lambda r: (r["t_s"] is None, r["t_s"] or 0.0)))
        sure = len(nodes) == 1
        wanted = rank if index is None else index
        chosen: Device | None = None
        if sure and wanted is not None:
            chosen = next((d for d in every if d.device == wanted), None)
        elif rank is not None and 0 <= rank < len(every):
            chosen = every[rank]
        elif rank is None:
            need = max(r["reserved_bytes"] or r["allocated_bytes"] or 0 for r in rows[-1:])
            able = [d for d in every if (d.last("used_bytes") or 0.0) >= need and index in (None, d.device)]
            chosen, sure = (able[0], True) if len(able) == 1 and need else (None, False)
        if chosen is None and len(every) == 1 and len(stats) == 1:
            chosen, sure = every[0], True
        if chosen is not None:
            out.append(Pair(chosen, ordered, sure))
    return out


def _nodes(found: Sequence[Device]) -> list[list[Device]]:
    """Devices by node, each once.

    Files of different forms (a table and a query), or of the same form but of times that do not overlap,
    tell of the same node; the longest series of a device counts, the newest of equal ones. Files of one
    form over the same time are different nodes, and so are the hosts of one file.
    """
    nodes: list[dict[tuple[int | None, str], Device]] = []
    sources: dict[tuple[str, str, str], list[Device]] = {}
    for d in found:
        sources.setdefault((d.source, d.form, d.key.rpartition("/")[0]), []).append(d)
    for (_, _, host), devices_of in sources.items():
        for node in nodes:
            other = next(iter(node.values()))
            if host == other.key.rpartition("/")[0] and not _together(other, devices_of[0]):
                break
        else:
            node = {}
            nodes.append(node)
        for d in devices_of:
            key = (d.device, "" if d.device is not None else d.key)
            known = node.get(key)
            if known is None or (len(d), d.last("t_s") or 0.0) > (len(known), known.last("t_s") or 0.0):
                node[key] = d
    return [sorted(node.values(), key=lambda d: d.device or 0) for node in nodes]


def _together(a: Device, b: Device) -> bool:
    """Two files of one form that cover the same time, or times that are not known."""
    if a.form != b.form or a.source == b.source:
        return False
    first = [t for t in a.numbers["t_s"] if not math.isnan(t)]
    second = [t for t in b.numbers["t_s"] if not math.isnan(t)]
    if not first or not second:
        return True
    return first[0] <= second[-1] and second[0] <= first[-1]


def processes_of(run: Run, device: Device) -> list[Row]:
    """The newest list of processes on a device: of its own file if that has one."""
    rows = [r for r in run.rows("gpu_process") if r["used_bytes"] is not None and _is_on(r, device)]
    own = [r for r in rows if r["source"] == device.source]
    rows = own or rows
    newest = max((r["t_s"] for r in rows if r["t_s"] is not None), default=None)
    latest: dict[int | None, Row] = {}
    for r in rows:
        if newest is None or r["t_s"] is None or r["t_s"] == newest:
            latest[r["pid"]] = r
    return list(latest.values())


def _is_on(row: Row, device: Device) -> bool:
    if row["device"] is not None and device.device is not None:
        return bool(row["device"] == device.device)
    return bool(row["key"]) and bool(row["key"] == device.key)

"""Tensors of tensors from snapshots, profiles and event logs, in one form.

Glossary: a *life* begins at an allocation of the history and ends at its free; *open* lives are not
freed within it; *older* tensors were allocated before it and are not covered; the *position* of an
event counts allocations and frees only; a *step* is a marked step, an index that the log gives, or one
pass over the layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.algorithms.intervals import next_at, oldest_first
from moexray.analyse.attribution import of_profile, of_snapshot
from moexray.analyse.snapshot import Shot, is_action, shots
from moexray.analyse.snapshot_history import killers
from moexray.analyse.snapshot_lives import steps_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moexray.core.run import Batch, Run

    Ints = NDArray[np.int64]

__all__ = ["NEVER", "Tensors", "tensors"]

NEVER = 1 << 61  # position of what does not happen


@dataclass(frozen=True, slots=True)
class Tensors:
    """The lives of one device of one file, in the order of their allocations.

    Args:
        source, rank, device: Where they come from; device -1 is host memory, None is not known.
        kind: snapshot, profile or log.
        size: Bytes as requested (block sizes in profiles of CUDA memory).
        start: Position of the allocation.
        end: Position of the free; of open lives the number of events.
        is_open: Not freed within the history.
        start_ns: Times; None where the history has none.
        end_ns: Of open lives the time of the last event.
        layer, expert, step, last_step: Numbers, -1 unknown; the steps of allocation and free.
        scope: Positions in SCOPES.
        site: Index into `sites`.
        sites: Call sites, operators or names.
        address: As recorded; None where it is not known or belongs to the host.
        gone: Position at which the segment was freed; NEVER if it was not.
        steps: What `step` counts, in words; "" if nothing tells steps.
        notes: What was guessed, what is left out.
    """

    source: str
    rank: int | None
    device: int | None
    kind: str
    size: Ints
    start: Ints
    end: Ints
    is_open: NDArray[np.bool_]
    start_ns: Ints | None
    end_ns: Ints | None
    layer: Ints
    expert: Ints
    scope: Ints
    step: Ints
    last_step: Ints
    site: Ints
    sites: tuple[str, ...]
    address: Ints | None = None
    gone: Ints | None = None
    steps: str = ""
    notes: tuple[str, ...] = ()


def tensors(run: Run) -> list[Tensors]:
    """All lives of a run, one entry for each device of each snapshot, profile and (joined) log."""
    out = [*_snapshots(run), *_profiles(run), *_logs(run)]
    return [_with_passes(one) for one in out if len(one.size)]


@dataclass(frozen=True, slots=True)
class _Events:
    """Allocations and frees in order; the row of the free of each allocation (-1: none)."""

    is_alloc: NDArray[np.bool_]
    ends: Ints
    size: Ints
    time_ns: Ints | None
    step: Ints

    def tensors(self, **more: Any) -> Tensors:
        count = len(self.is_alloc)
        born = np.flatnonzero(self.is_alloc)
        died = self.ends[born]
        is_open = died < 0
        died = np.where(is_open, count, died)
        last = np.minimum(died, count - 1)
        older = int((~self.is_alloc).sum() - np.isin(np.flatnonzero(~self.is_alloc), died).sum())
        if older:
            text = f"{older} frees of tensors older than the history (or not logged) are not covered"
            more["notes"] = (*more.get("notes", ()), text)
        times = self.time_ns
        return Tensors(
            size=self.size[born], start=born, end=died, is_open=is_open,
            start_ns=None if times is None else times[born], end_ns=None if times is None else times[last],
            step=self.step[born], last_step=np.where(is_open, -1, self.step[last]), **more,
        )  # fmt: skip


def _snapshots(run: Run) -> Iterator[Tensors]:
    stacks = {b.attrs["file"]: b.columns.get("scopes", ()) for b in run.batches("snapshot_stacks")}
    notes = {b.attrs["file"]: b.attrs.get("notes", ()) for b in run.batches("snapshot_events")}
    for shot in shots(run):
        if shot.events is None:
            continue
        rows = np.flatnonzero(is_action(shot.events, "alloc") | killers(shot.events))
        events = {k: np.asarray(v)[rows] for k, v in shot.events.items()}
        is_alloc = is_action(events, "alloc")
        follows = next_at(events["address"], is_alloc)
        times = events.get("time_ns")
        file = shot.info["file"]
        scopes = stacks.get(file) or [""] * len(shot.sites)
        labels = of_snapshot(events, notes.get(file, ("",)), list(scopes), shot.marks)
        steps = steps_in(shot)
        step = steps.of_event[rows] if steps else np.full(len(rows), -1, np.int64)
        made = _Events(is_alloc, follows, events["size_bytes"], times, step)
        layer, expert, scope = (c[is_alloc] for c in labels.columns())
        one = made.tensors(
            source=shot.source, rank=shot.rank, device=shot.device, kind="snapshot", layer=layer,
            expert=expert, scope=scope, site=events["stack"][is_alloc], sites=tuple(shot.sites),
            address=events["address"][is_alloc],
            steps=f"steps marked by {steps.marked_by}" if steps else "",
        )  # fmt: skip
        yield _superseded(replace(one, gone=_gone(shot, rows, one)), is_alloc)


def _superseded(one: Tensors, is_alloc: NDArray[np.bool_]) -> Tensors:
    """An allocation at an address that is still held ends the older life; its free was not recorded."""
    lost = ~one.is_open & is_alloc[np.minimum(one.end, len(is_alloc) - 1)]
    if not lost.any():
        return one
    text = f"{int(lost.sum())} frees are missing: the next allocation at the address ended the life"
    return replace(one, notes=(*one.notes, text))


def _gone(shot: Shot, rows: Ints, one: Tensors) -> Ints:
    """Position of the first free of a segment (or unmapping) after the birth that covers each life."""
    events, gone = shot.events or {}, np.full(len(one.size), NEVER, np.int64)
    address = gone if one.address is None else one.address
    order = np.argsort(address, kind="stable")
    addresses = address[order]
    freed = np.flatnonzero(is_action(events, "segment_free", "segment_unmap"))
    places = np.stack([events["address"][freed], events["size_bytes"][freed]], axis=1)
    distinct, which = np.unique(places, axis=0, return_inverse=True)
    which = which.reshape(-1)
    when = np.split(freed[np.argsort(which, kind="stable")], np.cumsum(np.bincount(which)))
    for (low, size), moments in zip(distinct.tolist(), when, strict=False):
        first, last = np.searchsorted(addresses, [low, low + size])
        inside, positions = order[first:last], np.append(np.searchsorted(rows, moments), NEVER)
        after = positions[np.searchsorted(positions, one.start[inside], side="right")]
        gone[inside] = np.minimum(gone[inside], after)
    return gone


def _profiles(run: Run) -> Iterator[Tensors]:
    traces = {b.source: b for b in run.batches("trace")}
    for batch in run.batches("trace_memory"):
        columns = {k: np.asarray(v) for k, v in batch.columns.items()}
        order = np.argsort(columns["ts_ns"], kind="stable")
        for device in np.unique(columns["device"]).tolist():
            rows = order[columns["device"][order] == device]
            events = {k: v[rows] for k, v in columns.items()}
            yield from _profile(events, batch, traces.get(batch.source), device)


def _profile(events: dict[str, Any], batch: Batch, trace: Batch | None, device: int) -> Iterator[Tensors]:
    is_alloc = events["bytes"] > 0
    if trace is None or not is_alloc.any():
        return
    times = events["ts_ns"]
    names = list(trace.attrs["names"])
    labels, site = of_profile(trace.columns, names, events["lane"][is_alloc], times[is_alloc])
    layer, expert, scope = labels.columns()
    unknown = np.full(len(times), -1, np.int64)
    made = _Events(is_alloc, next_at(events["address"], is_alloc), np.abs(events["bytes"]), times, unknown)
    one = made.tensors(
        source=batch.source, rank=batch.attrs.get("rank"), device=device, kind="profile", layer=layer,
        expert=expert, scope=scope, site=np.where(site < 0, len(names), site), sites=(*names, ""),
        address=events["address"][is_alloc] if device >= 0 else None,
    )  # fmt: skip
    yield _superseded(one, is_alloc)


def _logs(run: Run) -> Iterator[Tensors]:
    """Logs of the same rank and device whose times follow each other are parts of one."""
    parts: dict[tuple[int, int], list[tuple[Batch, Ints]]] = {}
    for batch in run.batches("memory_log"):
        ranks, devices = (np.asarray(batch.columns[k]) for k in ("rank", "device"))
        for key in sorted({*zip(ranks.tolist(), devices.tolist(), strict=True)}):
            rows = np.flatnonzero((ranks == key[0]) & (devices == key[1]))
            parts.setdefault(key, []).append((batch, rows))
    for (rank, device), pieces in parts.items():
        for joined in _joined(pieces):
            yield _log(joined, rank, device)


def _joined(pieces: list[tuple[Batch, Ints]]) -> Iterator[list[tuple[Batch, Ints]]]:
    def span(piece: tuple[Batch, Ints]) -> tuple[int, int]:
        times = piece[0].columns["time_ns"][piece[1]]
        return int(times[0]), int(times[-1])

    timed = all("time_ns" in batch.columns for batch, _ in pieces)
    if not timed or len(pieces) == 1:
        yield from ([p] for p in pieces)
        return
    pieces = sorted(pieces, key=span)
    apart = all(span(a)[1] <= span(b)[0] for a, b in pairwise(pieces))
    same_kind = len({(b.attrs["by_id"], "address" in b.columns) for b, _ in pieces}) == 1
    yield from ([pieces] if apart and same_kind else ([p] for p in pieces))


def _log(pieces: list[tuple[Batch, Ints]], rank: int, device: int) -> Tensors:
    def column(name: str) -> Ints:
        return np.concatenate([np.asarray(b.columns[name])[rows] for b, rows in pieces])

    first, sites = pieces[0][0], tuple(s for b, _ in pieces for s in b.attrs["sites"])
    base = np.cumsum([0] + [len(b.attrs["sites"]) for b, _ in pieces])
    site = np.concatenate(
        [np.asarray(b.columns["site"])[rows] + shift for (b, rows), shift in zip(pieces, base, strict=False)]
    )
    is_alloc = column("is_alloc").astype(bool)
    notes = list(dict.fromkeys(n for b, _ in pieces for n in b.attrs["notes"]))
    if len(pieces) > 1:
        notes.append(f"{len(pieces)} files were joined: {', '.join(b.source for b, _ in pieces)}")
    step = column("step")
    made = _Events(
        is_alloc, oldest_first(column("key"), is_alloc), column("size_bytes"),
        column("time_ns") if "time_ns" in first.columns else None, step,
    )  # fmt: skip
    layer, expert, scope = (column(n)[is_alloc] for n in ("layer", "expert", "scope"))
    return made.tensors(
        source=first.source, rank=None if rank < 0 else rank, device=None if device < 0 else device,
        kind="log", layer=layer, expert=expert, scope=scope, site=site[is_alloc], sites=sites,
        address=column("address")[is_alloc] if "address" in first.columns else None,
        steps="steps of the log" if len(np.unique(step[step >= 0])) > 1 else "", notes=tuple(notes),
    )  # fmt: skip


def _with_passes(one: Tensors) -> Tensors:
    """Steps from the layers where nothing else tells them: a pass ends where the layers start again.

    An allocation that falls back by more than half of the range of layers begins the next pass.
    """
    known = one.layer >= 0
    if one.steps or not known.any():
        return one
    layer, start = one.layer[known], one.start[known]
    begins = start[1:][layer[:-1] - layer[1:] > (layer.max() - layer.min()) / 2]
    if not len(begins):
        return one
    step = np.searchsorted(begins, one.start, side="right")
    last = np.searchsorted(begins, one.end, side="right")
    return replace(one, step=step, last_step=np.where(one.is_open, -1, last), steps="passes over the layers")

"""One Chrome trace of everything that was read, with our findings as tracks; Perfetto's UI opens it.

Times are those of the first rank's clock. A rank is a process; its host threads and streams are
threads; our own tracks (gaps, waiting, findings, memory) stand in processes of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.analyse.gaps import Gaps
    from moexray.analyse.timeline import Profile
    from moexray.analyse.timeline_comm import Capture
    from moexray.core.run import Run
    from moexray.diagnose.engine import Diagnosis

__all__ = ["events"]

Event = dict[str, Any]
US = 1000  # ns
OURS = 1_000_000  # processes from here on are moexray's
GAP_TRACK, WAIT_TRACK, STEP_TRACK = 0, 1_000, 2_000  # thread numbers of the tracks of a rank
SHORT_NS = 1_000  # gaps below are not drawn
FINDINGS, MEMORY = 2 * OURS, 2 * OURS + 1


def events(run: Run, diagnosis: Diagnosis) -> Iterator[Event]:
    """The events of the trace, metadata first for each process.

    Args:
        run: What was read.
        diagnosis: Its diagnosis.
    """
    from moexray.analyse.timeline_comm import survey

    captures = survey(run)
    start = min((p.window[0] for c in captures for p in c.profiles), default=0)
    end = max((p.window[1] for c in captures for p in c.profiles), default=start)
    pid = 0
    for capture in captures:
        shifts = {id(capture.collectives.profiles[o.rank]): round(o.offset_ns) for o in _offsets(capture)}
        waits = dict(_waits(capture))
        for profile in capture.profiles:
            pid += 1
            shift = start + shifts.get(id(profile), 0)
            yield from _slices(profile, pid, shift)
            yield from _ours(profile, pid + OURS, shift, waits.get(id(profile), []))
    memory = list(_memory(run, start))
    yield from memory
    times = [e["ts"] for e in memory if "ts" in e]
    if not captures and times:
        end = start + int((max(times) - min(times)) * US)
    yield from _findings(diagnosis, start, end)


def _offsets(capture: Capture) -> list[Any]:
    return capture.collectives.offsets if len(capture.collectives) else []


def _name(pid: int, text: str, tid: int | None = None, order: int | None = None) -> Iterator[Event]:
    kind = "process" if tid is None else "thread"
    at = {"ph": "M", "pid": pid, **({} if tid is None else {"tid": tid})}
    yield {**at, "name": f"{kind}_name", "args": {"name": text}}
    if order is not None:
        yield {**at, "name": f"{kind}_sort_index", "args": {"sort_index": order}}


def _slice(pid: int, tid: int, name: str, at: int, length: int, shift: int, **args: Any) -> Event:
    out = {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": (at - shift) / US, "dur": length / US}
    return {**out, "args": args} if args else out


def _slices(profile: Profile, pid: int, shift: int) -> Iterator[Event]:
    """What the trace held; streams get thread numbers behind those of the host threads."""
    lanes = profile.attrs["lanes"]
    yield from _name(pid, profile.who, order=pid)
    on_device: dict[tuple[int, int], int] = {}
    for i, (process, thread, label) in enumerate(lanes):
        yield from _name(pid, str(label or f"{process} {thread}"), i)
    streams, devices = profile.stream.tolist(), profile.device.tolist()
    rows = zip(profile.start.tolist(), profile.end.tolist(), profile.name.tolist(), profile.lane.tolist(),
               strict=True)  # fmt: skip
    for i, (begin, end, name, lane) in enumerate(rows):
        tid = lane
        if streams[i] >= 0:
            key = devices[i], streams[i]
            if key not in on_device:
                on_device[key] = len(lanes) + len(on_device)
                yield from _name(pid, f"GPU {key[0]}, stream {key[1]}", on_device[key])
            tid = on_device[key]
        yield _slice(pid, tid, profile.names[name], begin, end - begin, shift)


def _ours(profile: Profile, pid: int, shift: int, waits: list[tuple[int, int, str]]) -> Iterator[Event]:
    from moexray.analyse.gaps import attribute

    yield from _name(pid, f"moexray: {profile.who}", order=pid - OURS)
    steps = profile.steps
    if len(steps):
        yield from _name(pid, f"steps ({steps.derived})", STEP_TRACK)
        for label, begin, length in zip(steps.label.tolist(), steps.start.tolist(), steps.duration.tolist(),
                                        strict=True):  # fmt: skip
            yield _slice(pid, STEP_TRACK, f"step {label}", begin, length, shift)
    for i, gaps in enumerate(attribute(profile)):
        yield from _name(pid, f"idle, GPU {gaps.of.device} stream {gaps.of.stream}", GAP_TRACK + i)
        yield from _gaps(gaps, pid, GAP_TRACK + i, shift, profile)
    if waits:
        yield from _name(pid, "waiting for a late rank", WAIT_TRACK)
        for begin, length, text in waits:
            yield _slice(pid, WAIT_TRACK, text, begin, length, shift)


def _gaps(gaps: Gaps, pid: int, tid: int, shift: int, profile: Profile) -> Iterator[Event]:
    from moexray.analyse.gaps import DEVICE, HOST

    names = [*HOST, *DEVICE, "unexplained"]
    for i in range(len(gaps)):
        length = int(gaps.end[i] - gaps.start[i])
        if length < SHORT_NS:
            continue
        parts = [*gaps.host[i].tolist(), *gaps.device[i].tolist(), int(gaps.unexplained[i])]
        main = names[parts.index(max(parts))]
        said = {f"{n}_us": v / US for n, v in zip(names, parts, strict=True) if v}
        if gaps.released_by[i] >= 0:
            said["released_by"] = profile.names[profile.name[gaps.released_by[i]]]
        yield _slice(pid, tid, main, int(gaps.start[i]), length, shift, **said)


def _waits(capture: Capture) -> Iterator[tuple[int, list[tuple[int, int, str]]]]:
    """For each profile: (start, length, text) of its waiting for the last rank of a collective."""
    c = capture.collectives
    for rank, profile in enumerate(c.profiles):
        out = []
        for k in c.order.tolist():
            late = int(c.late[k])
            length = int(c.duration[rank, k] - c.transfer[k]) if c.present[rank, k] else 0
            if length >= SHORT_NS and late != rank:
                out.append((int(c.start[rank, k]), length, f"waits for {c.profiles[late].who} in {c.op[k]}"))
        yield id(profile), out


def _memory(run: Run, start: int) -> Iterator[Event]:
    """Reserved and allocated bytes over time: of snapshots with history, and of profiles."""
    from moexray.analyse.snapshot import shots
    from moexray.analyse.snapshot_history import history
    from moexray.analyse.thin import extremes

    yield from _name(MEMORY, "moexray: memory", order=0)
    for shot in shots(run):
        line = history(shot).line
        if line is None or line.time_ns is None:
            continue
        label = f"{shot.source}, device {shot.device}"
        for i in extremes(line.reserved[1:].astype(float).tolist(), 20_000):
            values = {"reserved": int(line.reserved[i + 1]), "live": int(line.active[i + 1])}
            at = (int(line.time_ns[i]) - start) / US
            yield {"ph": "C", "pid": MEMORY, "name": label, "ts": at, "args": values}
    for batch in run.batches("trace_memory"):
        c = batch.columns
        for at, reserved, allocated, device in zip(
            *(c[k].tolist() for k in ("ts_ns", "reserved_bytes", "allocated_bytes", "device")), strict=True
        ):
            values = {k: v for k, v in (("reserved", reserved), ("allocated", allocated)) if v >= 0}
            if values and device >= 0:
                name = f"{batch.source}, device {device}"
                yield {"ph": "C", "pid": MEMORY, "name": name, "ts": (at - start) / US, "args": values}


def _findings(diagnosis: Diagnosis, start: int, end: int) -> Iterator[Event]:
    """One slice per finding: over its time window where it has one, else over the whole capture."""
    yield from _name(FINDINGS, "moexray: findings", order=-1)
    for i, f in enumerate(diagnosis.findings):
        first, last = f.subject.t_from_ns or start, f.subject.t_to_ns or end
        if not start <= first <= last <= end:
            first, last = start, end
        yield from _name(FINDINGS, f"{i + 1}. {f.severity}", i, order=i)
        args = {"claim": f.claim, "confidence": f.confidence, "caused_by": list(f.implied_by)}
        yield _slice(FINDINGS, i, f.id, first, max(last - first, US), start, **args)

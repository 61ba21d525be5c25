"""`moexray timeline`: busy and idle time of every stream, what gaps waited for, collectives, clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.core.json_text import json_text
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say
from moexray.faces.cli.timeline_graphs import graph_rows, graph_text
from moexray.faces.numbers import counted, human

if TYPE_CHECKING:
    import numpy as np

    from moexray.analyse.gaps import Gaps
    from moexray.analyse.timeline import Profile
    from moexray.analyse.timeline_comm import Capture, Collectives
    from moexray.core.run import Run

__all__ = ["command", "describe"]

LONGEST = 2_000  # gaps listed per rank
SHOWN = 5  # gaps and collectives in the text
SHORT_NS = 5_000  # gaps below are the pace of launches; they count in the sums
WORDS = {
    "allocator": "allocator call",
    "synchronise": "synchronise",
    "poll": "event polling",
    "launch": "launch call",
    "runtime": "other runtime call",
    "jit": "compilation or module load",
    "gc": "garbage collection",
    "operator": "operator overhead",
    "python": "Python",
    "none": "nothing recorded on the host",
    "released_by_comm": "released by communication",
    "released_by_compute": "released by another stream",
    "overlapped_by_comm": "overlapped by communication",
    "overlapped_by_compute": "overlapped by compute",
    "in_graph": "inside a graph",
    "launch_latency": "launch latency",
    "unexplained": "unexplained",
}


@click.command("timeline")
@click.argument("paths", nargs=-1, required=True, metavar="TRACE...")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(paths: tuple[str, ...], form: str) -> None:
    """Where the time of a device went, from the traces in TRACE (Kineto, Nsight Systems), rank by rank.

    For each stream: busy, what the host did while a kernel had not been launched, what else ran while a
    launched kernel waited, and what nothing explains; the parts add up to the span. With traces of several
    ranks: clock offsets with their error, and for each collective who came last and how long the rest waited.
    """
    from moexray.readers.read_any import read_any

    with refusing():
        document = describe(read_any(paths))
    say(json_text(document) if form == "json" else _text(document))


def describe(run: Run) -> dict[str, Any]:
    """The document `moexray.timeline/1`.

    Raises:
        UsageError: no trace with slices was read.
    """
    from moexray.analyse.exchange_cost import nodes
    from moexray.analyse.gaps import attribute
    from moexray.analyse.timeline_comm import survey
    from moexray.faces.cli.timeline_comm import exchange_rows, of_rank

    captures = survey(run)
    if not captures:
        raise UsageError(
            "no trace to look at",
            where=run.nothing_found(),
            hint="a torch.profiler trace or an Nsight Systems export with events (sums hold no times)",
        )
    out: dict[str, list[dict[str, Any]]] = {
        "ranks": [], "streams": [], "gaps": [], "collectives": [], "exchanges": [], "steps": [],
    }  # fmt: skip
    host = nodes(run)
    for capture in captures:
        clocks = _clocks(capture)
        for profile in capture.profiles:
            first, longest = len(out["steps"]), _Longest(profile)
            devices: set[int] = set()
            for gaps in attribute(profile):
                if not devices:
                    out["steps"][first:] = _steps(profile, gaps)
                devices.add(gaps.of.device)
                out["streams"].append(_stream(profile, gaps))
                longest.add(gaps)
            out["ranks"].append(
                _rank(profile, clocks.get(id(profile)), devices) | of_rank(capture.collectives, profile)
            )
            out["gaps"] += longest.rows()
        out["collectives"] += _collectives(capture.collectives)
        out["exchanges"] += exchange_rows(capture.collectives, host)
    out["graphs"] = graph_rows(p for capture in captures for p in capture.profiles)
    return {"schema": "moexray.timeline/1", **out}


def _clocks(capture: Capture) -> dict[int, dict[str, Any]]:
    """Offset of each rank against the first; what rests on fewer than three collectives is unknown."""
    c = capture.collectives
    known: dict[int, dict[str, Any]] = {}
    if c.profiles:
        known[id(c.profiles[0])] = {"offset": 0, "error": 0, "drift": 0.0, "matches": len(c)}
    for o in c.offsets if len(c) else []:
        known[id(c.profiles[o.rank])] = {
            "offset": round(o.offset_ns), "error": round(o.residual_ns), "drift": o.drift_ppm,
            "matches": o.matches,
        }  # fmt: skip
    return known


def _rank(profile: Profile, clock: dict[str, Any] | None, devices: set[int]) -> dict[str, Any]:
    from moexray.analyse.timeline import KERNEL, MEMCPY, MEMSET, Cover

    on = profile.of(KERNEL, MEMCPY, MEMSET)
    cover = Cover(profile.start[on], profile.end[on])
    busy = int(cover.total[-1])
    span = int(cover.end[-1] - cover.start[0]) if len(cover.start) else 0
    return {
        "rank": profile.rank,
        "source": profile.source,
        "device_index": next(iter(devices)) if len(devices) == 1 else None,
        "span_s": span / 1e9,
        "busy_s": busy / 1e9,
        "clock_offset_ns": None if clock is None else clock["offset"],
        "clock_error_ns": None if clock is None else clock["error"],
        "clock_drift_ppm": None if clock is None else clock["drift"],
        "clock_from_collectives": 0 if clock is None else clock["matches"],
        "steps_from": profile.steps.derived,
    }


def _named(host: np.ndarray, device: np.ndarray) -> dict[str, dict[str, int]]:
    from moexray.analyse.gaps import DEVICE, HOST

    return {
        "host": {k: int(v) for k, v in zip(HOST, host, strict=True) if v},
        "device": {k: int(v) for k, v in zip(DEVICE, device, strict=True) if v},
    }


def _stream(profile: Profile, gaps: Gaps) -> dict[str, Any]:
    first, last = gaps.of.span
    return {
        "rank": profile.rank,
        "source": profile.source,
        "device_index": gaps.of.device,
        "stream": gaps.of.stream,
        "communication": gaps.of.is_comm,
        "span_ns": last - first,
        "busy_ns": int(gaps.of.busy.total[-1]),
        "gaps": len(gaps),
        **_named(gaps.host.sum(axis=0), gaps.device.sum(axis=0)),
        "unexplained_ns": int(gaps.unexplained.sum()),
    }


class _Longest:
    """The longest gaps of all streams of a rank; holds LONGEST rows, however many gaps there are."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.found: list[dict[str, Any]] = []

    def add(self, gaps: Gaps) -> None:
        """Takes those of a stream that are among the longest so far."""
        import numpy as np

        length = gaps.duration
        least = max(SHORT_NS, self.found[-1]["dur_ns"] + 1 if len(self.found) >= LONGEST else 0)
        at = np.flatnonzero(length >= least)
        at = np.sort(at[np.argsort(-length[at], kind="stable")[:LONGEST]])
        if len(at):
            self.found += [self._row(gaps, int(i)) for i in at]
            self.found = sorted(self.found, key=lambda g: -int(g["dur_ns"]))[:LONGEST]

    def rows(self) -> list[dict[str, Any]]:
        """In order of time."""
        return sorted(self.found, key=lambda g: int(g["t_ns"]))

    def _row(self, g: Gaps, i: int) -> dict[str, Any]:
        p, released = self.profile, int(g.released_by[i])
        return {
            "rank": p.rank,
            "device_index": g.of.device,
            "stream": g.of.stream,
            "t_ns": int(g.start[i]),
            "dur_ns": int(g.duration[i]),
            "step": int(p.steps.label[g.step[i]]) if g.step[i] >= 0 else None,
            "before": p.names[p.name[g.before[i]]],
            "released_by": p.names[p.name[released]] if released >= 0 else None,
            **_named(g.host[i], g.device[i]),
            "unexplained_ns": int(g.unexplained[i]),
        }


def _steps(profile: Profile, gaps: Gaps) -> list[dict[str, Any]]:
    """Steps of the main stream; `outside_ns` is before its first or after its last kernel."""
    steps = profile.steps
    busy, length = gaps.of.busy.within(steps.start, steps.end), steps.duration
    inside = gaps.step >= 0
    idle, host, device, unexplained = (
        _per_step(values[inside], gaps.step[inside], len(steps))
        for values in (gaps.duration, gaps.host, gaps.device, gaps.unexplained)
    )
    return [
        {
            "rank": profile.rank,
            "step": int(steps.label[i]),
            "t_ns": int(steps.start[i]),
            "dur_ns": int(length[i]),
            "stream": gaps.of.stream,
            "busy_ns": int(busy[i]),
            **_named(host[i], device[i]),
            "unexplained_ns": int(unexplained[i]),
            "outside_ns": int(length[i] - busy[i] - idle[i]),
        }
        for i in range(len(steps))
    ]


def _per_step(values: np.ndarray, step: np.ndarray, steps: int) -> np.ndarray:
    """Sums of the rows of each step, [steps, ...]."""
    import numpy as np

    out = np.zeros((steps, *values.shape[1:]), np.int64)
    np.add.at(out, step, values)
    return out


def _collectives(c: Collectives) -> list[dict[str, Any]]:
    from moexray.analyse.timeline_edges import edges_ok, element_bytes

    out = []
    labels = c.labels(c.step)
    for column in c.order.tolist():
        rank = int(c.late[column])
        first = int(c.present[:, column].argmax())
        meta, at = c.profiles[first].comm, c.profiles[first].comm_at.get(int(c.row[first, column]))
        noted = {} if meta is None or at is None else {k: meta[k][at] for k in ("group", "seq", "dtype")}
        width = element_bytes(noted.get("dtype"))
        size, seq = int(c.size[column]), int(noted.get("seq", -1))
        out.append(
            {
                "group": noted.get("group"),
                "seq": seq if seq >= 0 else None,
                "op": str(c.op[column]),
                "step": labels[column] if c.step[column] >= 0 else None,
                "ranks": int(c.present[:, column].sum()),
                "complete": bool(c.complete[column]),
                "late_rank": c.profiles[rank].rank if c.profiles[rank].rank is not None else rank,
                "lateness_s": float(c.lateness[column]) / 1e9,
                "transfer_s": float(c.transfer[column]) / 1e9,
                "bytes": size * width if width and size >= 0 else None,
                "edges_ok": edges_ok(c, column),
            }
        )
    return out


def _text(d: dict[str, Any]) -> str:
    from moexray.faces.cli.timeline_comm import conclusion, exchange_text

    out: list[str] = []
    for i, r in enumerate(d["ranks"]):
        idle = 1 - r["busy_s"] / r["span_s"] if r["span_s"] else 0.0
        clock = ""
        if i and r["clock_from_collectives"] and r["clock_offset_ns"] is not None:
            error = human(r["clock_error_ns"] / 1e9, "s")
            clock = f"; clock {human(r['clock_offset_ns'] / 1e9, 's')} off the first rank's, within {error}"
        device = "" if r["device_index"] is None else f", device {r['device_index']}"
        who = f"rank {r['rank']}" if r["rank"] is not None else r["source"] + device
        out.append(f"{who}: {human(r['span_s'], 's')} on the device, {idle:.1%} idle{clock}")
        mine = [s for s in d["streams"] if all(s[k] == r[k] for k in ("source", "rank"))]
        mine = [s for s in mine if r["device_index"] in (None, s["device_index"])]
        out.append(f"  {conclusion(r, mine[0] if mine else None)}")
        for s in [*mine[:1], *(s for s in mine[1:] if s["communication"])]:
            out += _stream_text(s)
        if rest := len([s for s in mine[1:] if not s["communication"]]):
            out.append(f"  ({counted(rest, 'more stream')} in --format json)")
    if late := sorted(d["collectives"], key=lambda c: -c["lateness_s"])[:SHOWN]:
        out += ["", *_came_last(d["collectives"])]
        out += ["the collectives with the longest waiting:", *map(_collective_text, late)]
    out += exchange_text(d["exchanges"])
    main: dict[Any, Any] = {}  # the first stream of a device has most compute
    for s in d["streams"]:
        main.setdefault((s["source"], s["rank"], s["device_index"]), _lane(s))
    gaps = [g for g in d["gaps"] if _lane(g) in main.values()]
    if longest := sorted(gaps, key=lambda g: -g["dur_ns"])[:SHOWN]:
        out += ["", "longest gaps of the main streams:", *map(_gap_text, longest)]
    out += graph_text(d["graphs"])
    out += ["", "Busy: kernels, copies, fills. Released by: what ended within 10 us before the next kernel."]
    out.append("A gap is host time until the launch call of the next kernel returned, device wait after it.")
    out.append("next: moexray diagnose, on the same files and the logs beside them, names cause and remedy")
    return "\n".join(out)


def _lane(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["rank"], row["device_index"], row["stream"]


def _came_last(collectives: list[dict[str, Any]]) -> list[str]:
    """Each rank that others waited for, the longest waiting first."""
    waits: dict[int, list[float]] = {}
    for c in collectives:
        waits.setdefault(c["late_rank"], []).append(c["lateness_s"])
    out = [f"who came last in {counted(len(collectives), 'collective')} that were matched over the ranks:"]
    for rank, late in sorted(waits.items(), key=lambda w: -sum(w[1]))[:SHOWN]:
        waited = human(sum(late), "s")
        out.append(f"  rank {rank}: {counted(len(late), 'time')}, the first to come waited {waited} in sum")
    return out


def _parts(d: dict[str, Any]) -> list[tuple[str, int]]:
    parts = [*d["host"].items(), *d["device"].items()]
    if d["unexplained_ns"]:
        parts.append(("unexplained", d["unexplained_ns"]))
    return sorted(parts, key=lambda p: -p[1])


def _stream_text(s: dict[str, Any]) -> list[str]:
    idle = s["span_ns"] - s["busy_ns"]
    kind = " (communication)" if s["communication"] else ""
    share = f"{s['busy_ns'] / s['span_ns']:.1%}" if s["span_ns"] else "all"
    span = human(s["span_ns"] / 1e9, "s")
    out = [f"  stream {s['stream']}{kind}: busy {share} of {span}, {counted(s['gaps'], 'gap')}"]
    if idle:
        parts = [f"{WORDS[k]} {v / idle:.1%}" for k, v in _parts(s) if v / idle >= 0.005]
        out.append(f"    idle {human(idle / 1e9, 's')}: " + ", ".join(parts))
    return out


def _collective_text(c: dict[str, Any]) -> str:
    step = "" if c["step"] is None else f", step {c['step']}"
    edges = {True: "; edges fit", False: "; EDGES DO NOT FIT: what is sent is not what is expected"}
    part = "" if c["complete"] else f"; only {c['ranks']} ranks recorded"
    waited, transfer = human(c["lateness_s"], "s"), human(c["transfer_s"], "s")
    return (
        f"  {c['op'][:60]}{step}: rank {c['late_rank']} came last, the first waited {waited}; "
        f"transfer at most {transfer}{edges.get(c['edges_ok'], '')}{part}"
    )


def _gap_text(g: dict[str, Any]) -> str:
    from moexray.analyse.timeline_comm import op_name

    who = f"device {g['device_index']}, " if g["rank"] is None else f"rank {g['rank']}, "
    step = "" if g["step"] is None else f", step {g['step']}"
    parts = ", ".join(f"{WORDS[k]} {human(v / 1e9, 's')}" for k, v in _parts(g)[:3])
    by = f" [{op_name(g['released_by'])[:60]}]" if g["released_by"] else ""
    head = f"  {who}stream {g['stream']}{step}: {human(g['dur_ns'] / 1e9, 's')}"
    return f"{head} before {op_name(g['before'])[:60]}: {parts}{by}"

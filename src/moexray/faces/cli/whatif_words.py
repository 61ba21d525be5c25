"""What `moexray whatif memory` prints: a table for people, or JSON (schema moexray.whatif.memory/1)."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from moexray.core.json_text import json_text
from moexray.faces.numbers import counted, human

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.algorithms.replay import Check
    from moexray.algorithms.simulate import Outcome
    from moexray.whatif.allocator import Study
    from moexray.whatif.search import Case, Trial

__all__ = ["document", "figures", "text"]

SHOWN = 9  # other settings in the text
WIDTH = 104  # of the legend
CHECKS = ("placements", "segments", "segment_frees", "final_blocks")
TITLES = f"{'peak reserved':>14}{'stuck':>11}{'fits in':>11}{'OOMs':>6}{'retries':>9}{'calls':>8}   setting"
LEGEND = (
    "stuck: free bytes at the end that empty_cache cannot return; fits in: least memory at which no request",
    "fails; calls: segments taken and given back, pages mapped and unmapped (each costs time)",
)
LISTED = 1_000  # ambiguous blocks in the JSON


def document(study: Study, seconds: float) -> str:
    """The JSON document as text."""
    return json_text(figures(study, seconds))


def figures(study: Study, seconds: float) -> dict[str, Any]:
    """The document `moexray.whatif.memory/1`.

    Top level figures in bytes are those of the worst device, counts are sums over the devices;
    `files` has them for each device.
    """
    advice, cases = study.advice, study.cases
    recorded = [] if study.recorded is None else [study.recorded]
    return {
        "schema": "moexray.whatif.memory/1",
        "self_check": _check([*(c.check for c in cases), *(x.check for x in study.left_out)]),
        "capacity_bytes": max((c.capacity for c in cases if c.capacity is not None), default=None),
        "recorded": next(map(_row, recorded), None),
        "settings": [_row(t) for t in _trials(study)],
        "recommendation": {
            "conf": advice.conf,
            "line": advice.line,
            "reason": advice.reason,
            "blocked_by": list(dict.fromkeys(c.id for c in advice.blocked)),
            "blocked": [{"id": c.id, "option": c.option, "reason": c.reason} for c in advice.blocked],
            "caveats": list(advice.caveats),
            "start": "restarted" if advice.fresh else "kept",
            "peak_reserved_over_orders": None if advice.peaks is None else list(advice.peaks),
        },
        "files": [_file(study, i) for i in range(len(cases))],
        "not_replayed": [
            {"source": x.source, "device": x.device, "reason": x.reason} for x in study.left_out
        ],
        "seconds": round(seconds, 3),
    }


def _trials(study: Study) -> list[Trial]:
    """The rows: just what was asked for, else the recorded settings and all that were tried."""
    recorded = [] if study.recorded is None or study.asked else [study.recorded]
    return [*recorded, *study.trials]


def _check(checks: Sequence[Check | None]) -> dict[str, Any]:
    """The self-check in sum; totals of 0 where nothing could be checked."""
    known = [c for c in checks if c is not None]
    pairs = [_pairs(c) for c in known]
    sums = [[sum(p[i][k] for p in pairs) for k in (0, 1)] for i in range(len(CHECKS))]
    out: dict[str, Any] = {
        name: {"matched": hits, "total": total} for name, (hits, total) in zip(CHECKS, sums, strict=True)
    }
    out["applicable"] = bool(pairs)
    out["exact"] = all(c.exact for c in known) if known else None
    return out


def _pairs(check: Check) -> list[tuple[int, int]]:
    return [check.placements, check.segment_allocs, check.segment_frees, check.final_blocks]


def _row(trial: Trial) -> dict[str, Any]:
    """A setting: bytes of the worst device, counts over all devices."""
    out = {
        "conf": trial.name,
        "recorded": trial.settings is None,
        **_figures(trial.outcomes, trial.capacities),
    }
    if trial.restarted is not trial.outcomes and trial.restarted != trial.outcomes:
        out["restarted"] = _figures(trial.restarted, trial.fresh_capacities)
    return out


def _figures(seen: Sequence[Outcome], fits: Sequence[int]) -> dict[str, Any]:
    return {
        "peak_reserved_bytes": max(o.peak_reserved for o in seen),
        "peak_allocated_bytes": max(o.peak_allocated for o in seen),
        "stuck_bytes": max(o.stuck for o in seen),
        "retries": sum(o.retries for o in seen),
        "ooms": sum(o.ooms for o in seen),
        "segment_ops": sum(o.segment_operations for o in seen),
        "min_capacity_bytes": max(fits, default=None),
    }


def _file(study: Study, i: int) -> dict[str, Any]:
    case = study.cases[i]
    return {
        "source": case.recording.source,
        "kind": case.recording.kind,
        "device": case.recording.device,
        "rank": case.recording.rank,
        "recorded_conf": case.recording.conf,
        "events": len(case.recording.history.events),
        "capacity_bytes": case.capacity,
        "stated_peak_reserved_bytes": case.recording.stated_peak,
        "start_reserved_bytes": case.kept.held,
        "ambiguous_blocks": case.kept.plan.ambiguous,
        "ambiguous": [
            {"address": b.address, "least_bytes": b.least, "most_bytes": b.most}
            for b in (case.check.ambiguous[:LISTED] if case.check else ())
        ],
        "self_check": _check([case.check]),
        "settings": [
            {
                "conf": t.name,
                "recorded": t.settings is None,
                **_figures(t.outcomes[i : i + 1], t.capacities[i : i + 1]),
            }
            for t in _trials(study)
        ],
    }


def text(study: Study, _seconds: float) -> str:
    """The text: what was replayed, the table, what to know, and last the line to set."""
    out: list[str] = []
    for case in study.cases:
        out += _head(case)
    out += [f"not replayed: {x.source}, device {x.device}: {x.reason}" for x in study.left_out if study.cases]
    if study.recorded is not None:
        out += ["", *_table(study), *_several(study)]
    out += [""] if study.cases else []
    for caveat in study.advice.caveats:
        out += _wrap(f"note: {caveat}")
    for c in study.advice.blocked:
        out += _wrap(f"not used: {c.option}: {c.reason}")
    out += [*_wrap(f"why: {study.advice.reason}"), f"set: {study.advice.line or 'nothing'}"]
    return "\n".join(out)


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _head(case: Case) -> list[str]:
    r = case.recording
    where = r.source if r.device < 0 else f"{r.source}, device {r.device}"
    how = {"cpu_profile": "a profile of a CPU run", "gpu_profile": "a profile with GPU memory"}
    with_what = how.get(r.kind, f"recorded with {r.conf or _DEFAULTS}")
    lines = [f"{where}: {counted(len(r.history.events), 'event')}, {with_what}"]
    if case.check is None:
        lines.append("  self-check of the replay: not applicable to a profile; what follows is a forecast")
    else:
        agree = ", ".join(f"{h}/{t} {n}" for n, (h, t) in zip(_CHECK_WORDS, _pairs(case.check), strict=True))
        lines.append(f"  self-check of the replay: {agree}{'' if case.check.exact else ' -- NOT exact'}")
    have = (
        "memory of the device unknown"
        if case.capacity is None
        else f"device memory {human(case.capacity, 'bytes')}"
    )
    limit = case.settings.limit
    have += "" if limit is None else f", {human(limit, 'bytes')} allowed by the memory fraction"
    return [*lines, f"  {have}"]


_DEFAULTS = "PyTorch's defaults"
_CHECK_WORDS = ("placements", "new segments", "freed segments", "final blocks")


def _table(study: Study) -> list[str]:
    fresh, recorded = study.advice.fresh, study.recorded
    if recorded is None:
        return []
    start = " after a restart" if fresh else ""
    live = max(o.peak_allocated for o in recorded.view(fresh=fresh))
    snapshot = any(c.check is not None for c in study.cases)
    out = [TITLES, _line(recorded, fresh=False, mark="as recorded" if snapshot else _DEFAULTS)]
    if fresh:
        out.append(_line(recorded, fresh=True, mark=f"the recorded settings{start}"))
    known = {_seen(recorded, fresh=fresh)}
    shown, same = [], []
    for trial in study.trials:
        if "[" in trial.name and trial is not study.advice.trial:
            continue  # tuned to single sizes: of interest only where it is the answer
        if trial is study.advice.trial or _seen(trial, fresh=fresh) not in known:
            known.add(_seen(trial, fresh=fresh))
            shown.append(trial)
        elif trial.view(fresh=fresh) == recorded.view(fresh=fresh) and trial.name != recorded.name:
            same.append(trial.name or _DEFAULTS)
    for trial in shown[:SHOWN]:
        arrow = "   <-- set this" if trial is study.advice.trial else ""
        out.append(_line(trial, fresh=fresh, mark=(trial.name or _DEFAULTS) + start + arrow))
    more = [f"{counted(len(shown) - SHOWN, 'more setting')} with an effect"] if len(shown) > SHOWN else []
    more += (
        [f"no effect at all: {', '.join(same[:4])}{' and others' if len(same) > 4 else ''}"] if same else []
    )
    out += [f"({'; '.join(more)}; --format json has all)"] if more else []
    return [
        *out,
        f"no allocator can do with less than {human(live, 'bytes')}, the peak of live blocks",
        *LEGEND,
    ]


def _seen(trial: Trial, *, fresh: bool) -> tuple[int, ...]:
    """What tells rows apart: memory in MiB, failures, retries."""
    return tuple(
        n for o in trial.view(fresh=fresh) for n in (o.peak_reserved >> 20, o.stuck >> 20, o.ooms, o.retries)
    )


def _line(trial: Trial, *, fresh: bool, mark: str) -> str:
    row = _figures(trial.view(fresh=fresh), trial.fits(fresh=fresh))
    fits = row["min_capacity_bytes"]
    return (
        f"{human(row['peak_reserved_bytes'], 'bytes'):>14}{human(row['stuck_bytes'], 'bytes'):>11}"
        f"{'' if fits is None else human(fits, 'bytes'):>11}{row['ooms']:>6}{row['retries']:>9}"
        f"{row['segment_ops']:>8}   {mark}"
    )


def _several(study: Study) -> list[str]:
    """For several devices: each one before and after."""
    trial, recorded = study.advice.trial, study.recorded
    if len(study.cases) == 1 or recorded is None:
        return []
    out = ["", f"the table: bytes of the worst of {len(study.cases)} devices, counts in sum; each device:"]
    for i, case in enumerate(study.cases):
        rank = "" if case.recording.rank is None else f"rank {case.recording.rank}, "
        a, b = recorded.view(fresh=study.advice.fresh)[i], trial and trial.view(fresh=study.advice.fresh)[i]
        words = [_short(a)] + ([_short(b)] if b else [])
        out.append(f"  {case.recording.source} ({rank}device {case.recording.device}): {' -> '.join(words)}")
    return out


def _short(o: Outcome) -> str:
    return f"{human(o.peak_reserved, 'bytes')}, {o.ooms} OOMs, {o.retries} retries"

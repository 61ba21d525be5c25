"""`moexray whatif`: experiments on the user's own history."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import MoexrayError, UsageError
from moexray.faces.cli.say import say
from moexray.faces.numbers import human

if TYPE_CHECKING:
    from moexray.algorithms.blocks import Settings
    from moexray.core.run import Run
    from moexray.whatif.allocator import Advice, Case, Recording, Trial

__all__ = ["command"]

SHOWN = 14  # trials in the text
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@click.group("whatif")
def command() -> None:
    """Experiments on your own history: what would another setting have done."""


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", str(value).lower())
        if not found:
            self.fail(f"{value!r} is no size; write 80GiB, 81559MiB or bytes", param, ctx)
        return int(float(found[1]) * UNITS[found[2]])


@command.command("memory")
@click.argument("paths", nargs=-1, required=True, metavar="SNAPSHOT...")
@click.option("--capacity", type=_Size(), help="Device memory that PyTorch may have, e.g. 78GiB.")
@click.option("--conf", "confs", multiple=True, help="A PYTORCH_ALLOC_CONF string to try, too; repeatable.")
@click.option("--engine", type=click.Choice(["vllm", "sglang", "other"]), help="Engine of the server.")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor parallel size.")
@click.option("--sleep-mode", is_flag=True, help="vLLM's sleep mode is on.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def memory(
    paths: tuple[str, ...], capacity: int | None, confs: tuple[str, ...], engine: str | None,
    tp: int, *, sleep_mode: bool, form: str,
) -> None:
    """Replay the history in SNAPSHOT under many allocator settings and name the line to set.

    SNAPSHOT is a memory snapshot with history, or a folder with one (and the launch line, which
    is read for conflicts). The replay of the recorded settings is checked first; if it does not
    agree with the recording, nothing is advised.
    """
    for path in paths:
        if path != "-" and not Path(path).exists():
            say(f"error: {path} does not exist\n  try:   check the path", err=True)
            sys.exit(2)
    from moexray.readers.read_any import read_any
    from moexray.whatif import allocator as whatif

    try:
        extra = _parse(confs)
        run = read_any(paths)
        cases = whatif.prepare_cases(whatif.recordings(run), capacity)
        trials = whatif.search(cases, extra=extra)
        forbidden: dict[str, str] = {}
        for case in cases:  # what is unsafe for one server is advised to none
            forbidden |= _forbidden(run, case.recording, engine=engine, tp=tp, sleep_mode=sleep_mode)
        advice = whatif.advise(cases, trials, forbidden)
    except MoexrayError as why:
        say(f"error: {why}", err=True)
        sys.exit(2)
    render = _json if form == "json" else _text
    say(render(cases, trials, advice))


def _parse(confs: tuple[str, ...]) -> list[Settings]:
    from moexray.algorithms import conf

    try:
        return [conf.parse(text)[0] for text in confs]
    except ValueError as why:
        raise UsageError(f"--conf: {why}", hint="write it as PYTORCH_ALLOC_CONF takes it") from why


def _forbidden(
    run: Run, recording: Recording, *, engine: str | None, tp: int, sleep_mode: bool
) -> dict[str, str]:
    """Options that must not be advised, and why: from the options given, else from the launch line."""
    from moexray.diagnose.advice import expandable_check

    if engine in ("vllm", "sglang") and tp > 1:
        why = f"custom all-reduce of {engine} with tensor parallel size {tp} exports buffers by CUDA IPC"
        return {"expandable_segments": f"{why}; disable custom all-reduce first"}
    if sleep_mode:
        return {"expandable_segments": "sleep mode does not combine with it in many releases"}
    state, why = expandable_check(run, recording.source)
    return {"expandable_segments": why} if state == "blocked" else {}


def _json(cases: list[Case], trials: list[Trial], advice: Advice) -> str:
    document = {
        "schema": "moexray.whatif.memory/1",
        "cases": [
            {
                "source": c.recording.source,
                "device": c.recording.device,
                "rank": c.recording.rank,
                "recorded_conf": c.recording.conf,
                "capacity_bytes": c.capacity,
                "self_check": {**asdict(c.check), "exact": c.check.exact},
            }
            for c in cases
        ],
        "trials": [{"conf": t.name, "cases": [_outcome(t, i) for i in range(len(cases))]} for t in trials],
        "recommendation": {"line": advice.line, "reason": advice.reason, "blocked": list(advice.blocked)},
    }
    return json.dumps(document, indent=1)


def _outcome(t: Trial, i: int) -> dict[str, Any]:
    o = t.outcomes[i]
    return {
        "peak_reserved_bytes": o.peak_reserved,
        "stuck_bytes": o.stuck,
        "retries": o.retries,
        "ooms": o.ooms,
        "segment_operations": o.segment_operations,
        "smallest_capacity_bytes": t.capacities[i] if t.capacities else None,
    }


def _text(cases: list[Case], trials: list[Trial], advice: Advice) -> str:
    out: list[str] = []
    width = max(len(t.name) for t in trials[:SHOWN]) + 2
    for i, case in enumerate(cases):
        out += [*_head(case, trials[0].outcomes[i].peak_allocated), ""]
        titles = ("peak reserved", "stuck", "retries", "OOMs", "calls", "fits in")
        out.append("setting".ljust(width) + "".join(f"{x:>14}" for x in titles))
        for t in trials[:SHOWN]:
            o = t.outcomes[i]
            fits = human(t.capacities[i], "bytes") if t.capacities else ""
            cells = (human(o.peak_reserved, "bytes"), human(o.stuck, "bytes"), o.retries, o.ooms)
            row = "".join(f"{x:>14}" for x in (*cells, o.segment_operations, fits))
            out.append(t.name.ljust(width) + row)
        out.append("")
    if len(trials) > SHOWN:
        out.append(f"({len(trials) - SHOWN} more settings were tried and are worse; --format json has all)")
    out += [f"set: {advice.line or 'nothing'}", f"  why: {advice.reason}"]
    out += [f"  not used: {b}" for b in advice.blocked]
    if advice.line:
        out.append("  check: num_alloc_retries and reserved_bytes.all.peak after the change; undo: unset it")
    out.append("  stuck: free bytes at the end that empty_cache cannot return; calls: segments taken, given")
    out.append("  back, pages mapped and unmapped; fits in: least memory at which no request fails")
    return "\n".join(out)


def _head(case: Case, live: int) -> list[str]:
    c = case.check
    parts = (
        ("placements", c.placements),
        ("new segments", c.segment_allocs),
        ("freed segments", c.segment_frees),
        ("final blocks", c.final_blocks),
    )
    agree = ", ".join(f"{hits}/{total} {name}" for name, (hits, total) in parts)
    count = len(case.recording.history.events)
    limit = human(case.capacity, "bytes") if case.capacity else "endless (--capacity shows failures)"
    return [
        f"{case.recording.source}, device {case.recording.device}: {count} events",
        f"  self-check of the replay: {agree}{'' if c.exact else ' -- NOT exact'}",
        f"  device memory: {limit}; no allocator can do with less than {human(live, 'bytes')}",
    ]

"""Budgets for CI: limits of fragmentation, skew and P99 in a TOML file, held against a run.

A line fails where the figure is beyond its limit with its whole interval, or where no interval is known;
where only the value is beyond it, the line is undecided. `max_..._growth` and `max_..._loss` compare with
a baseline: the largest share by which a figure may have become worse.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from moexray.core.errors import UsageError
from moexray.core.sizes import BINARY_UNITS
from moexray.verify.ab.outcome import Interval, Outcome, judge
from moexray.verify.ab.stats import LEAST_PAIRS, shortfall
from moexray.verify.compare import compare, lost, outcomes_of
from moexray.verify.quantities import quantities

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from moexray.core.run import Run

__all__ = ["KEYS", "Check", "Line", "Rule", "check", "load_budget"]

Status = Literal["pass", "fail", "cannot tell"]
LONGEST = 1 << 20  # bytes of a budget file
LARGEST = 1 << 63  # of a limit written as a whole number: more bytes than any machine holds
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "": 1.0}
LATENCIES = ("ttft", "tpot", "itl", "e2e", "step", "latency")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a key of the budget bounds.

    Args:
        figure: Of an outcome.
        unit: Of the limit: "s", "bytes", or "share" for plain numbers and percentages.
        least: Whether it is a lower bound, or a loss.
        relative: Whether it compares with the baseline.
        example: A line for messages.
    """

    figure: str
    unit: str
    least: bool
    relative: bool
    example: str


def _rules(figure: str, word: str, unit: str, example: str, *, least: bool = False) -> dict[str, Rule]:
    bound, change = ("min", "loss") if least else ("max", "growth")
    return {
        f"{bound}_{word}": Rule(figure, unit, least, relative=False, example=example),
        f"max_{word}_{change}": Rule(figure, "share", least, relative=True, example='"10%"'),
    }


KEYS: Mapping[str, Mapping[str, Rule]] = {
    "fragmentation": {
        **_rules("fragmentation_ratio", "ratio", "share", "0.6"),
        **_rules("stuck_bytes", "stuck", "bytes", '"1GiB"'),
        **_rules("largest_free_bytes", "largest_free", "bytes", '"4GiB"', least=True),
    },
    "skew": {
        **_rules("expert_load_std", "load_std", "share", "0.8"),
        **_rules("skew_index", "index", "share", "0.4"),
        **_rules("balancedness", "balancedness", "share", "0.7", least=True),
    },
    "p99": {k: v for w in LATENCIES for k, v in _rules(f"p99_{w}_s", w, "s", '"50ms"').items()},
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the budget and what became of it.

    Args:
        budget: "p99.max_itl".
        limit: In base units; a share of the baseline for growth and loss.
        status: Whether it holds.
        outcome: From the limit (or the baseline) to the figure.
    """

    budget: str
    limit: float
    status: Status
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        """The keys of `check`: those of the outcome, and the line's own."""
        own = {"budget": self.budget, "limit": self.limit, "status": self.status}
        return {**own, **self.outcome.to_json()}


@dataclass(frozen=True, slots=True)
class Check:
    """All lines of a budget, and what to mind: rows that could not be read."""

    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document `moexray.check/1`."""
        return {
            "schema": "moexray.check/1",
            "passed": not any(x.status == "fail" for x in self.lines),
            "undecided": [x.budget for x in self.lines if x.status == "cannot tell"],
            "lines": [x.to_json() for x in self.lines],
            "notes": list(self.notes),
        }


def load_budget(file: Path) -> dict[str, tuple[Rule, float]]:
    """The lines of a budget file, limits in base units.

    Raises:
        UsageError: it cannot be read, is too long or no TOML, holds nothing, or what is no key or no value.
    """
    import tomllib

    try:
        with file.open("rb") as stream:
            text = stream.read(LONGEST + 1)
        if len(text) > LONGEST:  # half a file would pass for a whole budget
            raise UsageError("the budget is longer than 1 MiB", where=str(file), hint="check --budget")
        given = tomllib.loads(text.decode("utf-8-sig"))
    except OSError as why:
        what = f"the budget cannot be read ({why.strerror})"
        raise UsageError(what, where=str(file), hint="check the path of --budget") from why
    except (ValueError, RecursionError) as why:  # bad UTF-8, bad TOML, endless digits, endless nesting
        hint = 'write TOML: a line [p99], below it max_itl = "50ms"'
        raise UsageError(f"the budget is not TOML ({why})", where=str(file), hint=hint) from why
    out: dict[str, tuple[Rule, float]] = {}
    for section, lines in given.items():
        if section not in KEYS or not isinstance(lines, dict):
            raise UsageError(f"there is no budget [{section}]", where=str(file), hint=_known())
        for key, value in lines.items():
            if key not in KEYS[section]:
                raise UsageError(f"[{section}] has no key {key}", where=str(file),
                                 hint=f"one of {', '.join(KEYS[section])}")  # fmt: skip
            rule = KEYS[section][key]
            limit = _limit(value, rule.unit)
            if limit is None:
                raise UsageError(f"[{section}] {key} = {value!r} is no limit", where=str(file),
                                 hint=f"write {key} = {rule.example}")  # fmt: skip
            out[f"{section}.{key}"] = rule, limit
    if not out:
        raise UsageError("the budget holds no line", where=str(file), hint=_known())
    return out


def _known() -> str:
    return "; ".join(f"[{section}] {', '.join(keys)}" for section, keys in KEYS.items())


def _limit(value: object, unit: str) -> float | None:
    """A limit in base units; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int) and abs(value) > LARGEST:
        return None
    number, given = (value, "") if not isinstance(value, str) else _split(value)
    scales = {"s": SECONDS, "bytes": BINARY_UNITS, "share": {"": 1.0, "%": 0.01}}[unit]
    if number is None or given not in scales or not math.isfinite(number) or number < 0:
        return None
    return float(number) * scales[given]


def _split(text: str) -> tuple[float | None, str]:
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-z%]*)\s*", text.lower(), re.ASCII)
    return (float(found[1]), found[2]) if found else (None, "")


def check(budget: Mapping[str, tuple[Rule, float]], run: Run, baseline: Run | None = None) -> Check:
    """Holds a run against a budget.

    Args:
        budget: From `load_budget`.
        run: What was measured.
        baseline: What growth and loss compare with.

    Raises:
        UsageError: a line asks for what neither side holds, for a P99 of too few values or of a thinned
            series, or compares answers of other length.
    """
    absolute = _own(run)
    relative: list[Outcome] = []
    if any(rule.relative for rule, _ in budget.values()):
        if baseline is None:
            names = ", ".join(name for name, (rule, _) in budget.items() if rule.relative)
            raise UsageError(f"{names} compare with a baseline", hint="--baseline PATH, or leave them out")
        relative = list(compare(baseline, run).outcomes)
    lines: list[Line] = []
    for name, (rule, limit) in budget.items():
        found = [o for o in (relative if rule.relative else absolute) if o.figure == rule.figure]
        if not found:
            sides = " and the baseline hold" if rule.relative else " holds"
            raise UsageError(
                f"{name} asks for {rule.figure}, which nothing that was read{sides}",
                where=run.nothing_found(), hint=_source(name),
            )  # fmt: skip
        lines += [_line(name, rule, limit, o) for o in found]
    told = (*lost("path", run), *(lost("baseline", baseline) if baseline else ()))
    return Check(tuple(lines), told)


def _source(name: str) -> str:
    return {
        "fragmentation": "give allocator snapshots (torch.cuda.memory._dump_snapshot())",
        "skew": "give expert counts, router choices or an expert-distribution dump",
        "p99": "give latencies of that kind: a benchmark's detailed output, or a CSV of step,itl_ms",
    }[name.partition(".")[0]]


def _own(run: Run) -> list[Outcome]:
    """Every figure of the run as an outcome against itself: the value, and its interval."""
    return [o for q in quantities(run) for o in outcomes_of(q, q)]


def _line(name: str, rule: Rule, limit: float, o: Outcome) -> Line:
    if rule.figure.startswith("p99") and (why := _unfit(o)):
        hint = "measure longer: a P99 wants 1,000 values, of every step and of answers of one length"
        raise UsageError(f"{name}: {why}", hint=hint)
    line = _relative(rule, limit, o) if rule.relative else _beyond(o.after, limit)
    status: Status = "pass"
    sign = -1.0 if rule.least else 1.0
    if sign * line.value > 0:
        certain = line.low is None or (line.high is not None and min(sign * line.low, sign * line.high) > 0)
        status = "fail" if certain else "cannot tell"
    return Line(name, limit, status, o if rule.relative else _against(limit, o))


def _unfit(o: Outcome) -> str:
    """Why a series bounds no P99: too few values, thinned, other answers; a benchmark's own does."""
    missing = o.reason != judge(o.difference, o.margin, o.better)[1]
    few = o.reason == shortfall("p99", o.n_before, o.n_after)
    return o.reason if missing and (few or min(o.n_before, o.n_after) >= LEAST_PAIRS) else ""


def _beyond(i: Interval, limit: float) -> Interval:
    """By how much a figure passes a limit."""
    return Interval(i.value - limit, *(None if x is None else x - limit for x in (i.low, i.high)))


def _relative(rule: Rule, limit: float, o: Outcome) -> Interval:
    """By how much the ratio passes what is allowed; a figure that was 0 may not grow at all."""
    allowed = 1 - limit if rule.least else 1 + limit
    return o.difference if o.ratio is None else _beyond(o.ratio, allowed)


def _against(limit: float, o: Outcome) -> Outcome:
    """The outcome from the limit to the figure."""
    after = o.after
    difference = _beyond(after, limit)
    ratio = None
    if limit > 0:
        low, high = (None if x is None else x / limit for x in (after.low, after.high))
        ratio = Interval(after.value / limit, low, high)
    verdict, reason = judge(difference, None, o.better)
    return replace(o, before=Interval(limit), difference=difference, ratio=ratio, verdict=verdict,
                   reason=reason, n_before=0)  # fmt: skip



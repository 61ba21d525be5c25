"""Two start-up logs that chose different kernels, and a benchmark that shows what it did."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from statistics import mean
from typing import TYPE_CHECKING

from moexray.analyse.arms import Arm, Difference, arms, compare
from moexray.analyse.balance_lines import balances
from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["backend_change"]

SPEED = (
    "ttft_s",
    "itl_s",
    "tpot_s",
    "e2e_s",
    "latency_s",
    "step_s",
    "duration_s",
)
SAME_OPTIONS = ("host", "port", "model", "model_path", "served_model_name", "seed", "log_level", "api_key")


@dataclass(frozen=True, slots=True)
class Change:
    """A scope (moe, attention, ...) for which two logs chose different backends."""

    scope: str
    first: Row
    second: Row

    @property
    def names(self) -> tuple[str, str]:
        """The two backends, with what was said beside them."""
        return _said(self.first), _said(self.second)


def backend_change(run: Run, limits: Limits) -> list[Finding]:
    """kernel.backend_change: the slower run chose another backend, and nothing else differs."""
    changes = _changes(run)
    tested = arms(run)
    if not changes or len(tested) < 2:
        return []
    noise = limits.engine.run_noise
    first, second = _slowest_pair(tested)
    found = [d for d in compare(first, second) if _is_speed(d.figure)]
    if not found:
        return []
    slower = [d for d in found if d.ratio > 1 + max(noise, d.noise)]
    faster = [d for d in found if d.ratio < 1 / (1 + max(noise, d.noise))]
    if not slower and not faster:
        return [_without_effect(changes, found, noise)]
    if not slower:  # seen from the other arm
        first, second = second, first
        found = [d for d in compare(first, second) if _is_speed(d.figure)]
        slower = [d for d in found if d.ratio > 1 + max(noise, d.noise)]
        faster = [d for d in found if d.ratio < 1 / (1 + max(noise, d.noise))]
    others = _other_differences(run, changes, limits.engine.balance_apart)
    return [_finding(changes, (first, second), slower, faster, others, noise)]


def _finding(
    changes: list[Change], pair: tuple[Arm, Arm], slower: list[Difference], faster: list[Difference],
    others: list[str], noise: float,
) -> Finding:  # fmt: skip
    first, second = pair
    worst = max(slower, key=lambda d: d.ratio)
    change = changes[0]
    a, b = change.names
    claim = (
        f"The {change.scope} backend differs between the two start-ups ({a}; {b}), and '{second.label}' is "
        f"slower: {_effect(slower)}{f'; it is faster in {_effect(faster, faster=True)}' if faster else ''}. "
    )
    evidence = [
        Evidence(r["source"], r["where"], r["text"]) for c in changes[:2] for r in (c.first, c.second)
    ]
    for d in (*slower[:4], *faster[:3]):
        facts = {
            "level": d.level,
            f"{d.figure}_first": d.first,
            f"{d.figure}_second": d.second,
            "time_ratio": d.ratio,
            "rate_ratio": 1 / d.ratio if d.figure.endswith("_per_s") else None,
        }
        evidence.append(Evidence(_source(second), f"runs {first.label} and {second.label}", pairs(facts)))
    pin = remedy("backend-pin", backend=_range(slower, change, first))
    if others:
        return Finding(
            "kernel.backend_change", "info", 0.45,
            f"{claim}Other things differ, too ({'; '.join(others)}): the backend alone cannot be blamed.",
            value=worst.ratio, limit=1 + noise, unit="ratio", evidence=tuple(evidence), remedies=(pin,),
            settle_with=("a run in which only the backend differs", "a kernel trace of both runs"),
        )  # fmt: skip
    return Finding(
        "kernel.backend_change", "warn", 0.8, f"{claim}Balance and settings do not differ in what was given.",
        value=worst.ratio, limit=1 + noise, unit="ratio", evidence=tuple(evidence), remedies=(pin,),
        settle_with=("a kernel trace of both runs at the slow level",), cost=worst.second - worst.first
        if not worst.figure.endswith("_per_s") else 0.0,
    )  # fmt: skip


def _source(arm: Arm) -> str:
    """The file that an arm stands in."""
    return str(arm.rows[0]["source"])


def _changes(run: Run) -> list[Change]:
    """Scopes for which logs of different files name different backends, MoE first."""
    chosen: dict[str, dict[str, Row]] = {}
    for r in run.rows("log"):
        if r["kind"] == "backend" and r["phase"] != "serving":
            chosen.setdefault(r["fields"]["scope"], {})[r["source"]] = r  # the last choice counts
    out = []
    for scope, by_source in chosen.items():
        for a, b in combinations(by_source.values(), 2):
            if _key(a) != _key(b):
                first, second = sorted((a, b), key=lambda r: r["t_s"] if r["t_s"] is not None else 0.0)
                out.append(Change(scope, first, second))
                break
    return sorted(out, key=lambda c: c.scope != "moe")


def _key(row: Row) -> str:
    return str(row["fields"]["backend"]).lower().replace("_", "").replace("-", "").replace(" ", "")


def _said(row: Row) -> str:
    rest = str(row["fields"].get("rest") or "").strip()
    note = f" {rest}" if rest.startswith("(") else ""
    return f"{row['fields']['backend']}{note[:60]} in {row['source']}"


def _is_speed(figure: str) -> bool:
    return figure.endswith("_per_s") or (
        figure.endswith(SPEED) and not figure.startswith(("max_", "min_", "std_"))
    )


def _slowest_pair(tested: list[Arm]) -> tuple[Arm, Arm]:
    """The two arms that differ most; there are mostly two."""

    def apart(pair: tuple[Arm, Arm]) -> float:
        found = [d.ratio for d in compare(*pair) if _is_speed(d.figure)]
        return max((max(x, 1 / x) for x in found), default=0.0)

    return max(combinations(tested[:8], 2), key=apart)


def _effect(found: list[Difference], *, faster: bool = False) -> str:
    """The largest effect per figure, with the levels where it shows."""
    parts = []
    for figure in dict.fromkeys(d.figure for d in found):
        own = [d for d in found if d.figure == figure]
        rate = figure.endswith("_per_s")
        ratios = [(1 / d.ratio if rate else d.ratio) for d in own]
        low, high = min(ratios), max(ratios)
        size = f"{high:.2f}x" if high - low < 0.005 else f"{low:.2f}-{high:.2f}x"
        levels = [d.level for d in own if d.level is not None]
        at = f" at level {', '.join(f'{v:g}' for v in levels)}" if levels else ""
        name = figure.replace("_per_s", "_per_second").removesuffix("_s").replace("_", " ")
        parts.append(f"{name} {size}{at}")
    return ", ".join(parts[: 3 if not faster else 2])


def _range(slower: list[Difference], change: Change, fast: Arm) -> str:
    """Which backend to pin where; which log belongs to the faster arm only its label can suggest."""
    levels = sorted({d.level for d in slower if d.level is not None})
    where = f" for load levels {levels[0]:g} to {levels[-1]:g}" if levels else ""
    logs = [r for r in (change.first, change.second) if fast.label.lower() in r["source"].lower()]
    either = f"{change.first['fields']['backend']} or {change.second['fields']['backend']}"
    name = logs[0]["fields"]["backend"] if len(logs) == 1 else f"{either}, whichever that run used"
    return f"{change.scope}: {name}{where}"


def _other_differences(run: Run, changes: list[Change], apart: float) -> list[str]:
    """What else differs between the two start-ups: balancedness, options, further backends."""
    first, second = changes[0].first["source"], changes[0].second["source"]
    out = [f"{c.scope} backend {c.names[0]} / {c.names[1]}" for c in changes[1:]]
    lines = {b.source: b for b in balances(run)}
    values = {}
    for source in (first, second):
        if source in lines:
            values[source] = lines[source].before
        else:
            own = [
                float(r["fields"]["balancedness"])
                for r in run.rows("log")
                if r["source"] == source and r["kind"] == "eplb.balance" and "balancedness" in r["fields"]
            ]
            if own:
                values[source] = mean(own)
    if len(values) == 2 and abs(values[first] - values[second]) > apart:
        out.append(f"balancedness {values[first]:.2f} / {values[second]:.2f}")
    options: dict[str, dict[str, str]] = {first: {}, second: {}}
    for r in run.rows("launch"):
        if r["source"] in options and r["key"] not in SAME_OPTIONS and "backend" not in r["key"]:
            options[r["source"]][r["key"]] = str(r["value"])
    both = options[first].keys() & options[second].keys()
    out += [
        f"{k} {options[first][k]} / {options[second][k]}"
        for k in sorted(both)
        if options[first][k] != options[second][k]
    ][:4]
    return out


def _without_effect(changes: list[Change], found: list[Difference], noise: float) -> Finding:
    a, b = changes[0].names
    widest = max(found, key=lambda d: abs(d.ratio - 1))
    facts = pairs(
        {"largest_difference_ratio": abs(widest.ratio - 1), "noise_ratio": noise, "compared": len(found)}
    )
    return Finding(
        "not:kernel.backend_change", "info", 0.85,
        f"The {changes[0].scope} backend differs ({a}; {b}), but there is no slower run: every compared "
        f"value is within {abs(widest.ratio - 1):.1%} (run noise {noise:.0%}).",
        evidence=(Evidence(changes[0].second["source"], changes[0].second["where"], facts),),
    )  # fmt: skip

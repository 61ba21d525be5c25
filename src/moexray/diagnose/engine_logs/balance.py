"""Balancing of experts by its log: stuck, worth little, or dearer than what it gains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.analyse.arms import Arm, arms, time_ratio
from moexray.analyse.balance_lines import Balance, balances, countdowns
from moexray.analyse.engine_log import compilations
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.pattern import lazy
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["async_stuck", "little_to_gain", "rebalance_cost"]

ON = lazy(r"(?<![a-z])(?:on|with|enabled?|true|eplb|balanced|rebalanc\w*|rearrang\w*|1)(?![a-z])")
OFF = lazy(
    r"(?<![a-z])(?:off|no|without|w/o|disabled?|false|base|baseline|none|vanilla|default|0)(?![a-z])"
)


def async_stuck(run: Run, limits: Limits) -> list[Finding]:
    """ep.async_stuck: the countdown is negative and keeps falling, and nothing completes any more."""
    if _balances(run, None) is False:
        return []
    out = []
    for c in countdowns(run):
        if c.completed or len(c.lines) < limits.engine.stuck_lines:
            continue
        last = c.lines[-1]["fields"]["countdown"]
        balance = [r["fields"].get("balancedness") for r in c.lines]
        fell = [b for b in balance if isinstance(b, int | float)]
        drop = f", while balancedness went from {fell[0]:.2f} to {fell[-1]:.2f}" if len(fell) > 1 else ""
        sure = c.interval > 0 and -last >= limits.engine.overshoot * c.interval
        facts = {
            "counter_first": c.lines[0]["fields"]["countdown"], "counter_last": last, "lines": len(c.lines),
            "interval_steps": c.interval if c.interval > 0 else None,
        }  # fmt: skip
        out.append(
            Finding(
                "ep.async_stuck",
                "warn",
                0.9 if sure else 0.6,
                f"Balancing has stopped silently: the last {len(c.lines)} countdowns to the next "
                f"rearrangement are negative and keep falling ({facts['counter_first']} to {last} steps), "
                f"and no completion line follows{drop}.",
                Subject(rank=c.lines[-1]["rank"]),
                float(last),
                0.0,
                "count",
                (
                    Evidence(c.source, f"lines {c.lines[0]['line']}-{c.lines[-1]['line']}", pairs(facts)),
                    *(Evidence(c.source, r["where"], r["text"]) for r in (c.lines[0], c.lines[-1])),
                ),
                remedies=(remedy("eplb-restart"),),
            )
        )
    return out[:1]


def little_to_gain(run: Run, limits: Limits) -> list[Finding]:
    """ep.little_to_gain: the ceiling of balancing, up to the value after it, is below 5 % of MoE time."""
    e = limits.engine
    tested = arms(run)
    for b in balances(run):
        under_test = len(tested) > 1 and bool(b.moves)
        measured = b.after is not None and b.after - b.before > e.measured_change
        if not under_test and not (measured and len(b.moves) >= e.served_moves):
            continue
        goal = 1.0 if b.after is None else max(b.after, b.before)
        ceiling = 1 - b.before / goal
        if (
            ceiling >= e.little_gain
            or b.lowest < e.uneven
            or _uneven_layer(run, limits)
        ):
            continue
        return [_little(limits, b, goal, tested)]
    return []


def rebalance_cost(run: Run, limits: Limits) -> list[Finding]:
    """ep.rebalance_cost_exceeds_gain: with balancing it is slower, and a move costs more than it saves."""
    e = limits.engine
    tested = arms(run)
    for b in balances(run):
        pair = _on_and_off(run, tested, b)
        if not b.moves or pair is None:
            continue
        off, on = pair
        found = time_ratio(off, on)
        if found is None:
            continue
        ratio, differences = found
        noise = max(e.run_noise, *(d.noise for d in differences))
        if ratio - 1 <= noise or _other_owner(run, limits.engine.own_compiles):
            continue
        return _costs(b, ratio, differences[0].figure, (off, on))
    return []


def _little(limits: Limits, b: Balance, goal: float, tested: list[Arm]) -> Finding:
    ceiling, speedup = 1 - b.before / goal, goal / b.before - 1
    facts: dict[str, Any] = {
        "balancedness_before": round(b.before, 4),
        "balancedness_after": None if b.after is None else round(b.after, 4),
        "ceiling_ratio": ceiling, "speedup_ratio": speedup, "lines": b.lines, "moves": len(b.moves),
        "rebalance_s": b.cost_s, "interval_s": b.interval_s,
    }  # fmt: skip
    evidence = [Evidence(b.source, "balancedness lines", pairs(facts))]
    evidence += [Evidence(b.source, r["where"], r["text"]) for r in (b.first, b.last)]
    speed, confidence = "", 0.75
    if len(tested) == 2 and (found := time_ratio(*tested)):
        ratio, differences = found
        d = differences[0]
        if ratio < 1 - max(limits.engine.run_noise, d.noise):
            confidence = 0.5  # one run is faster: by what, the artefacts do not say
        speed = f" The two runs differ by {abs(ratio - 1):.1%} ({d.figure} {d.first:.6g} and {d.second:.6g})."
        for arm, value in zip(tested, (d.first, d.second), strict=True):
            evidence.append(Evidence(arm.rows[0]["source"], f"run {arm.label}", pairs({d.figure: value})))
    even = ""
    if b.cost_s and ceiling > 0:
        even = (
            f" A move takes {b.cost_s:.3g} s, so it pays only where moves are more than "
            f"{b.cost_s / ceiling:.0f} s of MoE time apart"
            f"{f' (here {b.interval_s:.0f} s of serving)' if b.interval_s else ''}."
        )
    reached = f"{b.after:.2f} after" if b.after is not None else "1 at best after"
    claim = (
        f"Expert load is nearly even: balancedness {b.before:.2f} before and {reached} balancing, so MoE "
        f"compute can gain at most {speedup:.1%}.{speed}{even}"
    )
    return Finding(
        "ep.little_to_gain", "info", confidence, claim,
        value=ceiling, limit=limits.engine.little_gain, unit="ratio",
        evidence=tuple(evidence), remedies=(remedy("look-elsewhere"), remedy("eplb-off")),
        settle_with=("per-expert token counts, from which balancedness can be recomputed",),
    )  # fmt: skip


def _costs(b: Balance, ratio: float, figure: str, pair: tuple[Arm, Arm]) -> list[Finding]:
    """The finding once the arm with balancing is slower beyond noise."""
    off, on = pair
    total = next((r["value"] for r in off.rows if r["figure"] == "duration_s"), None)
    span = total or (b.interval_s or 0.0) * len(b.moves)
    lost = (ratio - 1) * span
    per_move = lost / len(b.moves) if lost else None
    goal = b.after if b.after is not None and b.after > b.before else 1.0
    ceiling = 1 - b.before / goal
    gain = ceiling * (b.interval_s or span / (len(b.moves) + 1))
    cost = per_move or b.cost_s
    if cost is None or cost <= 0:
        return []
    certain = cost > gain
    facts = {
        "slowdown_ratio": ratio - 1, "moves": len(b.moves), "cost_per_move_s": cost, "rebalance_s": b.cost_s,
        "ceiling_ratio": ceiling, "gain_per_interval_s": gain, "interval_s": b.interval_s,
        "break_even_s": cost / ceiling if ceiling > 0 else None, "balancedness_before": b.before,
    }  # fmt: skip
    rate = f"{cost / ceiling:.0f} s of MoE time" if ceiling > 0 else "never"
    claim = (
        f"With balancing the run is {ratio - 1:.1%} slower ({figure}); each of {len(b.moves)} rearrangements "
        f"costs {cost:.3g} s, the best balance could save at most {gain:.3g} s between two of them "
        f"(balancedness {b.before:.2f}). Break-even interval: {rate}."
    )
    evidence = [Evidence(b.source, "balancedness and rearrangement lines", pairs(facts))]
    for arm in (off, on):
        r = next(r for r in arm.rows if r["figure"] == figure)
        evidence.append(Evidence(r["source"], r["where"], pairs({"run": arm.label, figure: r["value"]})))
    return [
        Finding(
            "ep.rebalance_cost_exceeds_gain", "warn", 0.85 if certain else 0.6, claim,
            value=cost, limit=gain, unit="s", evidence=tuple(evidence),
            remedies=(
                remedy("eplb-interval", by=f": break-even at {rate}" if ceiling > 0 else ""),
                remedy("eplb-async"), remedy("eplb-off"),
            ),
            settle_with=() if certain else ("the share of MoE compute in a step (trace)",), cost=lost,
        )
    ]  # fmt: skip


def _on_and_off(run: Run, tested: Sequence[Arm], b: Balance) -> tuple[Arm, Arm] | None:
    """(off, on): by the arms' labels, by launch lines, or by the folder that the log shares with a run."""
    if len(tested) != 2:
        return None
    first, second = tested
    if first.named:
        marks = [_is_on(first.label), _is_on(second.label)]
    else:
        marks = [_balances(run, first.sources), _balances(run, second.sources)]
        if marks == [None, None]:
            folder = b.source.rpartition("/")[0]
            inside = [any(s.rpartition("/")[0] == folder for s in a.sources) for a in tested]
            marks = [True if i and not j else None for i, j in (inside, inside[::-1])]
    if marks[0] is True and marks[1] is not True:
        return second, first
    if marks[1] is True and marks[0] is not True:
        return first, second
    return None


def _is_on(label: str) -> bool | None:
    low = label.lower().replace("_", " ").replace("-", " ")
    if OFF.search(low):
        return False
    return True if ON.search(low) else None


def _balances(run: Run, sources: frozenset[str] | None) -> bool | None:
    """Whether the launch lines (of these files) switch balancing on or off; None if they do not say."""
    for r in run.rows("launch"):
        if (sources is None or r["source"] in sources) and r["key"] in ("enable_eplb", "no_enable_eplb"):
            on = str(r["value"]).lower() not in ("false", "0")
            return on != str(r["key"]).startswith("no_")
    return None


def _other_owner(run: Run, own_compiles: int) -> bool:
    """Compilation while serving or preemption, either of which may own a slowdown."""
    compiled = sum(1 for c in compilations(run) if c.serving)
    preempted = any(r["kind"] == "sched.preempt" for r in run.rows("log"))
    return compiled >= own_compiles or preempted


def _uneven_layer(run: Run, limits: Limits) -> bool:
    """Whether counts beside the log show a layer that balancing could help, with its share of the tokens."""
    if not run.batches("counts"):
        return False
    from moexray.analyse import routing, routing_ranks

    for load in routing.loads(run, limits.routing.dummy_run)[0]:
        ranks, _ = routing_ranks.ep_size(run, load)
        placed = routing_ranks.to_ranks(run, load, ranks) if ranks else None
        if placed is None:
            continue
        layers = routing_ranks.layer_balance(placed, 0.0)
        total = sum(float(x.loads.sum()) for x in layers)
        most = [x for x in layers if float(x.loads.sum()) > limits.engine.token_share * total]
        if any(x.balancedness < limits.engine.uneven for x in most):
            return True
    return False

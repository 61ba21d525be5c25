"""What an engine's own figure of balance is worth where there are no counts; without numpy."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING

from moexray.analyse.stated_ep import stated_ep
from moexray.core.finding import Evidence, Finding, Subject
from moexray.core.pattern import lazy
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["balance_lines", "parts", "skew_by_log", "value_of", "wrong_axis_by_version"]

FIXED = (0, 31)  # vLLM pull request 51813, August 2026; which release first holds it is not confirmed
ROUNDING = 0.005  # of a value printed with two decimals
MOST_PARTS = 48  # beyond, two decimals cannot tell one part from the next
LUCK = 1e-3  # chance that values that are no such multiples look like it
_VLLM = lazy(r"\b(?:vllm|V[01] LLM engine)\b[^\d\n]{0,24}?v?(\d+)\.(\d+)", re.IGNORECASE)


def value_of(row: Row, key: str) -> float | None:
    """A number among the fields of a log row."""
    value = (row["fields"] or {}).get(key)
    return float(value) if isinstance(value, int | float) else None


def balance_lines(run: Run) -> list[Row]:
    """Balance lines of vLLM, dummy batches left out."""
    return [
        row for row in run.rows("log")
        if row["kind"] == "eplb.balance" and value_of(row, "balancedness") and value_of(row, "avg_tokens")
        and not row["fields"].get("dummy")
    ]  # fmt: skip


def wrong_axis_by_version(run: Run, limits: Limits) -> list[Finding]:
    """Without counts only the version and the averages speak, as a hypothesis.

    A low figure of a build before the fix may be wrong; a high one is no symptom. But a mean over ranks
    is a whole number of tokens over the EP size: averages that are sixths are no means over 8 ranks.
    """
    lines = balance_lines(run)
    figures = [value_of(row, "balancedness") or 1.0 for row in lines]
    version, fixed = _version(run)
    if not figures or fixed or run.batches("counts") or run.batches("routes"):
        return []
    part = parts([value_of(row, "avg_tokens") or 0.0 for row in lines])
    ep, where = stated_ep(run)
    odd = bool(ep % part) if ep else part & (part - 1) != 0
    if odd:
        ranks = f"the {ep} EP ranks ({where})" if ep else "2, 4, 8, ... EP ranks"
        claim = (
            f"Do not trust the logged balancedness (median {median(figures):.3f}): avg_tokens are whole "
            f"multiples of 1/{part} in all {len(lines)} lines, which a mean over {ranks} does not give and a "
            f"mean over layers does, as builds of vLLM before August 2026 take it. A rank that is hot in "
            f"every layer does not show in it."
        )
    elif version and min(figures) < limits.routing.balancedness:
        claim = (
            f"Do not trust the logged balancedness: older builds of vLLM (here {version[0]}; the fix is "
            "reported for August 2026) take it over layers, not ranks, and there are no counts to check it."
        )
    else:
        return []
    quoted = [Evidence(lines[0]["source"], lines[0]["where"], lines[0]["text"])]
    if version:
        quoted.append(Evidence(version[1]["source"], version[1]["where"], str(version[1]["text"])))
    return [Finding(
        "ep.metric_wrong_axis", "info", 0.45, claim, Subject(), value_of(lines[0], "balancedness"), None,
        "ratio", tuple(quoted), remedies=(remedy("recompute-balance"),),
        settle_with=("tokens per EP rank and layer (expert load dump)", *(() if ep else ("EP size",))),
    )]  # fmt: skip


def _version(run: Run) -> tuple[tuple[str, Row] | None, bool]:
    """The version of vLLM as it is told, with its row, if before the fix; whether it is a later one."""
    for row in (*run.rows("log"), *run.rows("launch")):
        if m := _VLLM.search(str(row.get("text") or "")):
            fixed = (int(m[1]), int(m[2])) >= FIXED
            return (None if fixed else (m[0].strip(), row)), fixed
    return None, False


def parts(values: list[float]) -> int:
    """The smallest n such that all values, printed with two decimals, are whole multiples of 1/n.

    Returns:
        1 where they are whole, and where so many values would fit n by chance.
    """
    different = set(values)
    for n in range(1, MOST_PARTS + 1):
        slack = ROUNDING * n + 1e-6
        if all(abs(v * n - round(v * n)) <= slack for v in different):
            by_luck = (2 * slack) ** len(different) * MOST_PARTS
            return n if n > 1 and by_luck < LUCK else 1
    return 1


def skew_by_log(run: Run, limits: Limits) -> list[Finding]:
    """ep.skew as a hypothesis: an engine that takes its figure over ranks logs a low one all the time."""
    r = limits.routing
    lines = [
        row for row in run.rows("log")
        if row["kind"] == "eplb.balance" and value_of(row, "balancedness") and row["phase"] != "startup"
        and not value_of(row, "avg_tokens") and not row["fields"].get("dummy")
    ]  # fmt: skip
    if len(lines) < r.log_lines or run.batches("counts") or run.batches("routes"):
        return []
    typical = float(median([value_of(row, "balancedness") or 1.0 for row in lines]))
    if typical >= r.balancedness:
        return []
    claim = (
        f"The engine logs a balancedness of {typical:.3f} in the median of {len(lines)} passes; without "
        f"tokens per rank it cannot be said which layer and rank are hot or whether passes are large."
    )
    last = lines[-1]
    return [Finding(
        "ep.skew", "info", 0.45, claim, Subject(), typical, r.balancedness, "ratio",
        (Evidence(last["source"], last["where"], last["text"]),),
        settle_with=("tokens per EP rank and layer (expert distribution record)",),
    )]  # fmt: skip

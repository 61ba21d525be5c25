"""What an engine's own figure of balance is worth where there are no counts; without numpy."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING

from moexray.core.finding import Evidence, Finding, Subject
from moexray.core.pattern import lazy
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["balance_lines", "skew_by_log", "value_of", "wrong_axis_by_version"]

FIXED = (0, 31)  # vLLM pull request 51813, August 2026; which release first holds it is not confirmed
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
    """Without counts only the version speaks, as a hypothesis; a high figure is no symptom."""
    lines = balance_lines(run)
    figures = [value_of(row, "balancedness") or 1.0 for row in lines]
    alarming = bool(figures) and min(figures) < limits.routing.balancedness
    if not alarming or run.batches("counts") or run.batches("routes"):
        return []
    for row in (*run.rows("log"), *run.rows("launch")):
        text = str(row.get("text") or "")
        m = _VLLM.search(text)
        if m is None or (int(m[1]), int(m[2])) >= FIXED:
            continue
        claim = (
            f"Do not trust the logged balancedness: older builds of vLLM (here {m[0].strip()}; the fix is "
            "reported for August 2026) take it over layers, not ranks, and there are no counts to check it."
        )
        quoted = (Evidence(lines[0]["source"], lines[0]["where"], lines[0]["text"]),
                  Evidence(row["source"], row["where"], text))  # fmt: skip
        return [Finding(
            "ep.metric_wrong_axis", "info", 0.45, claim, Subject(), value_of(lines[0], "balancedness"), None,
            "ratio", quoted, remedies=(remedy("recompute-balance"),),
            settle_with=("tokens per EP rank and layer (expert load dump)",),
        )]  # fmt: skip
    return []


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

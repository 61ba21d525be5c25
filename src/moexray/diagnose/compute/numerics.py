"""num.precision_regression and num.batch_variance: answers that depend on a setting or on the batch."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from moexray.analyse.numerics import arms, difference_error, largest_difference
from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.pattern import lazy
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.analyse.numerics import Arm
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["batch_variance", "precision_regression"]

SHOWN = 6
PRECISION = lazy(r"accura|degrad|numeric|quality", re.IGNORECASE)


def precision_regression(run: Run, limits: Limits) -> list[Finding]:
    """The mean score of one arm lies more than three standard errors below another's."""
    found = arms(run.rows("scores"))
    contradiction = _contradiction(run)
    best: tuple[float, Finding] | None = None
    for a, b in itertools.combinations(found, 2):
        if (a.scope, a.set) != (b.scope, b.set):
            continue
        low, high = (a, b) if a.mean < b.mean else (b, a)
        error = difference_error(low, high)
        drop = high.mean - low.mean
        if not error or drop <= limits.requests.score_errors * error:
            continue
        if best is None or drop / error > best[0]:
            best = (drop / error, _regression(low, high, error, found, contradiction))
    if best:
        return [best[1]]
    return _only_log(contradiction) if not found else []


def _regression(
    low: Arm, high: Arm, error: float, found: list[Arm], contradiction: tuple[Row, Row] | None
) -> Finding:
    drop = high.mean - low.mean
    single = len(low.scores) == 1 or len(high.scores) == 1
    runs = f"{len(low.scores)} + {len(high.scores)} runs"
    asked = f" of {low.questions} questions" if low.questions else ""
    claim = (
        f"{low.name} scores {low.mean:.4f} against {high.mean:.4f} of {high.name}: {drop * 100:.1f} points "
        f"lower over "
        f"{runs}{asked}, {drop / error:.1f} standard errors of {error * 100:.2f} points."
    )
    evidence = [
        Evidence(
            a.source,
            f"{a.set}, {a.name}" if a.set else a.name,
            pairs({"mean": round(a.mean, 6), "runs": len(a.scores), "questions": a.questions})
            + " scores="
            + ",".join(f"{s:.6g}" for s in a.scores[:SHOWN]),
        )
        for a in sorted(found, key=lambda x: x not in (low, high))[:SHOWN]
    ]
    evidence.insert(0, Evidence(low.source, low.where, pairs({"drop": round(drop, 6), "error": error})))
    remedies = [remedy("num-pin-precision", arm=low.name)]
    if contradiction:
        off, on = contradiction
        claim += (
            f" The log switches {_backend(off)} off and then chooses {_backend(on)} for the MoE layers "
            "all the same."
        )
        evidence += [Evidence(r["source"], r["where"], r["text"]) for r in contradiction]
        remedies.insert(0, remedy("num-fix-backend", backend=_backend(off)))
    return Finding(
        "num.precision_regression",
        "error",
        0.75 if single else 0.93,
        claim,
        value=drop,
        limit=3 * error,
        unit="ratio",
        evidence=tuple(evidence),
        remedies=tuple(remedies),
        settle_with=("more runs per arm",) if single else (),
        cost=drop,
    )


def _backend(row: Row) -> str:
    return str((row["fields"] or {}).get("backend", ""))


def _contradiction(run: Run) -> tuple[Row, Row] | None:
    """A backend that one start-up line switches off and another one chooses."""
    rows = run.rows("log")
    off = [r for r in rows if r["kind"] == "backend.off" and _backend(r)]
    for a in off:
        for b in rows:
            same = _backend(a).lower().replace("_", "") == _backend(b).lower().replace("_", "")
            if b["kind"] == "backend" and b["source"] == a["source"] and same:
                return a, b
    return None


def _only_log(contradiction: tuple[Row, Row] | None) -> list[Finding]:
    """Contradicting lines alone: whether answers suffer, only scores can tell."""
    if contradiction is None or not PRECISION.search(contradiction[0]["text"]):
        return []
    off, on = contradiction
    claim = (
        f"The log switches {_backend(off)} off for its accuracy and then chooses {_backend(on)} all the "
        f"same; whether "
        "answers suffer cannot be told from it."
    )
    return [
        Finding(
            "num.precision_regression",
            "info",
            0.45,
            claim,
            evidence=tuple(Evidence(r["source"], r["where"], r["text"]) for r in contradiction),
            remedies=(remedy("num-fix-backend", backend=_backend(off)),),
            settle_with=("scores of repeated runs with and without that backend",),
        )
    ]


def batch_variance(run: Run, limits: Limits) -> list[Finding]:  # noqa: ARG001
    """The same prompt gives other numbers in another batch, with greedy choice."""
    return _from_test(run) or _from_logprobs(run)


def _from_test(run: Run) -> list[Finding]:
    rows = run.rows("mismatch")
    bad = [r for r in rows if r["passed"] is False]
    if not bad or any((r["temperature"] or 0) > 0 for r in rows):
        return []
    largest = max(bad, key=lambda r: r["diff"] or 0.0)
    same = [r["same_tokens"] for r in bad if r["same_tokens"] is not None]
    tokens = ""
    if same:
        tokens = ", tokens equal so far" if all(same) else f", other tokens in {same.count(False)} of them"
    size = f" by up to {largest['diff']:.3g}" if largest["diff"] else ""
    claim = (
        f"{len(bad)} of {len(rows)} prompts differ bitwise between batches{size}{tokens}: not batch "
        f"invariant. "
        "Without the invariant mode this is expected; with it, look at the combine step (reduce-scatter)."
    )
    facts = {
        "failed": len(bad),
        "compared": len(rows),
        "max_diff": largest["diff"],
        "same_tokens": all(same) if same else None,
    }
    evidence = [Evidence(largest["source"], largest["where"], f"{largest['text'].strip()} {pairs(facts)}")]
    evidence += [
        Evidence(r["source"], r["where"], r["text"].strip()) for r in bad[:SHOWN] if r is not largest
    ]
    return [
        Finding(
            "num.batch_variance",
            "warn",
            0.9,
            claim,
            value=largest["diff"],
            limit=0.0,
            evidence=tuple(evidence),
            remedies=(remedy("num-batch-invariant"),),
            cost=largest["diff"] or 0.0,
        )
    ]


def _from_logprobs(run: Run) -> list[Finding]:
    rows = run.rows("logprobs")
    found = None if any((r["temperature"] or 0) > 0 for r in rows) else largest_difference(rows)
    if found is None or not found[1]:
        return []
    diff, differ, compared, a, b = found
    claim = (
        f"{differ} of {compared} prompts have other log-probabilities in another batch (largest difference "
        f"{diff:.3g}, "
        f"{a['arm']} against {b['arm']}): not batch invariant."
    )
    facts = {"max_diff": diff, "differ": differ, "compared": compared}
    return [
        Finding(
            "num.batch_variance",
            "warn",
            0.85,
            claim,
            value=diff,
            limit=0.0,
            evidence=(
                Evidence(a["source"], a["where"], pairs(facts)),
                *(
                    Evidence(r["source"], r["where"], ",".join(f"{v:.9g}" for v in r["values"][:SHOWN]))
                    for r in (a, b)
                ),
            ),
            remedies=(remedy("num-batch-invariant"),),
            settle_with=("the sampling settings of the runs",),
            cost=diff,
        )
    ]

"""Runs the rules over a Run and makes the diagnosis document."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from moexray.core.json_text import finite
from moexray.core.limits import Limits
from moexray.core.redact import redact
from moexray.diagnose import EXHIBITS, RULES
from moexray.diagnose.chain import link, order, unique
from moexray.diagnose.inputs import problems_to_findings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moexray.core.finding import Finding
    from moexray.core.run import Run

__all__ = ["SCHEMA", "Diagnosis", "diagnose"]

SCHEMA = "moexray.diagnosis/1"
COUPLE = "moexray.diagnose.coupling:couple"
RETIME = "moexray.diagnose.counterfactual:add_counterfactuals"
QUOTE_LIMIT = 2000  # characters of a quoted line that we keep


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings in order, what was ruled out, and the tables to show beside them.

    `failures` names rules that broke: faults of ours, told, and never in the way of the others.
    """

    run: Run
    findings: tuple[Finding, ...]
    ruled_out: tuple[Finding, ...] = ()
    exhibits: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Id of the top finding, or "none"."""
        return self.findings[0].id if self.findings else "none"

    def to_json(self) -> dict[str, Any]:
        """The document that `--format json` prints."""
        run = self.run
        out: dict[str, Any] = {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "findings": [f.to_json() for f in self.findings],
            "inputs": [
                {"path": i.path, "reader": i.reader, "rows": i.rows, "notes": list(i.notes)}
                for i in run.inputs
            ],
            "skipped": [{"path": s.path, "reason": s.reason} for s in run.skipped],
            "ruled_out": [f.to_json() for f in self.ruled_out],
            "chain": [
                {"from": cause, "to": f.id, "text": ""} for f in self.findings for cause in f.implied_by
            ],
        }
        if self.failures:
            out["failures"] = list(self.failures)
        whole: dict[str, Any] = finite({**out, **{k: v for k, v in self.exhibits.items() if v}})
        return whole


def diagnose(
    run: Run, limits: Limits | None = None, *, secrets: bool = False, exhibits: bool = True
) -> Diagnosis:
    """Applies every rule whose tables are there.

    Args:
        run: What was read.
        limits: Thresholds; defaults where None.
        secrets: Quote evidence without redaction.
        exhibits: Also make the tables that are shown beside the findings.

    Returns:
        The diagnosis; findings whose severity is set by `ruled_out=` rules never appear in it.
    """
    limits = limits or Limits()
    failures: list[str] = []
    said: list[Finding] = list(problems_to_findings(run))
    for rule in RULES:
        if run.present.intersection(rule.needs):
            said += _call(failures, rule.function, run, limits)
    negative = tuple(f for f in said if f.id.startswith("not:"))
    positive = unique(f for f in said if not f.id.startswith("not:"))
    # Of a digest (analyse/digest) the inside of a step is not known.
    timed = "trace" in run.present and not any(b.attrs.get("digest") for b in run.batches("trace"))
    if timed:
        positive = _call(failures, COUPLE, run, positive) or positive
    positive = link(positive)  # once: a rule that named causes, none of them found, meant just these
    if timed:
        positive = _call(failures, RETIME, run, positive) or positive
    positive = order(positive)
    shown: dict[str, list[dict[str, Any]]] = {}
    for exhibit in EXHIBITS if exhibits else ():
        if run.present.intersection(exhibit.needs):
            shown.setdefault(exhibit.name, []).extend(_call(failures, exhibit.function, run))
    return Diagnosis(
        run,
        tuple(_quote(f, secrets=secrets) for f in positive),
        tuple(_quote(replace(f, id=f.id.removeprefix("not:")), secrets=secrets) for f in negative),
        shown,
        tuple(failures),
    )


def _call(failures: list[str], function: str, *args: Any) -> list[Any]:
    """Calls "module:function"; what it raises is told, and the other rules go on."""
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    try:
        return list(call(*args))
    except Exception as why:  # noqa: BLE001  # one broken rule must not cost the other findings
        failures.append(f"{function} failed ({type(why).__name__}: {why}); please report this")
        return []


def _quote(f: Finding, *, secrets: bool) -> Finding:
    """Bounds and redacts what is quoted."""
    clean = (lambda text: text) if secrets else redact
    quoted = tuple(
        replace(e, text=clean(e.text[:QUOTE_LIMIT]), where=clean(e.where[:QUOTE_LIMIT])) for e in f.evidence
    )
    fixes = tuple(replace(r, action=clean(r.action), caveats=clean(r.caveats)) for r in f.remedies)
    settle = tuple(clean(s) for s in f.settle_with)
    return replace(f, claim=clean(f.claim), evidence=quoted, remedies=fixes, settle_with=settle)

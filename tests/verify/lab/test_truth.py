from __future__ import annotations

import numpy as np
import pytest

from moexray.verify.lab.cluster import Measured
from moexray.verify.lab.traffic import Traffic
from moexray.verify.lab.truth import judge, truth_of


def recorded() -> Measured:
    steps = np.arange(10, dtype=np.int64)
    rows = np.tile(np.array([[30, 10]]), (10, 2, 1))
    none = np.zeros(10)
    return Measured(steps, steps + 1, none, none, none, none[:, None], none[:, None], rows, rows[:, 0], rows[:, 0])


def finding(id: str, rank: int | None = None, implied_by: tuple[str, ...] = (), severity: str = "warn") -> dict:
    return {"id": id, "severity": severity, "confidence": 0.9, "subject": {"rank": rank},
            "implied_by": list(implied_by)}  # fmt: skip


def judged(incident: str, *findings: dict) -> dict:
    truth = truth_of(incident, "ep", Traffic.of(0), recorded(), 4)
    verdict = findings[0]["id"] if findings else "none"
    return judge({"verdict": verdict, "findings": list(findings)}, truth)


DRIFT, SKEW = finding("ep.drift"), finding("ep.skew", 0, ("ep.drift",))
LATE = finding("comm.straggler_wait", 1)
HOLES = finding("mem.fragmentation", 0)
LINKED = finding("mem.fragmentation", 0, ("ep.skew",))


@pytest.mark.parametrize(("incident", "findings"), [
    ("frag", (HOLES,)), ("frag", (finding("mem.fragmentation", 1),)), ("skew", (DRIFT, SKEW)),
    ("late", (LATE,)), ("both", (DRIFT, SKEW, LINKED)), ("both", (LINKED, DRIFT, SKEW)),
])  # fmt: skip
def test_planted_causes_that_are_named_are_right(incident, findings):
    assert judged(incident, *findings) == {"named_right": True, "wrong": []}


@pytest.mark.parametrize(("incident", "findings", "missed"), [
    ("frag", (), "the verdict is none"),
    ("late", (finding("comm.straggler_wait", 0),), "a peer that comes late was not named"),
    ("late", (finding("comm.slow_transfer"), LATE), "the verdict is comm.slow_transfer"),
    ("frag", (HOLES, DRIFT), "ep.drift was named and not planted"),
    ("skew", (DRIFT,), "hot experts on one rank was not named"),
    ("skew", (finding("ep.skew", 1),), "was not named"),
    ("both", (DRIFT, SKEW, HOLES), "was not named as a cause"),
    ("both", (DRIFT, SKEW, finding("mem.fragmentation", 1, ("ep.skew",))), "was not named as a cause"),
    ("both", (finding("comm.slow_transfer"), DRIFT, SKEW, LINKED), "the verdict is comm.slow_transfer"),
    ("frag", (finding("mem.fragmentation", 0, severity="info"),), "was not named"),
])  # fmt: skip
def test_what_is_missed_or_made_up_is_told(incident, findings, missed):
    told = judged(incident, *findings)
    assert not told["named_right"]
    assert missed in "; ".join(told["wrong"])


def test_the_truth_gives_onset_and_modes():
    truth = truth_of("both", "ep", Traffic.of(0), recorded(), 4)
    assert truth["onset"]["step"] == 4
    assert [m["mode"] for m in truth["modes"]] == ["usual", "both"]
    assert truth["modes"][0]["to_ns"] == truth["modes"][1]["from_ns"]
    assert truth["rows_max_to_mean"] == [1.5, 1.5]

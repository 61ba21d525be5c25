from __future__ import annotations

import importlib

import pytest

from moexray.core.finding import Finding, Subject
from moexray.core.verdicts import VERDICTS
from moexray.diagnose import EXHIBITS, RULES
from moexray.diagnose.chain import CAUSED_BY, link, order, unique


def f(id, severity="warn", confidence=0.9, **more):
    return Finding(id, severity, confidence, id, **more)


def ids(findings):
    return [x.id for x in findings]


def test_the_root_cause_comes_before_a_graver_consequence():
    found = order(link([f("comm.straggler_wait", "error"), f("mem.alloc_stall"), f("mem.fragmentation")]))
    assert ids(found) == ["mem.fragmentation", "mem.alloc_stall", "comm.straggler_wait"]
    assert found[1].implied_by == ("mem.fragmentation",)


def test_causes_that_were_not_found_are_dropped():
    [one] = link([f("comm.straggler_wait", implied_by=("ep.skew",))])
    assert one.implied_by == ()


def test_what_stops_one_rank_does_not_make_another_late():
    late = f("comm.straggler_wait", subject=Subject(rank=0))
    other = f("host.gc_pause", subject=Subject(rank=1))
    assert link([late, other])[0].implied_by == ()
    assert link([late, f("host.gc_pause", subject=Subject(rank=0))])[0].implied_by == ("host.gc_pause",)
    assert link([late, f("host.gc_pause")])[0].implied_by == ("host.gc_pause",)
    waits = f("comm.timeout_near", subject=Subject(rank=2))
    assert link([waits, late])[0].implied_by == ("comm.straggler_wait",)


def test_statements_about_inputs_lead_only_when_the_system_is_sound():
    assert ids(order(link([f("input.truncated", "error"), f("mem.x", "warn")]))) == ["mem.x", "input.truncated"]
    assert ids(order(link([f("mem.x", "info"), f("input.truncated", "warn")]))) == ["input.truncated", "mem.x"]


def test_cannot_tell_comes_last_and_causes_nothing():
    found = order(link([f("ep.skew", "info", 0.3), f("comm.straggler_wait", "info", 0.9)]))
    assert ids(found) == ["comm.straggler_wait", "ep.skew"]
    assert found[0].implied_by == ()


def test_then_severity_confidence_and_cost():
    found = order([f("mem.a", cost=1.0), f("mem.b", cost=2.0), f("mem.c", "error", 0.6), f("mem.d", "warn", 0.95)])
    assert ids(found) == ["mem.c", "mem.d", "mem.b", "mem.a"]


def test_a_mild_root_of_a_grave_consequence_leads():
    found = order([f("mem.b", "error", implied_by=("mem.a",)), f("mem.c", "warn", 0.99), f("mem.a", "info")])
    assert ids(found) == ["mem.a", "mem.b", "mem.c"]


def test_of_two_causes_the_one_that_explains_more_leads():
    effect = f("comm.c", implied_by=("mem.b", "ep.a"))
    root = [f("mem.b", implied_by=("mem.r",)), f("mem.r", confidence=0.9), f("ep.a", confidence=0.95)]
    assert ids(order([effect, *root])) == ["mem.r", "mem.b", "ep.a", "comm.c"]


def test_one_finding_per_id_and_subject():
    found = unique([f("mem.a", confidence=0.6), f("mem.a"), f("mem.a", subject=Subject(device=1))])
    assert [x.confidence for x in found] == [0.9, 0.9]


def test_a_circle_of_causes_ends():
    assert len(order([f("mem.a", implied_by=("mem.b",)), f("mem.b", implied_by=("mem.a",))])) == 2


@pytest.mark.parametrize("entry", [*RULES, *EXHIBITS], ids=lambda e: e.function)
def test_every_listed_function_exists(entry):
    module, _, name = entry.function.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_every_id_of_a_rule_and_of_a_chain_is_in_the_catalogue():
    known = {v.id for v in VERDICTS}
    said = {id for r in RULES for id in r.ids} | set(CAUSED_BY) | {c for v in CAUSED_BY.values() for c in v}
    assert said - known == set()

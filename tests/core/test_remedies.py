"""The catalogue of remedies: each is reversible; each that is a call leads to one and says how to verify."""

import importlib
import re

import pytest
from click.testing import CliRunner

from moexray.core.remedies import REMEDIES
from moexray.core.verdicts import VERDICTS
from moexray.faces.cli.main import main

CALLS = [r for r in REMEDIES if r.call]


def test_ids_are_unique_and_each_remedy_can_be_undone():
    ids = [r.id for r in REMEDIES]
    assert len(set(ids)) == len(ids)
    assert all(r.action and r.undo for r in REMEDIES)


@pytest.mark.parametrize("remedy", CALLS, ids=[r.id for r in CALLS])
def test_a_call_leads_to_something_that_can_be_called(remedy):
    pytest.importorskip("torch")
    found = re.match(r"(moexray\.runtime(?:\.\w+)*)\.(\w+)\(", remedy.call)
    assert found, remedy.call
    assert callable(getattr(importlib.import_module(found[1]), found[2]))
    assert remedy.needs
    assert remedy.verify


def test_a_router_policy_that_a_remedy_names_exists():
    from moexray.runtime.policies import parse

    named = [m[1] for r in CALLS if (m := re.search(r'router\.attach\(model, "([^"]+)"\)', r.call))]
    assert named
    for text in named:
        parse(text)()


def test_verdicts_name_calls_and_each_call_has_a_verdict():
    named = {id for v in VERDICTS for id in v.remedies}
    assert named == {r.id for r in CALLS}


def test_explain_tells_the_call_its_conditions_and_its_undo():
    text = CliRunner().invoke(main, ["explain", "ep.skew"]).output
    assert 'call:    moexray.runtime.router.attach(model, "bias:rate=0.02")' in text
    for title in ("first", "mind", "verify", "undo"):
        assert f"\n  {title}:" in text
    assert "MOEXRAY_OFF=router" in text
    assert "call:" not in CliRunner().invoke(main, ["explain", "ep.metric_wrong_axis"]).output

"""The catalogue of remedies: each is reversible; each that is a call leads to one and says how to verify."""

import importlib
import re
from dataclasses import fields
from pathlib import Path

import pytest
from click import Group
from click.testing import CliRunner

from moexray.core.remedies import REMEDIES
from moexray.core.remedies.checks import CHECKS
from moexray.core.verdicts import VERDICTS
from moexray.faces.cli.main import main

CALLS = [r for r in REMEDIES if r.call]
SWITCHES = {"router", "exchange", "buffers", "arena", "experts", "rescheduler", "gc-window", "zero-copy"}


def test_ids_are_unique_and_each_remedy_can_be_undone():
    ids = [r.id for r in REMEDIES]
    assert len(set(ids)) == len(ids)
    assert all(r.action and r.undo for r in REMEDIES)


# What a call gives, or consists of: the objects whose methods the texts name.
OBJECTS = {
    "router-policy": ("router:RouterHandle",),
    "comm-host-exchange": ("exchange.attach:ExchangeHandle",),
    "host-freeze-gc": ("gc_window:GcWindow",),
    "snapshot-pooled-buffer": ("buffers:BufferPool", "handle:Handle"),
    "snapshot-batch-small": ("buffers:BufferPool", "handle:Handle"),
    "snapshot-move-pins": ("arena:Arena", "arena:ExpertSlots", "arena:Pages"),
    "leave-headroom": ("rescheduler:Rescheduler",),
    "smaller-host-buffers": ("zero_copy:Port", "zero_copy:Parcel"),
}
# Methods and functions of others that the texts name.
FOREIGN = {"torch.cuda.memory_stats", "gc.collect", "gc.freeze", "gc.unfreeze"}


@pytest.mark.parametrize("remedy", CALLS, ids=[r.id for r in CALLS])
def test_a_call_leads_to_something_that_can_be_called_undone_and_switched_off(remedy):
    pytest.importorskip("torch")
    found = re.match(r"(moexray\.runtime(?:\.[a-z_]+)*)\.(\w+)[(.]", remedy.call)
    assert found, remedy.call
    assert callable(getattr(importlib.import_module(found[1]), found[2]))
    assert remedy.needs
    assert remedy.verify
    objects = []
    for path in OBJECTS[remedy.id]:
        module, _, name = path.partition(":")
        objects.append(getattr(importlib.import_module(f"moexray.runtime.{module}"), name))
    told = set(re.findall(r"([\w.]+)\(", f"{remedy.call} {remedy.verify} {remedy.undo}")) - FOREIGN
    for name in (n.rpartition(".")[2] for n in told if not n.startswith("moexray.")):
        known = [o for o in objects if hasattr(o, name) or o.__name__ == name]
        assert known or name == "Options", f"{remedy.id} names {name}(), which is nowhere"
    assert re.search(r"\b(detach|free|close|look|send)\(", remedy.undo)
    switch = re.search(r"MOEXRAY_OFF=([\w,-]+)", remedy.undo)
    assert switch, remedy.undo
    assert set(switch[1].split(",")) <= SWITCHES


def test_each_remedy_that_changes_something_says_how_to_verify_it():
    ids = [id for check in CHECKS for id in check.remedies]
    assert len(ids) == len(set(ids))
    own = {r.id for r in CALLS}
    assert set(ids) <= {r.id for r in REMEDIES} - own
    without = [r for r in REMEDIES if not r.verify]
    assert [r.id for r in without if not re.match(r"Nothing (was|is) changed|Unset", r.undo)] == []
    assert len({check.text for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert "{" not in check.text  # `remedy` fills in nothing there


def test_verdicts_and_metrics_that_a_check_names_exist():
    from moexray.live.metrics import METRICS

    known = {v.id for v in VERDICTS}
    families = "|".join({id.partition(".")[0] for id in known})
    texts = " ".join(r.verify for r in REMEDIES)
    named = set(re.findall(rf"\b(?:{families})\.\w+", texts)) - {"torch.cuda"}
    assert len(named) > 15
    assert named <= known
    metrics = set(re.findall(r"\bmoex_\w+", texts))
    assert len(metrics) >= 2
    assert metrics <= {m.name for m in METRICS}


def test_benchmarks_that_verify_a_remedy_exist():
    named = {path for r in REMEDIES for path in re.findall(r"benchmarks/\w+\.py", r.verify)}
    assert len(named) >= 4
    root = Path(__file__).parents[2]
    assert all((root / path).is_file() for path in named)


def test_a_kill_switch_that_a_remedy_names_switches_something_off(monkeypatch):
    from moexray.runtime.arena import Arena, ExpertSlots
    from moexray.runtime.buffers import BufferPool
    from moexray.runtime.gc_window import GcWindow
    from moexray.runtime.rescheduler import Rescheduler
    from moexray.runtime.router import RouterHandle
    from moexray.runtime.zero_copy import Port

    monkeypatch.setenv("MOEXRAY_OFF", ",".join(SWITCHES))
    made = [Arena(4096), BufferPool(), GcWindow(), Rescheduler(9, bool), RouterHandle(None, None), *Port.pair()]
    made.append(ExpertSlots(made[0], slots=1, slot_bytes=16))
    assert {one.guard.name for one in made} | {"exchange"} == SWITCHES
    assert not any(one.guard.on for one in made)
    for port in made[5:7]:
        port.close()


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


@pytest.mark.parametrize("remedy", CALLS, ids=[r.id for r in CALLS])
def test_explain_tells_all_of_a_remedy_under_each_verdict_and_by_its_own_id(remedy):
    verdicts = [v.id for v in VERDICTS if remedy.id in v.remedies]
    for id in (remedy.id, *verdicts):
        done = CliRunner().invoke(main, ["explain", id])
        assert done.exit_code == 0
        text = " ".join(done.output.split())
        for part in (remedy.call, remedy.needs, remedy.verify, remedy.undo):
            assert " ".join(part.split()) in text
    assert f"for: {', '.join(verdicts)}" in " ".join(CliRunner().invoke(main, ["explain", remedy.id]).output.split())


def commands_in(value):
    """The words after `moexray` in every text of a remedy or verdict, as a shell would get them."""
    texts = [part for f in fields(value) for part in _texts(getattr(value, f.name))]
    return [m for text in texts for m in re.findall(r"`?\bmoexray ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", text)]


def _texts(value):
    if isinstance(value, tuple):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []


def test_every_command_that_a_text_names_exists():
    told = {pair for entry in (*REMEDIES, *VERDICTS) for pair in commands_in(entry)}
    verbs = {"does", "failed", "raises"}  # moexray as the subject of a sentence
    said = {pair for pair in told if pair[0] not in verbs}
    assert ("whatif", "routing") in said
    for name, second in said:
        found = main.get_command(None, name)
        assert found is not None, f"moexray {name}"
        if isinstance(found, Group):
            assert second in found.commands, f"moexray {name} {second}"


def explain(*words):
    done = CliRunner().invoke(main, ["explain", *words])
    assert done.exit_code == 0
    return done.output


def test_explain_shows_no_template():
    """Values that only a diagnosis knows are named; braces of JSON are single."""
    for remedy in REMEDIES:
        text = explain(remedy.id)
        assert not re.search(r"\{\w*\}|\{\{|\}\}", text), remedy.id
    assert "--eplb-config '{\"use_async\": true}'" in explain("eplb-async")
    assert "Start the server with <env>=expandable_segments:True" in explain("expandable-segments")


@pytest.mark.parametrize(("word", "id"), [("arena", "snapshot-move-pins"), ("zero_copy", "smaller-host-buffers"),
                                          ("exchange", "comm-host-exchange"), ("rescheduler", "leave-headroom")])  # fmt: skip
def test_a_word_of_a_call_finds_its_remedy(word, id):
    assert explain(word).startswith(f"{id}\n")


def test_remedies_are_listed_by_their_calls_and_by_a_part_of_their_ids():
    lines = explain("remedies").splitlines()
    assert [line.split()[0] for line in lines] == [r.id for r in CALLS]
    assert all("moexray.runtime." in line for line in lines)
    assert [line.split()[0] for line in explain("eplb-").splitlines()] == [r.id for r in REMEDIES if "eplb-" in r.id]

"""`moexray memory` on logs and profiles: lifetimes and reuse plans."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from memory_log_samples import KIB, alloc, free, two_experts, write
from moexray.faces.cli.main import main
from snapshot_samples import BASE, MIB, births, document, event, segment
from snapshot_samples import write as write_snapshot

PROFILE = Path(__file__).parents[3] / "shared/data/memory/cpu_moe_profile_memory.json.gz"


def memory(*arguments, code=0):
    result = CliRunner().invoke(main, ["memory", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def as_json(*arguments):
    return json.loads(memory(*arguments, "--format", "json"))


def test_a_log_in_json(tmp_path):
    path = write(tmp_path / "log.jsonl", two_experts())
    found = as_json(path)
    assert found["schema"] == "moexray.memory/1"
    assert (found["devices"], found["pools"], found["servability"], found["churn"]) == ([], [], [], [])
    [one] = found["tensors"]
    assert (one["source"], one["rank"], one["device"], one["kind"]) == (path, None, None, "log")
    assert (one["tensors"], one["open"], one["live_peak_bytes"], one["unattributed_share"]) == (4, 0, 7 * KIB, 0)
    assert [(g["layer"], g["expert"], g["scope"], g["peak_bytes"]) for g in found["lifetimes"]][:2] == [
        (0, None, "layer", 4 * KIB), (0, 1, "expert", 3 * KIB),
    ]  # fmt: skip
    plans = {p["plan"]: p for p in found["reuse_plans"]}
    assert list(plans) == ["as allocated", "expert-wise", "token-wise", "interval packing"]
    assert plans["interval packing"]["peak_bytes"] == plans["interval packing"]["lower_bound_bytes"] == 7 * KIB
    assert plans["expert-wise"]["over_bound"] == pytest.approx(2 / 3)


def test_a_log_as_text(tmp_path):
    text = memory(write(tmp_path / "log.jsonl", [*two_experts(), alloc("x", 7 * KIB, 200)]))
    assert "log.jsonl: log of allocations" in text
    assert "tensors of the history: 5 (1 not freed), most alive at once 7.0 KiB;\n  58.8% of all bytes" in text
    assert "at that peak: layer 0 100%; by scope: layer 57%, expert 43%" in text
    # layer 0, expert 1: 3 KiB at the peak, 40 us
    assert re.search(r"\n +0 +1 +expert +1 +3\.0 KiB +3\.0 KiB +3\.0 KiB +40\.0 µs +40\.0 µs\n", text)
    # the token-wise plan covers 10 of 17 KiB and takes 10
    assert re.search(r"\ntoken-wise +59% +10\.0 KiB +7\.0 KiB +42\.9%", text)
    assert "pool" not in text.splitlines()[1]


def test_the_best_plan_is_named(tmp_path):
    # c could take the place of a: two sizes, never two of one; of equal plans the first is named
    records = [
        alloc("a", 2 * KIB, 0, 0, address=0), alloc("b", KIB, 1, 0, address=2 * KIB), free("a", 2),
        alloc("c", 2 * KIB, 3, 0, address=4 * KIB), free("b", 4), free("c", 5),
    ]  # fmt: skip
    text = memory(write(tmp_path / "log.jsonl", records))
    assert "most memory is saved by token-wise: 2.0 KiB, 40.0%" in text


def test_notes_are_shown(tmp_path):
    path = write(tmp_path / "log.jsonl", [{k: v for k, v in r.items() if k != "timestamp_us"} for r in two_experts()])
    text = memory(path)
    assert "note: the records have no time: lifetimes are counted in events" in text
    assert re.search(r"\n +0 +1 +expert .* 1 ev +1 ev\n", text)


def test_where_nothing_names_layers_the_text_says_how_to_name_them(tmp_path):
    text = memory(write(tmp_path / "log.jsonl", [alloc("a", 8, 0), free("a", 1)]))
    assert "no name around them tells layers or experts; see docs/capture.md" in text


def test_ranks_and_files_have_parts_of_their_own(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.jsonl", [r | {"rank": rank} for r in two_experts()])
    found = as_json(tmp_path)
    assert [one["rank"] for one in found["tensors"]] == [0, 1]
    assert len([g for g in found["lifetimes"] if g["rank"] == 1]) == 4
    assert memory(tmp_path).count("plan for reuse") == 2


def test_a_snapshot_has_both_parts(tmp_path):
    held = [segment(BASE, [(MIB, "a"), (MIB, "f")])]
    life = [event(a, BASE + MIB, 1024, 10, user_metadata="layer_4") for a in ("alloc", "free_requested", "free_completed")]
    path = write_snapshot(tmp_path / "s.pickle", document(held, [*births(held), *life]))
    found = as_json(path)
    assert len(found["devices"]) == len(found["tensors"]) == 1
    assert {(g["layer"], g["open"]) for g in found["lifetimes"]} == {(None, 1), (4, 0)}
    text = memory(path)
    assert text.count(path) == 1
    assert "plan for reuse" in text


def test_a_snapshot_without_history_has_neither(tmp_path):
    path = write_snapshot(tmp_path / "s.pickle", document([segment(BASE, [(MIB, "a")])]))
    found = as_json(path)
    assert (found["tensors"], found["lifetimes"], found["reuse_plans"]) == ([], [], [])


def test_a_difference_needs_snapshots(tmp_path):
    path = write(tmp_path / "log.jsonl", two_experts())
    assert "no allocator snapshot" in memory("--diff", path, path, code=2)


@pytest.mark.skipif(not PROFILE.exists(), reason="shared data is not here")
def test_the_profile_of_a_real_run_on_a_cpu():
    """Four layers of eight experts, six batches, ranges layer_L and layer_L.expert_E around all of it."""
    found = as_json(PROFILE)
    [one] = found["tensors"]
    assert (one["device"], one["steps"]) == (-1, "passes over the layers")
    pairs = {(g["layer"], g["expert"]) for g in found["lifetimes"] if g["scope"] == "expert"}
    assert pairs == {(layer, expert) for layer in range(4) for expert in range(8)}
    [unknown] = [g for g in found["lifetimes"] if g["scope"] is None]
    assert unknown["count"] == 6  # the inputs, made outside the layers
    assert sum(g["count"] for g in found["lifetimes"]) == one["tensors"]
    for plan in found["reuse_plans"]:
        assert plan["peak_bytes"] >= plan["lower_bound_bytes"] > 0

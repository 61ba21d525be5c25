import io
import json

import numpy as np
import pytest
from click.testing import CliRunner

from moexray.faces.cli.main import main


def invoke(*words):
    return CliRunner().invoke(main, ["plan", *map(str, words)])


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    cube = rng.poisson(rng.lognormal(3, 1, (3, 16)), (8, 3, 16))
    path = tmp_path / "counts.npz"
    out = io.BytesIO()
    np.savez(out, logical_count=cube)
    path.write_bytes(out.getvalue())
    return path


def test_the_document(file):
    result = invoke(file, "--slots", 24, "--gpus", 8, "--format", "json")
    assert result.exit_code == 0, result.output
    d = json.loads(result.output)
    assert d["schema"] == "moexray.plan/1"
    assert [y["layer"] for y in d["layers"]] == [0, 1, 2]
    for y in d["layers"]:
        assert 0 < y["trivial"] <= y["balancedness"] <= y["bound"] + 1e-12 <= 1 + 1e-9
    assert d["mean_balancedness"] == pytest.approx(np.mean([y["balancedness"] for y in d["layers"]]))
    assert d["mean_bound"] >= d["mean_balancedness"]
    assert d["moved_bytes"] is None
    assert d["plan_seconds"] > 0
    assert np.array(d["physical_to_logical"]).shape == (3, 24)
    assert d["later"]["balancedness"] < 1


def test_the_text_says_what_it_gains_and_on_what(file):
    text = invoke(file, "--slots", 24, "--gpus", 8).output
    assert "16 experts in 24 slots (8 redundant), 8 GPUs, global, equal split" in text
    assert "later half, planned on the first" in text
    [line] = [x for x in text.splitlines() if x.startswith("conclusion: ")]
    assert "of MoE time saved against the trivial plan, on traffic that was not planned on" in line


def test_slots_default_to_a_permutation(file):
    d = json.loads(invoke(file, "--gpus", 8, "--format", "json").output)
    assert all(sorted(row) == list(range(16)) for row in d["physical_to_logical"])


def test_a_current_plan_moves_little_and_pays(file, tmp_path):
    trivial = tmp_path / "now.json"
    trivial.write_text(json.dumps({"physical_to_logical_map": [(np.arange(24) % 16).tolist()] * 3}))
    words = (file, "--slots", 24, "--gpus", 8, "--current", trivial, "--expert-bytes", "8MiB", "--step-ms", 10)
    d = json.loads(invoke(*words, "--bandwidth", 50, "--format", "json").output)
    assert d["moved_bytes"] == d["moved_slots"] * (8 << 20) > 0
    assert d["payback"]["steps"] == pytest.approx(
        d["payback"]["stall_seconds"] / d["payback"]["gain_seconds_per_step"]
    )
    text = invoke(*words, "--stall-ms", 900).output
    assert "payback: after" in text
    assert "against the current placement, on traffic that was not planned on; paid after" in text
    note = "note: the current placement has 24 slots a layer; --slots 24 plans for as many"
    assert note in invoke(file, "--gpus", 8, "--current", trivial).output
    assert note not in invoke(file, "--slots", 24, "--gpus", 8, "--current", trivial).output
    result = invoke(*words)
    assert result.exit_code == 2
    assert "--bandwidth" in result.stderr


def test_the_plan_itself_is_kept(file, tmp_path):
    plan = tmp_path / "plan.json"
    assert invoke(file, "--slots", 24, "--gpus", 8, "-o", plan).exit_code == 0
    result = invoke(file, "--slots", 24, "--gpus", 8, "--current", plan)
    assert "conclusion: keep the current placement" in result.output
    assert "moves: 0 of 72 slots" in result.output


def test_nothing_is_overwritten(file, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text("mine")
    result = invoke(file, "--gpus", 8, "-o", plan)
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert plan.read_text() == "mine"
    assert invoke(file, "--gpus", 8, "-o", plan, "--force", "--for", "sglang").exit_code == 0
    assert list(json.loads(plan.read_text())) == ["physical_to_logical_map"]


def test_modes(file):
    limited = invoke(file, "--slots", 24, "--gpus", 8, "--nodes", 2, "--mode", "node-limited", "--groups", 4,
                     "--format", "json")  # fmt: skip
    d = json.loads(limited.output)
    for row in np.array(d["physical_to_logical"]):
        first, second = (set((part // 4).tolist()) for part in row.reshape(2, -1))
        assert not first & second
    d = json.loads(invoke(file, "--slots", 24, "--gpus", 8, "--split", "unequal", "--format", "json").output)
    assert len(d["replica_parts"][0]) == 24
    d = json.loads(invoke(file, "--slots", 24, "--gpus", 8, "--decode", "--format", "json").output)
    assert d["balances"] == "active experts"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--slots", 15, "--gpus", 8), "15 slots cannot hold 16 experts"),
        (("--slots", 20, "--gpus", 8), "20 slots are no multiple of 8 GPUs"),
        (("--gpus", 8, "--nodes", 3), "do not divide over 3 nodes"),
        (("--gpus", 8, "--nodes", 2, "--mode", "node-limited", "--groups", 5), "do not divide"),
        (("--gpus", 8, "--groups", 4), "node-limited"),
        (("--gpus", 8, "--for", "vllm"), "-o FILE"),
        (("--gpus", 8, "--current", "nowhere.json"), "nowhere.json does not exist"),
        (("--gpus", 8, "--decode", "--split", "unequal"), "leave out one"),
        (("--gpus", 8, "--experts", 4), "there are 4 (--experts)"),
        (("--gpus", 8, "-o", "no/such/folder/plan.json"), "there is no folder no/such/folder"),
    ],
)
def test_what_cannot_be_is_told(file, words, what):
    result = invoke(file, *words)
    assert result.exit_code == 2
    assert what in result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("engine", ["sglang", "vllm", "vllm-ascend", "trtllm", "eplb"])
def test_every_engine_gets_a_file_that_is_read_again(file, tmp_path, engine):
    out = tmp_path / f"plan.{'yaml' if engine == 'trtllm' else 'json'}"
    words = (file, "--slots", 24, "--gpus", 8)
    made = json.loads(invoke(*words, "--for", engine, "-o", out, "--format", "json").stdout)
    again = invoke(*words, "--current", out, "--format", "json")
    assert again.exit_code == 0, again.output
    back = json.loads(again.stdout)
    assert back["moved_slots"] == 0
    assert back["mean_current"] == pytest.approx(made["mean_balancedness"])
    assert np.array_equal(np.sort(back["physical_to_logical"]), np.sort(made["physical_to_logical"]))
    assert f"written: {out}" in invoke(*words, "--for", engine, "-o", out, "--force").output


def test_a_lost_layer_never_gets_the_plan_of_another(tmp_path):
    (tmp_path / "a.json").write_text('{"counts": [[null, 1, 2, 3], [1, 2, 3, 4]]}')
    words = (tmp_path / "a.json", "--slots", 6, "--gpus", 2, "-o", tmp_path / "x.json")
    refused = invoke(*words, "--for", "vllm")
    assert (refused.exit_code, (tmp_path / "x.json").exists()) == (2, False)
    assert "no counts of layer 0" in refused.stderr
    text = invoke(*words, "--for", "sglang").output
    assert "note: layer 0: filled with the trivial layout" in text
    rows = json.loads((tmp_path / "x.json").read_text())["physical_to_logical_map"]
    assert rows[0] == [0, 1, 2, 3, 0, 1]
    assert len(rows) == 2


def test_yaml_under_another_name_is_said(file, tmp_path):
    words = (file, "--gpus", 8, "--for", "trtllm")
    assert "note: x.json holds YAML" in invoke(*words, "-o", tmp_path / "x.json").output
    assert "holds YAML" not in invoke(*words, "-o", tmp_path / "x.yaml").output


def test_holes_of_the_current_placement_are_said(file, tmp_path):
    now = tmp_path / "now.json"
    row = (np.arange(24) % 16).tolist()
    now.write_text(json.dumps({"physical_to_logical_map": [row, [*row[:-1], -1], row]}))
    text = invoke(file, "--slots", 24, "--gpus", 8, "--current", now).output
    assert "note: the current placement has 1 empty slot (-1), in layer 1" in text


def test_words_agree_with_their_number(tmp_path):
    (tmp_path / "a.json").write_text('{"counts": [[5, 1, 2, 8]]}')
    text = invoke(tmp_path / "a.json", "--gpus", 1).output
    assert "4 experts in 4 slots, 1 GPU, global" in text
    assert "the same traffic (there is no later half), the busiest GPUs would carry as much" in text

"""Router policies on recorded scores: effects, refusals, the command."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from moexray.algorithms.routers import top_k
from moexray.faces.cli.whatif import command


def run(*args):
    return CliRunner().invoke(command, ["routing", *map(str, args)])


def document(*args):
    result = run(*args, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.fixture
def logits():
    """[layers, tokens, experts] with a few hot experts, full float32."""
    rng = np.random.default_rng(0)
    favoured = rng.normal(0, 1, (2, 1, 32))
    return (rng.normal(0, 1, (2, 1500, 32)) + favoured).astype(np.float32)


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_salt_on_full_precision_has_no_effect(tmp_path, logits):
    path = saved(tmp_path / "l.npz", router_logits=logits)
    [row] = document(path, "--top-k", 4, "--policy", "salted")["policies"]
    assert row["effect"] == "none"
    assert row["flipped_share"] < 0.001
    assert row["load_std_after"] == pytest.approx(row["load_std_before"], rel=1e-3)


def test_salt_matters_where_rounding_makes_ties(tmp_path, logits):
    path = saved(tmp_path / "l.npz", router_logits=logits)
    fine, coarse = document(path, "--top-k", 4, "--policy", "salted", "--policy", "salted:precision=e5m2")["policies"]
    assert coarse["ties_share"] > 0.3 > fine["ties_share"]
    assert coarse["flipped_share"] > 20 * fine["flipped_share"]


def test_a_temperature_changes_weights_only(tmp_path, logits):
    path = saved(tmp_path / "l.npz", router_logits=logits)
    [row] = document(path, "--top-k", 4, "--policy", "temperature:value=3")["policies"]
    assert (row["effect"], row["flipped_share"]) == ("none", 0)
    assert row["output_change"] > 0.05


def test_capacity_evens_the_load_and_costs_output(tmp_path, logits):
    path = saved(tmp_path / "l.npz", router_logits=logits)
    asked = [f"--policy=capacity:factor=1.25,mode={m}" for m in ("drop", "spill", "reroute")]
    rows = document(path, "--top-k", 4, *asked)["policies"]
    drop, spill, reroute = rows
    assert drop["effect"] == spill["effect"] == reroute["effect"] == "clear"
    assert drop["dropped_share"] == pytest.approx(drop["flipped_share"])
    assert spill["dropped_share"] == reroute["dropped_share"] == 0
    assert all(r["output_change"] > 0 for r in rows)
    assert reroute["load_std_after"] < spill["load_std_after"] < drop["load_std_before"]


def test_one_line_says_what_helps_what_does_nothing_and_what_harms(tmp_path, logits):
    path = saved(tmp_path / "l.npz", router_logits=logits)
    asked = [f"--policy={p}" for p in ("salted", "capacity:factor=1.25,mode=spill", "soft-mask:cap=1")]
    [line] = [x for x in run(path, "--top-k", 4, *asked).output.splitlines() if x.startswith("conclusion: ")]
    assert "conclusion: capacity:factor=1.25,mode=spill evens the load most (balancedness" in line
    assert "no effect on the load: salted;" in line
    assert "less even: soft-mask:cap=1" in line
    [line] = [x for x in run(path, "--top-k", 4, "--policy=salted").output.splitlines() if x.startswith("conclusion: ")]
    assert line == "conclusion: no policy that was tried evens the load; no effect on the load: salted"


def test_choices_alone_allow_drops_only(tmp_path, logits):
    ids = np.stack([top_k(x, 4) for x in logits]).astype(np.int16)
    path = saved(tmp_path / "c.npz", topk_ids=ids, num_experts=32)
    doc = document(path)
    assert {r["policy"] for r in doc["policies"]} == {"capacity:factor=1.25,mode=drop"}
    assert len(doc["sources"][0]["not_tried"]) == 9
    refused = run(path, "--policy", "salted")
    assert refused.exit_code == 2
    assert "needs router scores" in refused.output


def test_groups_are_never_recomputed_as_plain_top_k(tmp_path, logits):
    from moexray.algorithms.routers import grouped

    ids = np.stack([top_k(grouped(x, 4, 8, 2), 4) for x in logits]).astype(np.int16)
    path = saved(tmp_path / "g.npz", router_logits=logits, topk_ids=ids)
    refused = run(path, "--policy", "salted")
    assert refused.exit_code == 2
    assert "of the recorded choices" in refused.output
    doc = document(path, "--policy", "plain", "--groups", 8, "--topk-groups", 2)
    assert doc["sources"][0]["recorded_choices_reproduced"] == 1
    assert doc["policies"][0]["flipped_share"] == 0


def test_balance_over_gpus(tmp_path, logits):
    path = saved(tmp_path / "l.npz", router_logits=logits)
    [over_experts] = document(path, "--top-k", 4, "--policy", "plain")["policies"]
    [over_gpus] = document(path, "--top-k", 4, "--policy", "plain", "--gpus", 4)["policies"]
    [planned] = document(path, "--top-k", 4, "--policy", "plain", "--gpus", 4, "--slots", 36)["policies"]
    assert over_experts["balancedness_before"] < over_gpus["balancedness_before"] < planned["balancedness_before"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "magic"], "no policy 'magic'"),
        (["--policy", "salted:pepper=1"], "has no option 'pepper'"),
        (["--policy", "capacity:factor=0"], "a number from 1e-06"),
        (["--policy", "capacity:mode=lose"], "drop, spill, reroute"),
        (["--policy", "salted:batch=0"], "from 1"),
        (["--policy", "salted:salt=nan"], "a number"),
        (["--policy", "salted:ties_only=maybe"], "true, false"),
        (["--top-k", "32"], "top-32 of 32 experts"),
        (["--slots", "36"], "--slots without --gpus"),
        (["--gpus", "5"], "32"),
        (["--groups", "8"], "belong together"),
        (["--groups", "5", "--topk-groups", "2"], "5 groups"),
    ],
)
def test_bad_options_are_named(tmp_path, logits, options, message):
    path = saved(tmp_path / "l.npz", router_logits=logits)
    given = options if "--top-k" in options else [*options, "--top-k", "4"]
    result = run(path, *given)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_scores_without_k_say_what_to_give(tmp_path, logits):
    result = run(saved(tmp_path / "l.npz", router_logits=logits))
    assert result.exit_code == 2
    assert "--top-k" in result.output


def test_layers_without_a_usable_row_are_left_out(tmp_path, logits):
    whole = document(saved(tmp_path / "l.npz", router_logits=logits[:1]), "--top-k", 4, "--policy", "salted")
    odd = np.concatenate([logits[:1], np.full_like(logits[:1], np.inf)])
    rest = document(saved(tmp_path / "o.npz", router_logits=odd), "--top-k", 4, "--policy", "salted")
    assert rest["policies"][0]["load_std_before"] == whole["policies"][0]["load_std_before"]


@pytest.mark.parametrize("ids", [np.zeros((2, 50, 4), np.int64), np.full((2, 1500, 2), 60_000) + np.arange(2)])
def test_choices_that_cannot_be_tried_are_refused(tmp_path, ids):
    """One expert four times in a token; ids so large that the scores would fill the memory."""
    result = run(saved(tmp_path / "i.npz", topk_ids=ids), "--format", "json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["schema"] == "moexray.error/1"
    assert "experts are too many" in result.stderr or "no token has usable" in result.stderr


def test_choices_of_all_experts(tmp_path):
    ids = np.tile(np.arange(3), (1, 40, 1))
    [row] = document(saved(tmp_path / "i.npz", topk_ids=ids), "--policy", "capacity:mode=drop")["policies"][:1]
    assert row["ties_share"] == 0

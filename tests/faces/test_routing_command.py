"""`moexray routing`: figures, drift and what was set aside."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from moexray.faces.cli.routing import command


def run(*args):
    return CliRunner().invoke(command, [str(a) for a in args])


def document(*args):
    result = run(*args, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def counts(path, array, **more):
    np.savez(path, logical_count=np.asarray(array, np.int64), **more)
    return path


def routes(path, rng, parts, *, k=2, experts=16, layers=2):
    """parts: [(tokens, shares of the experts)]."""
    ids = [
        np.stack([[rng.choice(experts, k, replace=False, p=mix) for _ in range(n)] for _ in range(layers)])
        for n, mix in parts
    ]
    np.savez(path, topk_ids=np.concatenate(ids, axis=1).astype(np.int16), num_experts=experts)
    return path


def test_figures_by_hand(tmp_path):
    doc = document(counts(tmp_path / "a.npz", [[[6, 2, 0, 0], [2, 2, 2, 2]]]))
    assert doc["schema"] == "moexray.routing/1"
    hot, even = doc["layers"]
    assert (hot["tokens"], hot["experts"], hot["active_experts"], hot["hot_expert"]) == (8, 4, 2, 0)
    assert hot["max_over_mean"] == pytest.approx(3)
    assert hot["balancedness"] == pytest.approx(1 / 3)
    assert hot["cv"] == pytest.approx(np.sqrt(6) / 2)  # deviations 4, 0, -2, -2 of mean 2
    assert hot["load_variance"] == pytest.approx(6)
    assert hot["gini"] == hot["skew_index"] == pytest.approx((-3 * 0 - 1 * 0 + 1 * 2 + 3 * 6) / (4 * 8))
    assert hot["top1_share"] == pytest.approx(0.75)
    assert hot["top3_share"] == pytest.approx(1)
    assert hot["min_expert_share"] == 0
    p = np.array([0.75, 0.25])
    assert hot["entropy"] == pytest.approx(-(p * np.log(p)).sum() / np.log(4))
    assert (even["balancedness"], even["gini"], even["entropy"]) == pytest.approx((1, 0, 1))


def test_ranks_when_the_ep_size_is_stated(tmp_path):
    path = counts(tmp_path / "a.npz", [[[6, 2, 0, 0]]])
    [layer] = document(path, "--ep", 2)["layers"]
    assert document(path, "--gpus", 2)["layers"] == [layer]  # the name that `plan` has for it
    assert layer["balancedness"] == pytest.approx(4 / 8)  # ranks hold 8 and 0
    [source] = document(path, "--ep", 2)["sources"]
    assert (source["balancedness_over"], source["ep_size"]) == ("ranks", 2)
    assert document(path)["sources"][0]["balancedness_over"] == "experts"


def test_time_weighs_heavy_layers_more(tmp_path):
    [source] = document(counts(tmp_path / "a.npz", [[[300, 100], [1, 1]]]))["sources"]
    assert source["mean_balancedness"] == pytest.approx((200 / 300 + 1) / 2)
    assert source["balancedness_of_time"] == pytest.approx(201 / 301)


def test_identical_rows_and_empty_ones_are_set_aside(tmp_path):
    rng = np.random.default_rng(0)
    ids = np.concatenate([np.tile([[1, 2]], (500, 1)), [rng.choice(8, 2, replace=False) for _ in range(400)]])
    np.savez(tmp_path / "r.npz", topk_ids=ids[None].astype(np.int16), num_experts=8)
    [aside] = document(tmp_path / "r.npz")["set_aside"]
    assert aside["rows"] == 500
    cube = rng.integers(5, 90, (6, 2, 8))
    cube[4:] = 0
    [aside] = document(counts(tmp_path / "c.npz", cube))["set_aside"]
    assert aside["rows"] == 4  # two steps of two layers


def test_a_file_of_identical_rows_alone_is_counted_and_not_set_aside(tmp_path):
    np.savez(tmp_path / "r.npz", topk_ids=np.tile([[[1, 2]]], (1, 200, 1)).astype(np.int16), num_experts=8)
    doc = document(tmp_path / "r.npz")
    assert doc["layers"][0]["tokens"] == 400
    assert doc["set_aside"] == []


def test_a_change_is_placed_and_the_stretches_are_compared(tmp_path):
    rng = np.random.default_rng(1)
    mixes = rng.dirichlet(np.full(16, 0.8), 2)
    doc = document(routes(tmp_path / "s.npz", rng, [(2400, mixes[0]), (1600, mixes[1])]))
    [change] = doc["change_points"]
    assert abs(change["step"] - 2400) <= 64
    assert change["windows_until_found"] <= 4
    assert change["layers"] == [0, 1]
    assert all(r["changed"] and r["js"] > 5 * r["js_floor"] for r in doc["drift"])


def test_one_mix_stays_silent_and_its_halves_do_not_differ(tmp_path):
    rng = np.random.default_rng(2)
    doc = document(routes(tmp_path / "s.npz", rng, [(4000, rng.dirichlet(np.full(16, 0.8)))]))
    assert doc["change_points"] == []
    assert not any(r["changed"] for r in doc["drift"])
    assert "no change of the mix" in run(tmp_path / "s.npz").output


def test_two_files_are_compared_with_each_other(tmp_path):
    rng = np.random.default_rng(3)
    mixes = rng.dirichlet(np.full(16, 0.8), 2)
    a = routes(tmp_path / "a.npz", rng, [(1600, mixes[0])])
    b = routes(tmp_path / "b.npz", rng, [(1600, mixes[1])])
    c = routes(tmp_path / "c.npz", rng, [(1600, mixes[1])])
    rows = [r for r in document(a, b, c)["drift"] if r["from_source"] != r["to_source"]]
    assert [r["changed"] for r in rows] == [True, True, False, False]


def test_a_full_ring_buffer_has_no_order(tmp_path):
    doc = document(counts(tmp_path / "a.npz", np.ones((4, 1, 8)) + np.arange(8)))
    assert "windows" in doc["sources"][0]["drift_unknown"]


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (-3.0, "negative")])
def test_a_bad_row_costs_that_row_and_is_named(tmp_path, bad, word):
    cube = np.full((3, 1, 4), 5.0)
    cube[1, 0, 2] = bad
    np.savez(tmp_path / "bad.npz", logical_count=cube)
    doc = document(tmp_path / "bad.npz")
    assert doc["layers"][0]["tokens"] == 40
    assert any(word in n for n in doc["sources"][0]["notes"] + [p["text"] for p in doc["problems"]])


def test_nothing_but_bad_counts_is_an_error(tmp_path):
    np.savez(tmp_path / "bad.npz", logical_count=np.full((1, 1, 4), np.nan))
    result = run(tmp_path / "bad.npz")
    assert result.exit_code == 2
    assert "bad.npz" in result.output


def test_more_ranks_than_experts_is_an_error(tmp_path):
    result = run(counts(tmp_path / "a.npz", [[[6, 2, 0, 1]]]), "--ep", 8)
    assert result.exit_code == 2
    assert "--ep 8 ranks for 4 experts" in result.output


def test_a_path_that_is_not_there():
    result = run("nowhere.npz")
    assert result.exit_code == 2
    assert "nowhere.npz" in result.output


def test_gate_probabilities_drift_without_choices(tmp_path):
    rng = np.random.default_rng(4)
    means = rng.normal(0, 1.5, (2, 1, 16))
    logits = np.concatenate([rng.normal(m, 1.0, (1920, 16)) for m in means]).astype(np.float32)
    np.savez(tmp_path / "g.npz", router_logits=logits[None])
    [gate] = document(tmp_path / "g.npz")["gates"]
    assert gate["change_tokens"] == [1920]


def test_one_expert_has_no_entropy_and_the_document_stays_json(tmp_path):
    result = run(counts(tmp_path / "a.npz", [[[6], [4]]]), "--format", "json")
    doc = json.loads(result.output, parse_constant=pytest.fail)
    assert [x["entropy"] for x in doc["layers"]] == [None, None]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers(tmp_path, bad):
    np.savez(tmp_path / "a.npz", router_logits=np.full((2, 300, 8), bad, np.float32))
    result = run(tmp_path / "a.npz")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no counts or choices" in result.stderr


@pytest.mark.parametrize("label", [None, "x", float("nan"), 2**63])
def test_layers_with_odd_labels_are_counted(tmp_path, label):
    (tmp_path / "a.json").write_text(json.dumps({"m/d": {"layers": [label, 1], "counts": [[1, 2, 3, 4], [4, 3, 2, 1]]}}))
    doc = document(tmp_path / "a.json")
    assert {x["layer"] for x in doc["layers"]} == {0, 1}
    assert any("no whole numbers" in p["text"] for p in doc["problems"])


SGLANG = (
    "[2026-03-07 06:00:{i:02d} TP0] [Expert Balancedness] forward_pass_id={i} current_pass_balancedness={value:.3f} "
    "last_10_average_balancedness={value:.3f} last_100_average_balancedness={value:.3f} "
    "last_1000_average_balancedness={value:.3f} gpu_physical_count_sum=1"
)


@pytest.mark.parametrize(("shift", "agree"), [(0.0, True), (0.03, True), (0.2, False)])
def test_the_engine_s_own_figure_is_compared_with_the_counts_of_its_steps(tmp_path, shift, agree):
    cube = np.random.default_rng(0).integers(50, 200, (12, 3, 16))
    np.savez(tmp_path / "c.npz", logical_count=cube, steps=np.arange(12), ep_size=4)
    ranks = cube.reshape(12, 3, 4, 4).sum(axis=3)
    true = (ranks.mean(axis=2) / ranks.max(axis=2)).mean(axis=1)
    log = "\n".join(SGLANG.format(i=i, value=v - shift) for i, v in enumerate(true))
    (tmp_path / "server.log").write_text(log)
    doc = document(tmp_path)
    [row] = doc["engine_figures"]
    assert (row["lines"], row["agree"]) == (12, agree)
    assert row["recomputed"] == pytest.approx(np.median(true), abs=0.02)
    text = run(tmp_path).output
    assert ("they agree" in text) == agree
    assert ("they disagree: believe the counts" in text) != agree


def test_multiplied_counts_are_a_warning(tmp_path):
    cube = np.random.default_rng(0).multinomial(512 * 4, np.ones(16) / 16, (10, 2)) * 8
    np.savez(tmp_path / "c.npz", logical_count=cube, steps=np.arange(10), ep_size=4, top_k=4)
    (tmp_path / "config.json").write_text(json.dumps({"tokens_per_step": 512, "top_k": 4, "tp_size": 8}))
    [warning] = document(tmp_path)["warnings"]
    assert warning["id"] == "ep.counts_multiplied"
    assert "8 times tokens x top-k" in run(tmp_path).output
    assert "that is the TP size 8" in warning["text"]


def test_a_log_alone_sends_to_diagnose(tmp_path):
    (tmp_path / "server.log").write_text("\n".join(SGLANG.format(i=i, value=0.9) for i in range(12)))
    result = run(tmp_path)
    assert result.exit_code == 2
    assert "only the engine's own balancedness" in result.output
    assert "moexray diagnose" in result.output


def test_a_change_that_no_rank_feels_is_told_apart_from_one_that_matters(tmp_path):
    """Statistics see one choice in five hundred with enough tokens; the busiest rank does not."""
    rng = np.random.default_rng(0)
    even = np.full(16, 1 / 16)
    tiny = even * np.where(np.arange(16) % 2, 1.004, 0.996)
    hot = np.r_[np.full(2, 5), np.ones(14)] / 24

    def draw(mix):
        return np.array([[rng.multinomial(4_000_000, mix)] for _ in range(6)])

    files = [counts(tmp_path / f"{i}.npz", draw(mix)) for i, mix in enumerate((even, tiny, hot))]
    small, large = (run(*pair, "--ep", 4).output for pair in (files[:2], files[1:]))
    assert "1 of 1 layer differs by more than chance" in small
    assert "effect on the balance: none; balancedness of the placement in force" in small
    assert "effect on the balance: clear, for the worse (the busiest rank carries " in large
    assert "effect on the balance: for the better; balanc" in run(files[2], files[1], "--ep", 4).output
    assert "KL: of the later against the earlier" in large
    [row] = [c for c in document(*files[:2], "--ep", 4)["comparisons"] if c["from_source"] != c["to_source"]]
    assert (row["layers_changed"], row["effect"]) == (1, "none")
    assert row["mean_kl"] < 1e-4


def test_rows_that_are_labelled_by_their_last_step_begin_at_their_first(tmp_path):
    rng = np.random.default_rng(0)
    mixes = rng.dirichlet(np.full(32, 0.7), 2)
    cube = np.stack([[rng.multinomial(2000, mixes[i // 12])] for i in range(24)])
    [change] = document(counts(tmp_path / "c.npz", cube, steps=np.arange(24) * 10 + 9))["change_points"]
    assert change["step"] == 120


def test_one_layer_that_changes_is_named(tmp_path):
    rng = np.random.default_rng(0)
    mixes = rng.dirichlet(np.full(32, 0.7), 8)
    other = mixes.copy()
    other[5] = rng.dirichlet(np.full(32, 0.7))
    cube = np.stack([[rng.multinomial(2000, m) for m in (mixes if i < 18 else other)] for i in range(36)])
    path = counts(tmp_path / "c.npz", cube, steps=np.arange(36) + 100)
    [change] = document(path, "--ep", 4)["change_points"]
    assert (change["step"], change["layers"], change["lasts"]) == (118, [5], True)
    assert "change of the mix at step 118: layer 5, JS" in run(path, "--ep", 4).output


def test_noise_says_nothing_on_balance_and_a_moving_mix_does(tmp_path):
    rng = np.random.default_rng(0)
    mixes = rng.dirichlet(np.full(16, 0.8), 2)
    still = np.stack([[rng.multinomial(2000, np.full(16, 1 / 16))] for _ in range(40)])
    slide = np.stack([[rng.multinomial(2000, mixes[0] * (1 - t) + mixes[1] * t)] for t in np.linspace(0, 1, 40)])
    paths = [counts(tmp_path / f"{name}.npz", cube) for name, cube in (("still", still), ("slide", slide))]
    [source] = document(paths[0])["sources"]
    assert source["relation"] is None
    assert "drift and balance: cannot tell, the mix does not move by more than chance" in run(paths[0]).output
    [source] = document(paths[1])["sources"]
    assert (source["relation_unknown"], source["relation"]["windows"]) == (None, 40)
    assert "that distance explains" in run(paths[1]).output


def test_loads_of_different_shapes_are_not_compared_and_that_is_said(tmp_path):
    rng = np.random.default_rng(0)
    a, b = (counts(tmp_path / f"{n}.npz", rng.integers(1, 90, (3, 2, n))) for n in (16, 64))
    doc = document(a, b)
    assert [x["text"] for x in doc["not_compared"]] == ["not compared: 16 against 64 experts"]
    assert "16.npz -> " in (text := run(a, b).output)
    assert "not compared: 16 against 64 experts" in text
    assert document(a, a)["not_compared"] == []


def test_columns_never_run_together(tmp_path):
    text = run(counts(tmp_path / "a.npz", [[[10**14, 10**14 - 1, 1, 1]] * 2])).output
    rows = [line.split()[:2] for line in text.splitlines() if "200,000,000,000,001" in line]
    assert rows == [["0", "200,000,000,000,001"], ["1", "200,000,000,000,001"]]


def test_scores_alone_lead_to_the_command_that_routes_them(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "g.npz", router_logits=rng.normal(size=(1, 640, 8)).astype(np.float32))
    text = run(tmp_path / "g.npz").output
    assert "router scores, no choices: no change of the mean gate probabilities" in text
    assert f"moexray whatif routing {tmp_path / 'g.npz'}" in text


def test_ranks_that_do_not_divide_the_experts_are_refused_unless_a_placement_says_where_they_lie(tmp_path):
    path = counts(tmp_path / "a.npz", [[[6, 2, 0, 1]]])
    result = run(path, "--ep", 3)
    assert result.exit_code == 2
    assert "4 experts are no multiple of 3 EP ranks" in result.output
    placed = counts(tmp_path / "b.npz", [[[6, 2, 0, 1]]], physical_to_logical_map=np.array([[0, 1, 2, 3, 0, 1]]))
    assert document(placed, "--ep", 3)["sources"][0]["ep_size"] == 3

"""Damaged routing inputs: what is wrong is told, what is sound is used."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from moexray.faces.cli.main import main

STEPS, LAYERS, EXPERTS = 20, 4, 16


def invoke(*words):
    result = CliRunner().invoke(main, [*map(str, words)])
    assert "Traceback" not in result.output
    assert "moexray failed" not in result.output
    return result


@pytest.fixture
def counts():
    rng = np.random.default_rng(0)
    return rng.poisson(rng.lognormal(4, 1, (1, LAYERS, EXPERTS)), (STEPS, LAYERS, EXPERTS))


@pytest.fixture
def ids():
    return np.argsort(np.random.default_rng(0).random((3, 500, EXPERTS)), axis=2)[:, :, :4]


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("bad", "words"), [(np.nan, "NaN count"), (-5.0, "negative count"), (np.inf, "infinite count"), (1e300, "impossibly")]
)
def test_a_bad_count_costs_its_row_and_no_more(tmp_path, counts, bad, words):
    odd = counts.astype(float)
    odd[3, 1, 2] = bad
    path = saved(tmp_path / "c.npz", logical_count=odd)
    told = f"{words} in logical_count: step 3, layer 1, column 2"
    text = invoke("routing", path).output
    assert told in text.replace("impossibly large count", "impossibly")
    assert "1 of 80 rows are not used" in text
    plan = json.loads(invoke("plan", path, "--gpus", 4, "--format", "json").stdout)
    assert told in " ".join(plan["notes"]).replace("impossibly large count", "impossibly")
    sound = json.loads(invoke("plan", saved(tmp_path / "d.npz", logical_count=counts), "--gpus", 4, "--format", "json").stdout)
    assert plan["mean_balancedness"] == pytest.approx(sound["mean_balancedness"], abs=0.01)


@pytest.mark.parametrize("command", [("routing",), ("plan", "--gpus", 4)])
@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"logical_count": np.full((5, 2, 8), np.nan)}, "10 of 10 rows are not used"),
        ({"logical_count": np.full((5, 2, 8), -1)}, "negative count"),
        ({"logical_count": np.zeros((0, 4, 16), int)}, "logical_count[0, 4, 16]"),
        ({"logical_count": np.full((5, 2, 8), "7")}, "arrays of no known meaning"),
        ({"topk_ids": np.full((3, 500, 4), 104), "num_experts": 16}, "expert 104 in layer 0, token 0"),
    ],
)
def test_nothing_usable_is_a_clear_error(tmp_path, command, arrays, words):
    result = invoke(command[0], saved(tmp_path / "c.npz", **arrays), *command[1:])
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize(
    "shape", [(STEPS, LAYERS, EXPERTS, 1), (STEPS, LAYERS, 1, EXPERTS), (STEPS, LAYERS, 1, 1, EXPERTS)]
)
def test_dimensions_of_one_do_not_matter(tmp_path, counts, shape):
    plain = json.loads(invoke("routing", saved(tmp_path / "a.npz", logical_count=counts), "--format", "json").stdout)
    other = saved(tmp_path / "b.npz", logical_count=counts.reshape(shape))
    made = json.loads(invoke("routing", other, "--format", "json").stdout)
    assert [x["tokens"] for x in made["layers"]] == [x["tokens"] for x in plain["layers"]]
    assert [x["gini"] for x in made["layers"]] == [x["gini"] for x in plain["layers"]]


def test_a_missing_layer_is_named_and_the_others_are_planned(tmp_path, counts):
    path = saved(tmp_path / "c.npz", logical_count=counts[:, [0, 1, 3]], layer_ids=np.array([0, 1, 3]))
    assert "note: no counts of layer 2: not planned" in invoke("plan", path, "--gpus", 4).output
    layers = json.loads(invoke("routing", path, "--format", "json").stdout)["layers"]
    assert [x["layer"] for x in layers] == [0, 1, 3]


@pytest.mark.parametrize(("bad", "count"), [(99, 1), (-7, 1), (2**31 - 2, 1), (2**40, 1)])
def test_an_id_that_no_expert_has_is_named(tmp_path, ids, bad, count):
    odd = ids.copy()
    odd[1, 7, 2] = bad
    path = saved(tmp_path / "r.npz", topk_ids=odd, num_experts=EXPERTS)
    told = f"expert {bad} in layer 1, token 7 of 0 to 15; {count} of 6000 choices are not used"
    for words in (("routing", path), ("plan", path, "--gpus", 4), ("whatif", "routing", path)):
        result = invoke(*words)
        assert result.exit_code == 0
        assert told in result.output
    assert sum(x["tokens"] for x in json.loads(invoke("routing", path, "--format", "json").stdout)["layers"]) == 5999


@pytest.mark.parametrize("pad", [-1, EXPERTS, 255])
def test_padding_of_engines_is_no_damage(tmp_path, ids, pad):
    padded = np.concatenate([ids, np.full((3, 500, 4), pad)], axis=2)
    text = invoke("routing", saved(tmp_path / "r.npz", topk_ids=padded, num_experts=EXPERTS)).output
    assert "problem" not in text
    assert "4 columns of ids hold padding" in text


def test_an_id_without_a_known_number_of_experts_does_not_fill_the_memory(tmp_path, ids):
    odd = ids.copy()
    odd[1, 7, 2] = 2**31 - 2
    assert "experts" in invoke("routing", saved(tmp_path / "r.npz", topk_ids=odd)).output


def physical(counts, placement):
    return {"physical_count": np.concatenate([counts, counts[:, :, :4]], axis=2), "ep_size": 4,
            "physical_to_logical_map": placement}  # fmt: skip


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (np.tile(np.arange(16), (LAYERS, 1)), "the map has 16 slots, 20 were counted: of another dump"),
        (np.full((LAYERS, 20), -3), "a placement holds -3 to -3, which are no expert ids: it is not used"),
        (np.full((LAYERS, 20), 2**40), "which are no expert ids: it is not used"),
        (np.tile(np.arange(20) % 16, (LAYERS - 1, 1)), "none for layer 3"),
    ],
)
def test_a_map_of_another_version_is_not_believed(tmp_path, counts, placement, words):
    path = saved(tmp_path / "p.npz", **physical(counts, placement))
    result = invoke("routing", path)
    assert result.exit_code == 0
    assert words in result.output
    invoke("plan", path, "--gpus", 4)
    invoke("diagnose", path)


def test_a_map_beside_counts_of_another_model_is_not_believed(tmp_path, counts):
    saved(tmp_path / "c.npz", logical_count=counts, ep_size=4)
    saved(tmp_path / "m.npz", physical_to_logical_map=np.tile(np.arange(32), (LAYERS, 1)), ep_size=4)
    assert "the map names expert 31 of 16 counted: of another model" in invoke("routing", tmp_path).output


@pytest.mark.parametrize("spoil", [np.nan, np.inf, 3e38, -3e38])
@pytest.mark.filterwarnings("error")
def test_scores_that_no_router_gives_cost_their_token(tmp_path, spoil):
    logits = np.random.default_rng(0).normal(size=(2, 300, EXPERTS)).astype(np.float32)
    logits[1, 7, 3] = spoil
    path = saved(tmp_path / "l.npz", logits=logits, top_k=4)
    for words in (("whatif", "routing", path), ("routing", path), ("diagnose", path)):
        result = invoke(*words)
        assert "in logits: row 307, column 3; 1 rows are not used" in " ".join(result.output.split())
    rows = json.loads(invoke("whatif", "routing", path, "--format", "json").stdout)["policies"]
    assert all(np.isfinite(v) for r in rows for v in r.values() if isinstance(v, float))


@pytest.mark.filterwarnings("error")
def test_minus_infinity_is_an_expert_that_may_not_be_chosen(tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 300, EXPERTS)).astype(np.float32)
    held = rng.random(logits.shape) < 0.4
    held[..., :6] = False
    logits[held] = -np.inf
    path = saved(tmp_path / "l.npz", logits=logits, top_k=4)
    for words in (("whatif", "routing", path), ("routing", path), ("diagnose", path)):
        assert "not used" not in invoke(*words).output
    row = json.loads(invoke("routing", path, "--format", "json").stdout)["gates"][0]
    assert all(np.isfinite(v) for half in row["halves"] for v in half.values())
    logits[0, 5] = -np.inf  # nobody may be chosen: no row of a router
    out = invoke("routing", saved(tmp_path / "m.npz", logits=logits, top_k=4)).output
    assert "logits: row 5, column 0; 1 rows are not used" in " ".join(out.split())


@pytest.mark.parametrize(("scale", "kind"), [(1e37, np.float32), (1e300, np.float64), (np.nan, np.float32)])
@pytest.mark.filterwarnings("error")
def test_scores_of_which_none_is_usable_are_an_error(tmp_path, scale, kind):
    logits = (np.random.default_rng(0).normal(size=(2, 300, EXPERTS)) * scale).astype(kind)
    result = invoke("whatif", "routing", saved(tmp_path / "l.npz", logits=logits, top_k=4))
    assert result.exit_code == 2
    assert "no token has usable scores" in result.output


@pytest.mark.parametrize("policy", ["temperature:value=1e-30", "salted:scale=1e30", "soft-mask:sigma=1e20"])
def test_options_that_overflow_are_refused(tmp_path, policy):
    logits = np.random.default_rng(0).normal(size=(2, 300, EXPERTS)).astype(np.float32)
    result = invoke("whatif", "routing", saved(tmp_path / "l.npz", logits=logits, top_k=4), "--policy", policy)
    assert result.exit_code == 2
    assert "a number from" in result.output


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"counts": []}', "counts holds no layers"), ('{"counts": [[]]}', "counts holds no layers"),
     ("[[]]", "the list holds no layers"), ("", "the file holds nothing")],
)  # fmt: skip
def test_a_file_without_layers_says_so_once(tmp_path, text, words):
    path = tmp_path / "c.json"
    path.write_text(text)
    result = invoke("routing", path)
    assert result.exit_code == 2
    assert " ".join(result.output.split()).count(words) == 1


def test_a_layer_without_a_label_is_not_named(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"counts": [[-5, 1, 2, 3]]}')
    assert "negative count in counts: step 0, column 0 (-5)" in " ".join(invoke("routing", path).output.split())

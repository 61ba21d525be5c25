import io
import json

import numpy as np
import pytest

from moexray.core.errors import UsageError
from moexray.core.source import Source
from moexray.readers.read_any import read_sources
from moexray.whatif.traffic import current_placement, traffic


def saved(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def run_of(**files):
    return read_sources([Source(n.replace("__", "."), content=c) for n, c in files.items()])


def counts(steps=4, layers=3, experts=8, seed=0):
    return np.random.default_rng(seed).integers(1, 100, (steps, layers, experts))


def test_files_of_one_model_are_one_mix():
    first, second = counts(), counts(6, seed=1)
    seen = traffic(run_of(a__npz=saved(logical_count=first), b__npz=saved(logical_count=second)))
    assert seen.experts == 8
    assert seen.layers == (0, 1, 2)
    assert np.array_equal(seen.steps(1), np.concatenate([first[:, 1], second[:, 1]]))
    before, after = seen.halves()
    assert np.array_equal(before.steps(0), np.concatenate([first[:2, 0], second[:3, 0]]))
    assert np.array_equal(after.steps(0), np.concatenate([first[2:, 0], second[3:, 0]]))
    assert "2 sets of counts are planned as one mix" in seen.notes


def test_slots_are_folded_to_experts():
    physical = counts(3, 2, 6)
    maps = np.array([[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, 2]])
    seen = traffic(run_of(a__npz=saved(global_physical_count=physical, physical_to_logical_map=maps)))
    assert seen.experts == 4
    folded = [[step[row == e].sum() for e in range(4)] for step, row in zip(physical[:, 1], [maps[1]] * 3, strict=True)]
    assert seen.steps(1).tolist() == folded


def test_ids_say_how_many_experts_there_are_at_least():
    ids = np.random.default_rng(0).integers(0, 13, (2, 300, 2))
    ids[:, 0, 0] = 12
    run = run_of(a__npz=saved(topk_ids=ids))
    assert traffic(run).experts == 13
    assert any("highest id" in n for n in traffic(run).notes)
    assert traffic(run, 16).experts == 16
    assert traffic(run, 16).steps(0).shape[1] == 16
    with pytest.raises(UsageError, match=r"expert 12 occurs, but there are 8"):
        traffic(run, 8)


def test_rows_with_bad_numbers_are_left_out_and_the_rest_is_used():
    bad = counts().astype(float)
    bad[1, 2, 3] = np.nan
    seen = traffic(run_of(a__npz=saved(logical_count=bad)))
    assert np.isfinite(seen.steps(2)).all()
    assert seen.steps(2)[1].sum() == 0
    assert seen.steps(2)[0].sum() == bad[0, 2].sum()
    assert any("NaN" in n or "not finite" in n or "not a number" in n for n in seen.notes), seen.notes


def test_only_bad_numbers_are_no_traffic():
    with pytest.raises(UsageError, match="no tokens per expert"):
        traffic(run_of(a__npz=saved(logical_count=np.full((4, 3, 8), -5))))


def test_a_layer_without_tokens_is_told():
    some = counts()
    some[:, 1] = 0
    seen = traffic(run_of(a__npz=saved(logical_count=some)))
    words = " ".join(seen.notes)
    assert "layer 1" in words
    assert seen.layers in ((0, 2), (0, 1, 2))


def test_files_of_different_models_are_refused():
    run = run_of(a__npz=saved(logical_count=counts()), b__npz=saved(logical_count=counts(experts=16)))
    with pytest.raises(UsageError, match=r"different numbers of experts .*8.*16"):
        traffic(run)


def test_counts_per_slot_need_a_placement():
    with pytest.raises(UsageError, match="no placement"):
        traffic(run_of(a__npz=saved(global_physical_count=counts())))


def test_a_log_is_no_traffic():
    with pytest.raises(UsageError, match="no tokens per expert") as why:
        traffic(run_of(a__log=b"EPLB step: 10 for model m: avg_tokens=1.00, max_tokens=2, balancedness=0.5000\n"))
    assert "inspect" in why.value.hint


def test_the_current_placement_is_read_from_plans_and_engines(tmp_path):
    rows = [[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, 2]]
    own = {"schema": "moexray.plan/1", "layers": [{"layer": 4}, {"layer": 7}], "physical_to_logical": rows}
    files = {
        "own.json": own,
        "bare.json": rows,
        "sglang.json": {"physical_to_logical_map": rows},
    }
    for name, document in files.items():
        (tmp_path / name).write_text(json.dumps(document))
        found = current_placement(str(tmp_path / name), (4, 7))
        assert found.tolist() == rows, name
    assert current_placement(str(tmp_path / "own.json"), (7,)).tolist() == [rows[1]]
    with pytest.raises(UsageError, match="lacks layer 5"):
        current_placement(str(tmp_path / "own.json"), (4, 5, 7))


@pytest.mark.parametrize(
    "text",
    ['{"schema": "moexray.plan/1", "layers": [{"layer": 0}], "physical_to_logical": [[0, 1], [1, 0]]}', "{}", "[1", "[[1], [1, 2]]"],
)
def test_no_placement_is_a_clear_error(tmp_path, text):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(Exception, match=r"placement|damaged|could be used|nothing") as why:
        current_placement(str(path), (0, 1))
    assert type(why.value).__module__ == "moexray.core.errors"


def test_a_map_of_another_dump_is_refused():
    physical = counts(3, 2, 6)
    far = np.array([[0, 1, 2, 3, 0, 99]] * 2)
    with pytest.raises(UsageError, match=r"6 slots, but the map names expert 99"):
        traffic(run_of(a__npz=saved(global_physical_count=physical, physical_to_logical_map=far)))
    wide = np.array([[0, 1, 2, 3, 0, 1, 2, 3]] * 2)
    with pytest.raises(UsageError, match=r"counts of 6 physical slots, and the placement read has 8"):
        traffic(run_of(a__npz=saved(global_physical_count=physical, physical_to_logical_map=wide)))


@pytest.mark.parametrize(
    ("rows", "lost"),
    [
        ({0: 1, 1: 1, 3: 1}, (2,)),  # between recorded ones
        ({1: 1, 2: 1, 3: 1}, ()),  # a dense layer first
        ({1: 1, 3: 1, 5: 1}, ()),  # every second layer is MoE
        ({0: -1, 1: 1, 2: 1}, (0,)),  # damaged, not dense
        ({0: 1, 1: -1, 2: 1, 3: 1}, (1,)),
    ],
)
def test_a_layer_that_was_lost_is_told_from_a_dense_one(rows, lost):
    document = {"counts": {str(y): [sign, 2, 3, 4] for y, sign in rows.items()}}
    assert traffic(run_of(a__json=json.dumps(document).encode())).lost == lost


def test_choices_of_a_smaller_model_are_not_mixed_in():
    rng = np.random.default_rng(0)
    small, large = (saved(topk_ids=rng.integers(0, n, (2, 4000, 2))) for n in (8, 64))
    with pytest.raises(UsageError, match=r"different numbers of experts \(a.npz: 8, b.npz: 64\)"):
        traffic(run_of(a__npz=small, b__npz=large))
    with pytest.raises(UsageError, match=r"different numbers of experts \(a.npz: 8, b.npz: 64\)"):
        traffic(run_of(a__npz=small, b__npz=saved(logical_count=counts(experts=64))))
    few = saved(topk_ids=rng.integers(0, 8, (2, 20, 2)))  # the others just did not occur yet
    assert traffic(run_of(a__npz=few, b__npz=large)).experts == 64


def test_one_unnamed_row_is_no_placement_of_several_layers(tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"physical_to_logical_map": [[0, 1, 2, 3]]}))
    assert current_placement(str(path), (4,)).tolist() == [[0, 1, 2, 3]]
    with pytest.raises(UsageError, match=r"lacks layer 4, 7"):
        current_placement(str(path), (4, 7))

"""Counts, placements, choices and configurations in JSON, under many names and layouts."""

import base64
import json

import numpy as np
import pytest

from moexray.core.source import Source
from moexray.readers.read_any import read_sources


def read(document, name="x.json", lines=False):
    text = "\n".join(json.dumps(d) for d in document) if lines else json.dumps(document)
    return read_sources([Source(name, content=text.encode())])


def only(run, table):
    (batch,) = run.batches(table)
    return batch


def test_snapshots_of_an_engine():
    snapshots = [
        {"step": 9 + 10 * i, "latest_expert_load": [[1, 2, 3, 4]] * 2, "window_expert_load": [[10, 20, 30, 40]] * 2,
         "physical_to_logical_map": [[0, 1, 2, 3]] * 2}
        for i in range(3)
    ]
    run = read({"model": "M", "world_size": 2, "num_logical_experts": 4, "window_size": 10, "snapshots": snapshots})
    counts = only(run, "counts")
    assert counts.attrs["name"] == "window_expert_load"
    assert counts.attrs["ep_size"] == 2
    assert counts.columns["step"].tolist() == [9, 9, 19, 19, 29, 29]
    assert counts.columns["tokens"].sum() == 600
    assert len(only(run, "placement").columns["slots"]) == 2


def test_a_placement_that_changes_keeps_its_steps():
    maps = [[[0, 1, 2, 3]], [[3, 2, 1, 0]]]
    run = read({"ep_size": 2, "snapshots": [{"step": i, "expert_load": [[5, 5, 5, 5]], "phy2log": maps[i]} for i in (0, 1)]})
    placement = only(run, "placement")
    assert placement.columns["step"].tolist() == [0, 1]


def test_keys_with_layers_and_counts():
    run = read({"m/arxiv": {"layers": [0, 7], "counts": [[1, 2], [3, 4]]}, "m/book": {"layers": [0, 7], "counts": [[5, 6], [7, 8]]}})
    assert [b.attrs["label"] for b in run.batches("counts")] == ["m/arxiv", "m/book"]
    assert run.batches("counts")[1].columns["layer"].tolist() == [0, 7]


@pytest.mark.parametrize(
    "document",
    [
        {"layer_0": [1, 2, 3], "layer_1": [4, 5, 6]},
        {"counts": {"0": [1, 2, 3], "1": [4, 5, 6]}},
        {"expert_counts": {"model.layers.0.mlp": {"0": 1, "1": 2, "2": 3}, "model.layers.1.mlp": {"0": 4, "1": 5, "2": 6}}},
        {"tokens_per_expert": [[1, 2, 3], [4, 5, 6]]},
        [{"layer": y, "expert": e, "count": 3 * y + e + 1} for y in (0, 1) for e in (0, 1, 2)],
        [{"layer_id": y, "expert_load": [3 * y + e + 1 for e in (0, 1, 2)]} for y in (0, 1)],
        {"stats": {"expertLoad": [[1, 2, 3], [4, 5, 6]]}},
    ],
)
def test_the_same_counts_in_other_layouts(document):
    counts = only(read(document), "counts")
    assert counts.columns["tokens"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert counts.columns["layer"].tolist() == [0, 1]


def test_routes_line_by_line_with_a_head():
    rows = [{"type": "meta", "vllm_version": "0.16", "top_k": 2, "num_experts": 8}]
    rows += [{"type": "route", "req_id": "r", "token_idx": i, "layer": y, "topk_ids": [i % 8, (i + 1 + y) % 8]}
             for i in range(20) for y in (0, 1)]
    routes = only(read(rows, "r.jsonl", lines=True), "routes")
    assert routes.attrs["engine"] == "vllm"
    assert routes.attrs["num_experts"] == 8
    assert routes.columns["ids"].shape == (40, 2)
    assert routes.columns["ids"][25].tolist() == [5, 7]


def test_base64_of_routed_experts_in_a_response():
    ids = np.argsort(np.random.default_rng(1).random((7, 3, 16)), axis=2)[:, :, :4].astype("<i4")
    text = base64.b64encode(ids.tobytes()).decode()
    for extra in ({}, {"num_layers": 3, "top_k": 4}):
        run = read([{"text": "hi", "meta_info": {"routed_experts": text, **extra}}])
        routes = only(run, "routes")
        assert routes.columns["ids"].shape == (21, 4)
    assert set(routes.columns["layer"].tolist()) == {0, 1, 2}
    assert np.array_equal(routes.columns["ids"][:7], ids[:, 0])


def test_an_expert_map_by_devices():
    layers = [
        {"layer_id": y, "device_count": 2,
         "device_list": [{"device_id": 1, "device_expert": [2, 3]}, {"device_id": 0, "device_expert": [0, 1]}]}
        for y in (3, 4)
    ]
    placement = only(read({"moe_layer_count": 2, "layer_list": layers}), "placement")
    assert placement.attrs["ep_size"] == 2
    assert placement.columns["slots"].tolist() == [[0, 1, 2, 3]] * 2
    assert placement.columns["layer"].tolist() == [3, 4]


def test_a_placement_by_its_layers():
    placement = only(read({"num_gpus": 2, "initial_global_assignments": {"3": [0, 1, 2, 3], "4": [3, 2, 1, 0]}}), "placement")
    assert placement.columns["layer"].tolist() == [3, 4]


def test_weights_of_a_balancer_are_counts():
    counts = only(read({"weight": [[90, 10], [50, 50]], "num_replicas": 4, "num_gpus": 2}), "counts")
    assert counts.attrs["ep_size"] == 2
    assert counts.columns["tokens"].tolist() == [[90, 10], [50, 50]]


def test_a_configuration_is_kept_and_skipped():
    run = read({"num_experts_per_tok": 6, "n_routed_experts": 64, "hidden_size": 2048})
    assert {r["key"]: r["value"] for r in run.rows("routing_config")} == {"top_k": 6.0, "num_experts": 64.0}
    assert run.inputs == ()
    assert "configuration" in run.skipped[0].reason


@pytest.mark.parametrize(
    "document",
    [{"a": 1, "b": [1, 2, 3]}, {"latency_ms": [1, 2, 3], "tokens": 7}, [[1, 2], [3, 4]], {"messages": [{"role": "user"}]}],
)
def test_other_documents_are_left_alone(document):
    run = read(document)
    assert not run.batches("counts")
    assert not run.rows("routing_config")


@pytest.mark.parametrize(
    ("cell", "word"), [("1,024", "1,024"), ("n/a", "n/a"), (None, "None")],
)
def test_odd_cells_are_named(cell, word):
    run = read({"expert_counts": [[1, 2], [3, cell], [5, 6]]})
    (path_problem,) = [p for _, p in run.problems if p.id == "input.dirty_table"]
    assert word in path_problem.text
    assert path_problem.values == {"row": 1, "column": 1}
    assert only(run, "counts").columns["tokens"].tolist() == [[1, 2], [5, 6]]


def test_ragged_rows_are_named():
    run = read({"expert_counts": [[1, 2, 3], [4, 5], [7, 8, 9]]})
    (problem,) = [p for _, p in run.problems]
    assert "2 values where other rows have 3" in problem.text
    assert len(only(run, "counts").columns["tokens"]) == 2


def test_records_of_another_shape_are_named():
    rows = [{"step": i, "expert_counts": [1, 2, 3]} for i in range(3)] + [{"step": 3, "expert_counts": [1, 2]}]
    run = read({"records": rows})
    assert [p.id for _, p in run.problems] == ["input.dirty_table"]
    assert only(run, "counts").columns["step"].tolist() == [0, 1, 2]


def test_a_grid_with_a_hole():
    rows = [{"step": s, "layer": y, "expert_counts": [s, y, 1]} for s in (0, 1) for y in (0, 1) if (s, y) != (1, 0)]
    run = read(rows)
    counts = only(run, "counts")
    assert list(zip(counts.columns["step"].tolist(), counts.columns["layer"].tolist(), strict=True)) == [(0, 0), (0, 1), (1, 1)]


def test_layers_that_list_their_experts():
    layers = [{"layer_id": 9 + i, "experts": [100 + i, 120, 130, 90]} for i in range(3)]
    counts = only(read({"run": {"ep_size": 2, "stats": {"layers": layers}}}), "counts")
    assert counts.columns["layer"].tolist() == [9, 10, 11]
    assert counts.attrs["ep_size"] == 2


def test_sizes_beside_the_counts():
    document = {"result": {"parallel": {"ep_size": 4}, "moe": {"expert_counts": [[1, 2, 3, 4]]}}}
    assert only(read(document), "counts").attrs["ep_size"] == 4


def test_records_of_scalars_with_two_kinds_of_counts():
    rows = [{"expert_id": i, "tokens_routed": 10 + i, "tokens_combined": 10} for i in range(4)]
    batches = read(rows, lines=True).batches("counts")
    assert {b.attrs["what"]: b.columns["tokens"].tolist() for b in batches} == {
        "routed": [[10, 11, 12, 13]], "combined": [[10, 10, 10, 10]],
    }
    rows = [{"layer": 2, "ep_rank": r, "num_tokens": 40 + r} for r in range(4)]
    counts = only(read(rows, lines=True), "counts")
    assert (counts.attrs["axis"], counts.columns["tokens"].tolist()) == ("rank", [[40, 41, 42, 43]])


def test_a_placement_by_rank():
    batch = only(read({"placement": {"rank1": [2, 3], "rank0": [0, 1]}}), "placement")
    assert (batch.columns["slots"].tolist(), batch.attrs["ep_size"]) == ([[0, 1, 2, 3]], 2)


def test_frames_of_files_with_other_numbers_of_experts():
    sources = [Source(f"{n}.json", content=json.dumps({"expert_counts": [[1] * n]}).encode()) for n in (4, 6)]
    frame = read_sources(sources).frame("counts")
    assert [len(x) for x in frame["tokens"]] == [4, 6]

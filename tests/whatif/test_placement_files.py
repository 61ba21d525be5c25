import json
from dataclasses import replace

import numpy as np
import pytest

from moexray.algorithms.placement import Shape
from moexray.core.errors import UsageError
from moexray.core.source import Source
from moexray.faces.cli import plan as face
from moexray.readers.read_any import read_sources
from moexray.whatif.placement import Layer, Options, Plan
from moexray.whatif.placement_files import ENGINES, engine_file, filled, handover

ROWS = np.array([[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, 2]])
PLAN = Plan(Shape(4, 6, 3), Options(), (Layer(1, ROWS[0]), Layer(3, ROWS[1])), 0.0, 0.0)


def test_sglang_has_a_row_for_every_layer_and_no_other_key():
    document = json.loads(engine_file(PLAN, "sglang"))
    plain = [0, 1, 2, 3, 0, 1]
    assert document == {"physical_to_logical_map": [plain, plain, plain, ROWS[1].tolist()]}


@pytest.mark.parametrize("engine", ["vllm", "vllm-ascend", "eplb"])
def test_a_file_whose_rows_have_no_number_is_refused_where_a_layer_was_lost(engine):
    with pytest.raises(UsageError, match=r"no counts of layer 0, 2, and rows") as why:
        engine_file(PLAN, engine, (0, 2))
    assert why.value.where == f"--for {engine}"
    assert "sglang" in why.value.hint


def test_what_stands_in_the_file_for_a_layer_without_counts_is_said():
    assert filled(PLAN, "sglang") == "layer 0, 2: filled with the trivial layout (dense, or no counts of it)"
    assert filled(PLAN, "trtllm") == "layer 0, 2: not in the file (dense, or no counts of it)"
    assert filled(replace(PLAN, layers=(Layer(0, ROWS[0]), Layer(1, ROWS[1]))), "sglang") == ""


def test_vllm_has_the_moe_layers():
    assert json.loads(engine_file(PLAN, "vllm")) == ROWS.tolist()


def test_ascend_has_the_experts_of_each_device():
    document = json.loads(engine_file(PLAN, "vllm-ascend"))
    assert document["moe_layer_count"] == 2
    devices = document["layer_list"][1]["device_list"]
    assert [d["device_expert"] for d in devices] == [[3, 2], [1, 0], [3, 2]]
    assert document["layer_list"][1]["device_count"] == 3


def test_eplb_has_what_its_function_returns():
    document = json.loads(engine_file(PLAN, "eplb"))
    assert document["phy2log"] == ROWS.tolist()
    assert document["logcnt"] == [[2, 2, 1, 1], [1, 1, 2, 2]]
    assert document["log2phy"][0] == [[0, 4], [1, 5], [2, -1], [3, -1]]


def test_trtllm_is_its_yaml():
    text = engine_file(PLAN, "trtllm")
    assert text.splitlines() == [
        "num_slots: 6",
        "layer_updates_per_iter: 0",
        "initial_global_assignments:",
        "  1: [0, 1, 2, 3, 0, 1]",
        "  3: [3, 2, 1, 0, 3, 2]",
    ]


@pytest.mark.parametrize("engine", ["sglang", "vllm-ascend", "trtllm", "eplb"])
def test_our_own_readers_take_the_file(engine):
    name = "plan.yaml" if engine == "trtllm" else "plan.json"
    run = read_sources([Source(name, content=engine_file(PLAN, engine).encode())])
    found = [row for b in run.batches("placement") for row in np.asarray(b.columns["slots"]).tolist()]
    assert all(row in found for row in ROWS.tolist())


@pytest.mark.parametrize("engine", ENGINES)
def test_the_handover_names_file_and_sizes(engine):
    line = handover(PLAN, engine, "p.json")
    assert "\n" not in line
    assert "{" not in line.replace('{"initial', "").replace("{load_balancer", "")
    assert engine == "eplb" or "p.json" in line


def test_the_command_offers_the_same_engines():
    assert set(face.ENGINES) == set(ENGINES)

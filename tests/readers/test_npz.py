import io
import pickle
import tracemalloc

import numpy as np
import pytest

from moexray.core.errors import LimitError, ReadError
from moexray.core.run import Reading
from moexray.core.source import Source
from moexray.readers import npz
from moexray.readers.shapes import routing_tokens


def saved(**arrays):
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def read(content, name="a.npz"):
    out = Reading("npz")
    npz.read(Source(name, content=content), out)
    return out


def batch(out, table):
    (found,) = [b for b in out.batches if b.table == table]
    return found


def test_counts_steps_placement_and_ep_size():
    cube = np.arange(3 * 2 * 4).reshape(3, 2, 4) + 1
    content = saved(logical_count=cube, steps=[9, 19, 29], ep_size=2, physical_to_logical_map=[[0, 1, 2, 3]] * 2)
    assert npz.sniff(content)
    out = read(content)
    counts = batch(out, "counts")
    assert counts.attrs["ep_size"] == 2
    assert counts.columns["step"].tolist() == [9, 9, 19, 19, 29, 29]
    assert np.array_equal(counts.columns["tokens"], cube.reshape(6, 4))
    assert batch(out, "placement").columns["slots"].shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "shape", "numbers", "rows", "layers"),
    [
        ("expert_load", (5, 8), {}, 5, 5),
        ("expert_load", (5, 8), {"steps": np.arange(5)}, 5, 1),
        ("tokens_per_expert", (8,), {}, 1, 1),
        ("expert_counts", (8, 5), {"num_experts": 8}, 5, 5),
        ("counts", (3, 5, 8), {"num_layers": 3}, 15, 3),
        ("counts", (3, 5, 8), {"layers": np.array([3, 4, 5])}, 15, 3),
        ("counts", (5, 3, 8), {"steps": np.arange(5)}, 15, 3),
        ("counts", (5, 3, 2, 8), {"steps": np.arange(5)}, 15, 3),
    ],
)
def test_dimensions_are_told_apart(name, shape, numbers, rows, layers):
    out = read(saved(**{name: np.ones(shape, int)}, **numbers))
    counts = batch(out, "counts")
    assert len(counts.columns["tokens"]) == rows
    assert len(set(counts.columns["layer"].tolist())) == layers


@pytest.mark.parametrize(("shape", "layers"), [((2, 50, 4), 2), ((50, 2, 4), 2), ((50, 4), 1)])
def test_router_choices_in_any_order(shape, layers):
    ids = np.argsort(np.random.default_rng(0).random((*shape[:-1], 16)), axis=-1)[..., : shape[-1]]
    routes = batch(read(saved(topk_ids=ids, num_experts=16)), "routes")
    assert len(routes.columns["ids"]) == 50 * layers
    assert len(set(routes.columns["layer"].tolist())) == layers


def test_two_records_of_choices_have_arms():
    ids = np.tile(np.arange(4), (50, 1))
    out = read(saved(topk_ids_fp32=ids, topk_ids_bf16=ids))
    assert {b.attrs["arm"] for b in out.batches} == {"fp32", "bf16"}


def test_sentinel_columns_are_left_out():
    ids = np.tile(np.array([1, 2, 255, 255]), (40, 1)).astype(np.uint8)
    out = read(saved(topk_ids=ids, num_experts=60))
    assert batch(out, "routes").columns["ids"].shape == (40, 2)
    assert "sentinel" in out.notes[0]


def test_logits_and_their_precision():
    out = read(saved(router_logits=np.random.default_rng(0).normal(size=(2, 30, 16)).astype(np.float16), top_k=4))
    logits = batch(out, "logits")
    assert logits.attrs["precision"] == "float16"
    assert logits.attrs["top_k"] == 4
    assert logits.attrs["kind"] == "logits"


def test_a_broken_score_row_is_named():
    values = np.zeros((4, 8), np.float32)
    values[2, 3] = np.nan
    out = read(saved(router_logits=values))
    assert out.problems[0].id == "input.dirty_table"
    assert out.problems[0].values == {"row": 2, "column": 3}
    assert out.rows == 3


@pytest.mark.parametrize("bad", [np.nan, np.inf, -3])
def test_dirty_counts_are_named_and_not_used(bad):
    table = np.ones((3, 4))
    table[1, 2] = bad
    out = read(saved(expert_counts=table))
    (problem,) = out.problems
    assert problem.values["row"] == 1
    assert problem.values["column"] == 2
    assert out.rows == 2


def test_all_zero_counts_are_dirty():
    out = read(saved(expert_counts=np.zeros((2, 4), int)))
    assert (out.rows, out.batches) == (2, [])  # read, not used
    assert "zero" in out.problems[0].text


def test_a_map_from_logical_to_physical_is_turned_round():
    l2p = np.array([[[0, 3], [1, -1], [2, -1]]])
    out = read(saved(logical_to_physical_map=l2p))
    assert batch(out, "placement").columns["slots"].tolist() == [[0, 1, 2, 0]]


def test_rows_per_rank_become_one_row_of_slots():
    out = read(saved(placement=np.array([[0, 1], [2, 3]]), ep_size=2))
    assert batch(out, "placement").columns["slots"].tolist() == [[0, 1, 2, 3]]


def test_a_bare_array_is_read_by_its_structure():
    out = io.BytesIO()
    np.save(out, np.array([[5, 6, 7, 9], [1, 1, 3, 5]]))
    assert npz.sniff(out.getvalue())
    assert read(out.getvalue(), "x.npy").batches[0].table == "counts"


def test_objects_and_damage_are_refused():
    out = io.BytesIO()
    np.savez(out, counts=np.array([{"a": 1}], dtype=object))
    reading = Reading("npz")
    with pytest.raises(ReadError):
        npz.read(Source("a.npz", content=out.getvalue()), reading)
    assert reading.problems[0].id == "input.truncated"
    with pytest.raises(ReadError):
        read(saved(counts=np.ones(4))[:60])
    with pytest.raises(ReadError):
        read(b"\x93NUMPY" + pickle.dumps(1))


def test_foreign_arrays_are_named():
    with pytest.raises(ReadError, match="weights_of_x"):
        read(saved(weights_of_x=np.ones((2, 2), np.float32)))


def test_ids_stay_small_and_are_not_copied():
    ids = np.random.default_rng(0).integers(0, 64, (3, 200_000, 8), dtype=np.uint8)
    stored = io.BytesIO()
    np.savez(stored, topk_ids=ids)
    content = stored.getvalue()
    tracemalloc.start()
    routes = batch(read(content), "routes")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert routes.columns["ids"].dtype == np.int8
    assert np.array_equal(routes.columns["ids"], ids.reshape(-1, 8))
    assert peak < 4 * ids.nbytes  # int32 ids and masks of everything took twelve times as much


def test_what_would_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr(routing_tokens, "MAX_WORK", 1 << 12)
    for arrays in ({"topk_ids": np.ones((2, 900, 8), np.uint8)}, {"logits": np.ones((2, 90, 64), np.float32)}):
        with pytest.raises(LimitError, match="MiB of memory"):
            read(saved(**arrays))


@pytest.mark.parametrize(("shape", "order"), [("(60, 1000000000, 8)", "False"), ("(2, -5)", "False")])
def test_a_header_that_lies_about_its_size_is_refused(shape, order):
    head = f"{{'descr': '|u1', 'fortran_order': {order}, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(1000)
    with pytest.raises(ReadError, match="its header promises"):
        read(content, "a.npy")


def test_columns_first_are_read_as_they_are_meant():
    cube = np.arange(24).reshape(2, 3, 4)
    out = read(saved(logical_count=np.asfortranarray(cube + 1)))
    assert np.array_equal(batch(out, "counts").columns["tokens"], cube.reshape(6, 4) + 1)


def test_an_id_far_beyond_all_others_is_no_expert():
    ids = np.argsort(np.random.default_rng(0).random((2, 50, 16)), axis=-1)[..., :4]
    ids[1, 7, 2] = 65000
    out = read(saved(topk_ids=ids))
    assert "expert 65000 in layer 1, token 7 of 0 to 15; 1 of 400 choices are not used" in [p.text for p in out.problems]
    assert batch(out, "routes").columns["ids"].max() == 15

import pytest

from moexray.core.source import Source
from moexray.readers.read_any import read_sources


def read(text):
    return read_sources([Source("table.csv", content=text.encode())])


def only(run):
    (batch,) = run.batches("counts")
    return batch


@pytest.mark.parametrize(
    ("header", "axis"),
    [
        ("layer,rank0,rank1,rank2", "rank"),
        ("layer_id,EP0,EP1,EP2", "rank"),
        ("moe_layer,gpu_0,gpu_1,gpu_2", "rank"),
        ("layer,tokens_rank0,tokens_rank1,tokens_rank2", "rank"),
        ("layer,e0,e1,e2", "logical"),
        ("Layer,Expert 0,Expert 1,Expert 2", "logical"),
        ("layer,0,1,2", "logical"),
        ("layer,slot0,slot1,slot2", "physical"),
    ],
)
def test_wide_tables(header, axis):
    counts = only(read(f"{header}\n3,10,20,30\n4,40,50,60\n"))
    assert counts.attrs["axis"] == axis
    assert counts.columns["layer"].tolist() == [3, 4]
    assert counts.columns["tokens"].tolist() == [[10, 20, 30], [40, 50, 60]]


def test_columns_in_another_order_and_semicolons():
    counts = only(read("rank1;rank0;layer\n20;10;0\n40;30;1\n"))
    assert counts.columns["tokens"].tolist() == [[10, 20], [30, 40]]


def test_rows_are_ranks_and_columns_layers():
    counts = only(read("rank,layer0,layer1\n0,10,20\n1,30,40\n2,50,60\n"))
    assert counts.attrs["axis"] == "rank"
    assert counts.columns["tokens"].tolist() == [[10, 30, 50], [20, 40, 60]]


def test_steps_and_repeated_layers_are_windows():
    counts = only(read("step,layer,rank0,rank1\n5,0,1,2\n5,1,3,4\n9,0,5,6\n9,1,7,8\n"))
    assert counts.columns["step"].tolist() == [5, 5, 9, 9]
    counts = only(read("layer,rank0,rank1\n0,1,2\n1,3,4\n0,5,6\n1,7,8\n"))
    assert counts.columns["step"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("layer_id,expert_id,count\n0,0,5\n0,2,7\n1,1,9\n", [[5, 0, 7], [0, 9, 0]]),
        ("rank,tokens\n0,5\n1,7\n2,9\n", [[5, 7, 9]]),
        ("layer,gpu,load\nL0,0,5\nL0,1,7\nL1,0,9\nL1,1,3\n", [[5, 7], [9, 3]]),
    ],
)
def test_long_tables(text, tokens):
    assert only(read(text)).columns["tokens"].tolist() == tokens


def test_routed_and_combined():
    run = read("expert,routed,combined\n0,10,10\n1,20,0\n2,0,0\n")
    assert {b.attrs["what"]: b.columns["tokens"].tolist() for b in run.batches("counts")} == {
        "routed": [[10, 20, 0]], "combined": [[10, 0, 0]],
    }


@pytest.mark.parametrize(
    ("row", "word", "column"),
    [
        ("0,10,nan,30", "NaN", "e1"),
        ("0,10,20,-inf", "infinite", "e2"),
        ("0,-1,20,30", "negative", "e0"),
        ('0,"1,024",20,30', "separators", "e0"),
        ("0,1 024,20,30", "separators", "e0"),
        ("0,ten,20,30", "no number", "e0"),
    ],
)
def test_dirty_cells_are_named_and_the_row_is_not_used(row, word, column):
    run = read(f"layer,e0,e1,e2\n{row}\n1,10,20,30\n2,10,20,30\n")
    (problem,) = [p for _, p in run.problems if p.id == "input.dirty_table"]
    assert word in problem.text
    assert problem.values["column"] == column
    assert problem.values["row"] == 1
    assert only(run).columns["layer"].tolist() == [1, 2]


def test_a_ragged_row_and_an_all_zero_table():
    run = read("layer,e0,e1,e2\n0,10,20,30\n1,10,20\n2,1,2,3\n")
    assert {p.id for _, p in run.problems} == {"input.dirty_table"}
    assert only(run).columns["layer"].tolist() == [0, 2]
    run = read("layer,e0,e1,e2\n0,0,0,0\n1,0,0,0\n")
    assert [p.id for _, p in run.problems] == ["input.dirty_table"]
    assert not run.batches("counts")


def test_empty_fields_are_not_dirty():
    run = read("layer,e0,e1,e2\n0,10,,30\n1,10,20,30\n")
    assert not run.problems
    assert only(run).columns["layer"].tolist() == [1]


@pytest.mark.parametrize(
    "text",
    [
        "src_rank,dst0,dst1\n0,10,20\n1,30,40\n",
        "rank,rank0,rank1\n0,10,20\n1,30,40\n",
        "step,rank0_ms,rank1_ms\n0,10,20\n1,30,40\n",
        "layer,rank0,rank1\n0,10.5,20.25\n1,30.1,40.7\n",
        "step,step_ms,prefill_tokens_dp0,prefill_tokens_dp1\n0,31.5,0,8\n1,30.1,0,0\n",
        "run,total_tok_s\n1,1187\n2,7653\n",
        "t_s,itl_ms\n0.03,31\n0.06,30\n",
    ],
)
def test_other_tables_are_left_alone(text):
    assert not read(text).batches("counts")


TABLE = "layer,expert,count\n" + "".join(f"{y},{e},{10 * e + y + 1}\n" for y in range(3) for e in range(4))


@pytest.mark.parametrize(("row", "words"), [
    ("0,70000,5", "no id of an expert or rank (70000) in row 13 (line 14), column expert"),
    ("0,-2,5", "no id of an expert or rank (-2) in row 13"),
    ("0,x,5", "no id of an expert or rank (x) in row 13"),
    ("0,65000,5", "id far beyond all others, which end at 3 (65000) in row 13"),
])  # fmt: skip
def test_a_row_of_no_expert_costs_only_itself(row, words):
    run = read(f"{TABLE}{row}\n")
    (problem,) = [p for _, p in run.problems]
    assert words in problem.text
    assert only(run).columns["tokens"].tolist() == only(read(TABLE)).columns["tokens"].tolist()


@pytest.mark.parametrize("cell", ["abc", "nan", "-3", "1e300", "", "N/A"])
def test_an_unknown_count_is_not_zero(cell):
    run = read(TABLE.replace("1,2,22\n", f"1,2,{cell}\n"))
    assert only(run).columns["layer"].tolist() == [0, 2]
    assert "a count is unknown in layer 1: set aside, 3 sound rows with it" in [p.text for _, p in run.problems]


def test_where_no_layer_is_whole_the_reason_is_told():
    run = read("layer,expert,count\n0,0,abc\n0,1,20\n0,2,5\n")
    assert not run.batches("counts")
    assert any("no number (abc) in row 1 (line 2)" in p.text for _, p in run.problems)

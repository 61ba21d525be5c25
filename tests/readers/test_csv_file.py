import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_samples import read, said
from moexray.readers.csv_file import parse, sniff

SWEEP = "build,concurrency,mean_ttft_ms,tok_s\nbefore,1,210.5,61.2\nafter,1,212,61.5\n"


def bench(run):
    return [(r["run"], r["figure"], r["value"]) for r in run.rows("bench")]


@pytest.mark.parametrize(
    "text",
    [
        SWEEP,
        SWEEP.replace(",", "\t"),
        SWEEP.replace(",", ";"),
        SWEEP.replace(",", ";").replace(".", ","),
        SWEEP.replace("\n", "\r\n"),
        "\ufeff" + SWEEP,
        "nightly sweep\n\n" + SWEEP,
        "# made by a script, twice\n" + SWEEP,
        SWEEP + "build,concurrency,mean_ttft_ms,tok_s\n",
        SWEEP.replace("before", '"before"'),
        SWEEP.replace("mean_ttft_ms", "Mean TTFT [ms]").replace("tok_s", "tok/s"),
        ("| build | concurrency | mean_ttft_ms | tok_s |\n|---|---|---|---|\n| before | 1 | 210.5 | 61.2 |\n"
        "| after | 1 | 212 | 61.5 |\n"),
        SWEEP.replace(",61.2", ",61.2,").replace(",61.5", ",61.5,"),
    ],
    ids=["plain", "tab", "semicolon", "comma-decimals", "crlf", "bom", "title", "comment", "repeated-header",
         "quoted", "units-in-header", "markdown", "closing-separator"],
)
def test_every_dialect_gives_the_same_rows(text):
    assert bench(read({"sweep.csv": text})) == [
        ("before", "mean_ttft_s", 0.2105),
        ("after", "mean_ttft_s", 0.212),
        ("before", "tokens_per_s", 61.2),
        ("after", "tokens_per_s", 61.5),
    ]


def test_a_plain_table_is_no_finding_an_unusual_one_says_how_it_was_read():
    assert said({"s.csv": SWEEP}) == {}
    assert said({"s.tsv": SWEEP.replace(",", "\t")}) == {}
    unusual = said({"s.csv": SWEEP.replace(",", ";").replace(".", ",")})["input.dialect"]
    assert unusual.severity == "info"
    assert "decimal sign is a comma" in unusual.claim


@pytest.mark.parametrize(
    "rows",
    ['before,1,"1,024","2,048"\nafter,1,"1,020","2,040"\n', "before,1,210,5,61\nafter,1,212,1,61\n",
     "before,1,fast,61\nafter,1,nan,61\n"],
    ids=["thousands-or-decimals", "unquoted-decimal-commas", "no-numbers"],
)
def test_two_readings_are_refused_and_named(rows):
    found = said({"s.csv": "build,concurrency,mean_ttft_ms,tok_s\n" + rows})
    assert found["input.dirty_table"].severity == "warn"
    assert "line 2" in found["input.dirty_table"].claim


def test_a_row_cut_off_at_the_end_of_the_file_is_truncation():
    found = said({"s.csv": SWEEP + "later,1,21"})
    assert list(found) == ["input.truncated"]
    assert "2 whole rows" in found["input.truncated"].claim


def test_a_table_without_header_has_no_names():
    [grid] = parse("412,96,733\n188,305,64\n")
    assert grid.header == ()
    assert grid.rows[0] == ("412", "96", "733")
    assert grid.width == 3


def test_ids_in_a_row_are_a_header():
    [grid] = parse("layer,0,1,2\n0,5,6,7\n")
    assert grid.header == ("layer", "0", "1", "2")


def test_the_header_may_be_a_comment():
    [grid] = parse("# step,loss\n0.5,1.25\n1.5,2.5\n")
    assert grid.header == ("step", "loss")
    assert len(grid.rows) == 2


def test_several_tables_in_one_file():
    grids = parse("Metric,avg,p99\nITL (ms),1.5,2\n\nMetric,Value\nRequests,3.5\n")
    assert [g.header for g in grids] == [("Metric", "avg", "p99"), ("Metric", "Value")]


def test_numbers_are_lines_of_the_file():
    [grid] = parse("# a\n\na,b\n1,2\n\n3,4\n")
    assert grid.numbers == (4, 6)


@pytest.mark.parametrize(
    "text",
    ["INFO 01-01 [x.py:1] Engine 000: Running: 3 reqs, Waiting: 0 reqs\n" * 3, "Hello world\n", '{"a": 1,\n"b": 2}\n',
     "Dear all, it hangs again, and I do not know what to do about it, please help\n"],
)
def test_logs_and_prose_are_no_tables(text):
    assert not sniff(text.encode())


def test_a_table_of_unknown_columns_is_skipped_with_a_reason():
    run = read({"x.csv": "colour,taste\nred,sweet\nblue,sour\n"})
    assert [s.reason.split(";")[0] for s in run.skipped] == ["a table whose columns are not known"]
    assert not run.problems


def test_a_log_that_looks_like_a_table_is_read_as_text():
    log = "".join(f"a{i}, b{i}\n" for i in range(5))
    log += "INFO 01-01 10:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. "
    log += "GPU 0 has a total capacity of 79.10 GiB of which 12.00 MiB is free.\n"
    assert read({"x.log": log}).rows("oom")


def test_a_huge_table_is_read_in_part(monkeypatch):
    monkeypatch.setattr("moexray.readers.csv_file.MAX_CELLS", 12)
    run = read({"s.csv": SWEEP + "more,1,3,4\n" * 10})
    assert [p.id for _, p in run.problems] == ["input.huge"]
    assert len(bench(run)) == 4


@given(st.lists(st.lists(st.floats(0, 1e6).map(lambda x: round(x, 3)), min_size=3, max_size=3), min_size=2, max_size=9))
def test_numbers_survive_any_separator(rows):
    header = ("a", "b", "c")
    for separator in (",", ";", "\t"):
        text = "\n".join(separator.join(map(str, r)) for r in (header, *rows)) + "\n"
        [grid] = parse(text)
        assert [[float(c) for c in r] for r in grid.rows] == rows


def test_a_text_beyond_the_memory_bound_is_read_in_part(monkeypatch):
    monkeypatch.setattr("moexray.readers.csv_file.MAX_BYTES", len(SWEEP) + 3)
    run = read({"s.csv": SWEEP + "more,1,3,4\n" * 10})
    assert [p.id for _, p in run.problems] == ["input.huge"]
    assert len(bench(run)) == 4

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from moexray.core.errors import ReadError, UsageError
from moexray.core.run import Reading, Skipped, build_run
from moexray.core.store import is_saved, load, save


@pytest.fixture
def run():
    reading = Reading("text")
    reading.add("log", where="line 3", kind="engine.ready", t_s=1.5, fields={"a": [1, 2]}, text="ready")
    reading.add("oom", where="line 9", kind="record", request_bytes=12, others=[{"pid": 1, "bytes": 2}])
    columns = {"t_s": np.array([0.0, np.nan]), "value_s": np.array([0.1, 0.2])}
    reading.add_columns("latency", columns, source="a.csv", rows=2, rank=3)
    reading.problem("input.truncated", "ends early", where="offset 5", lost=None)
    return build_run([("a.csv", reading)], [Skipped("b", "empty")])


def test_a_saved_run_loads_equal(run, tmp_path):
    save(run, tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.tables == run.tables
    assert (again.inputs, again.skipped, again.problems) == (run.inputs, run.skipped, run.problems)
    [batch], [old] = again.batches("latency"), run.batches("latency")
    assert batch.attrs == {"rank": 3}
    np.testing.assert_array_equal(batch.columns["t_s"], old.columns["t_s"])
    assert run.frame("latency").equals(again.frame("latency"))


@pytest.mark.parametrize("names", [["0", None], [None, None], ["a", "b"]])
def test_text_in_a_batch_may_have_holes(tmp_path, names):
    reading = Reading("kineto")
    numbers = dict.fromkeys(("row", "group_size", "seq", "in_elements", "out_elements"), np.array([1, 2]))
    texts = {name: ["x", "y"] for name in ("collective", "ranks", "dtype", "in_splits", "out_splits")}
    reading.add_columns("trace_comm", {**numbers, **texts, "group": names}, source="t.json", rows=2)
    save(build_run([("t.json", reading)], []), tmp_path / "run")
    assert load(tmp_path / "run").batches("trace_comm")[0].columns["group"] == names


def test_nothing_is_overwritten_without_force(run, tmp_path):
    save(run, tmp_path)
    with pytest.raises(UsageError, match="not empty"):
        save(run, tmp_path)
    save(run, tmp_path, force=True)
    assert is_saved(tmp_path)


def test_a_damaged_or_missing_run_is_a_clear_error(run, tmp_path):
    with pytest.raises(ReadError, match="no saved run"):
        load(tmp_path)
    save(run, tmp_path)
    (tmp_path / "log-rows.parquet").write_bytes(b"nonsense")
    with pytest.raises(ReadError, match="damaged"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["..", "*", "../x/log-rows.parquet", "/etc/passwd", "log-rows.parquet/.."])
def test_a_manifest_cannot_lead_out_of_its_folder(run, tmp_path, name):
    save(run, tmp_path)
    text = (tmp_path / "manifest.json").read_text().replace("log-rows.parquet", name)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ReadError, match="damaged"):
        load(tmp_path)


def test_a_bomb_of_a_table_is_refused(run, tmp_path):
    save(run, tmp_path)
    pl.DataFrame({"kind": pl.repeat(None, 60_000_000, dtype=pl.String, eager=True)}).write_parquet(
        tmp_path / "log-rows.parquet"
    )
    with pytest.raises(ReadError, match="expand"):
        load(tmp_path)


def test_frames_have_the_declared_columns_whatever_was_read(run):
    frame = run.frame("oom")
    assert frame["request_bytes"].to_list() == [12]
    assert frame["free_bytes"].to_list() == [None]
    assert run.frame("bench").is_empty()

import gzip
import sqlite3
import tarfile

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.core.source import Source
from moexray.core.tables.timeline import CATEGORIES
from moexray.readers.read_any import read_any, read_one, read_sources

SECRET = "do-not-show-me"
PROCESS = 77 << 24


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "run.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(
            f"""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            INSERT INTO StringIds VALUES (1, 'my_kernel(float*)'), (2, 'cudaMalloc_v3020'), (3, 'step 4');
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT,
                correlationId INT, globalPid INT, demangledName INT);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000, 2500, 0, 7, 11, {PROCESS}, 1), (9, 3, 0, 7, 1, 0, 1);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, streamId INT,
                correlationId INT, globalPid INT, bytes INT, copyKind INT);
            INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1000, 1100, 0, 7, 10, {PROCESS}, 512, 1);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT,
                nameId INT);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1900, 1950, {PROCESS + 78}, 11, 2);
            CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT);
            INSERT INTO NVTX_EVENTS VALUES (900, 3000, 59, NULL, 3, {PROCESS + 78}), (5, NULL, 34, 'mark', NULL, 0);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INT, systemClockNs INT);
            INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, 500);
            CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
            INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('TOKEN', '{SECRET}');
            """
        )
    db.close()
    return path


def read(path, content=None):
    source = Source("run.sqlite", path) if content is None else Source("run.sqlite.gz", content=content)
    return read_one(source)


def test_kernels_calls_and_ranges_in_one_table(export):
    reading, reason = read(export)
    assert (reason, reading.reader) == ("", "nsys")
    (b,) = reading.batches
    rows = {b.attrs["names"][n]: i for i, n in enumerate(b.columns["name"].tolist())}
    assert set(rows) == {"my_kernel(float*)", "cudaMalloc", "step 4", "Memcpy HtoD"}
    kernel = rows["my_kernel(float*)"]
    assert int(b.columns["ts_ns"][kernel]) == 1_700_000_000_000_000_000 + 2000 - 500
    assert CATEGORIES[b.columns["category"][kernel]] == "kernel"
    assert int(b.columns["bytes"][rows["Memcpy HtoD"]]) == 512
    assert [p.id for p in reading.problems] == ["input.negative_duration"]


def test_a_packed_export_is_the_same(export):
    reading, reason = read(None, gzip.compress(export.read_bytes()))
    assert (reason, reading.rows) == ("", 4)


def test_the_environment_is_never_shown(export):
    reading, _ = read(export)
    assert SECRET not in repr(reading)


def test_the_file_is_not_changed(export):
    before = export.read_bytes()
    read(export)
    assert export.read_bytes() == before


def test_views_and_functions_are_refused(tmp_path):
    path = tmp_path / "evil.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(
            "CREATE TABLE t (a); CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT randomblob(1000000000) AS start;"
        )
    db.close()
    reading, reason = read(path)
    assert "no event tables" in reason
    assert not reading.batches


def test_a_damaged_database_is_told(tmp_path):
    reading, reason = read(None, gzip.compress(b"SQLite format 3\0" + b"\x10\x00" + b"x" * 5000))
    assert "SQLite" in reason
    assert reading.rows == 0


def test_a_graph_that_was_not_traced_by_nodes_is_one_slice(tmp_path):
    path = tmp_path / "run.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT, deviceId INT, streamId INT,"
            f" correlationId INT, globalPid INT, graphId INT); INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
            f" VALUES (10, 90, 0, 7, 3, {PROCESS}, 12);"
        )
    db.close()
    (b,) = read(path)[0].batches
    assert b.attrs["names"] == ["CUDA graph 12"]
    assert CATEGORIES[b.columns["category"][0]] == "kernel"


# ---- the same tables as a folder of Parquet files and as JSON lines


def as_parquet(sqlite, folder):
    folder.mkdir()
    with sqlite3.connect(sqlite) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = db.execute(f"SELECT * FROM {table}")
            rows = cursor.fetchall()
            frame = pl.DataFrame(rows, schema=[d[0] for d in cursor.description], orient="row", infer_schema_length=None)
            frame.write_parquet(folder / f"{table}.parquet")
    db.close()
    return folder


def table_of(run):
    [b] = run.batches("trace")
    columns = {k: v.tolist() for k, v in b.columns.items()}
    columns["name"] = [b.attrs["names"][i] for i in columns["name"]]
    columns["lane"] = [b.attrs["lanes"][i] for i in columns["lane"]]
    return columns


def test_a_folder_of_parquet_files_is_the_same_trace(export, tmp_path):
    folder = as_parquet(export, tmp_path / "rank3_pqtdir")
    run = read_any([str(folder)])
    assert [(i.path, i.reader, i.rows) for i in run.inputs] == [("rank3_pqtdir", "nsys", 4)]
    assert not run.skipped
    assert table_of(run) == table_of(read_any([str(export)]))
    assert run.batches("trace")[0].attrs["rank"] == 3
    assert SECRET not in repr(run)
    assert [i.path for i in read_any([str(tmp_path)]).inputs] == ["run.sqlite", "rank3_pqtdir"]


def test_a_packed_folder(export, tmp_path):
    folder = as_parquet(export, tmp_path / "x_pqtdir")
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(folder, "x_pqtdir")
    run = read_any([str(tmp_path / "x.tar")])
    assert table_of(run) == table_of(read_any([str(export)]))


@pytest.mark.parametrize("damage", ["cut", "other", "empty", "swapped"])
def test_a_damaged_table_costs_itself_only(export, tmp_path, damage):
    folder = as_parquet(export, tmp_path / "x_pqtdir")
    bad = folder / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet"
    whole = bad.read_bytes()
    if damage == "cut":
        bad.write_bytes(whole[: len(whole) // 2])
    elif damage == "other":
        pl.DataFrame({"start": ["x", "y"], "end": [1.5, None], "globalTid": [[1], [2]]}).write_parquet(bad)
    elif damage == "empty":
        pl.DataFrame({"start": []}).write_parquet(bad)
    else:
        middle = len(whole) // 3
        bad.write_bytes(whole[:middle] + b"\xff" * 40 + whole[middle + 40 :])
    run = read_any([str(folder)])
    assert {"my_kernel(float*)", "step 4", "Memcpy HtoD"} <= set(table_of(run)["name"])
    if damage == "cut":
        assert "input.truncated" in [p.id for _, p in run.problems]


def test_parquet_files_of_something_else_are_refused(tmp_path):
    for name in ("a", "b"):
        pl.DataFrame({"x": [1]}).write_parquet(tmp_path / f"{name}.parquet")
    [skipped] = read_any([str(tmp_path)]).skipped
    assert "no event tables of Nsight Systems" in skipped.reason
    [skipped] = read_any([str(tmp_path / "a.parquet")]).skipped
    assert "no event tables" in skipped.reason


def test_a_table_that_claims_too_many_rows_is_refused(export, tmp_path, monkeypatch):
    monkeypatch.setattr("moexray.readers.nsys_parquet.MAX_TABLE_ROWS", 1)
    [skipped] = read_any([str(as_parquet(export, tmp_path / "x_pqtdir"))]).skipped
    assert "rows" in skipped.reason


def test_too_many_events_are_cut_at_one_moment_and_counted(tmp_path, monkeypatch):
    path = tmp_path / "run.sqlite"
    kernels = [(1000 * i, 1000 * i + 500, 0, 7, i, PROCESS) for i in range(100)]
    calls = [(1000 * i - 100, 1000 * i - 50, PROCESS + 5, i) for i in range(1, 101)]
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT)")
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT)")
        db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", kernels)
        db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)", calls)
    db.close()
    monkeypatch.setattr("moexray.readers.nsys_export.MAX_EVENTS", 100)
    reading, _ = read(path)
    [problem] = [p for p in reading.problems if p.id == "input.huge"]
    assert reading.rows + problem.lost == 200
    assert 95 <= reading.rows <= 100
    [b] = reading.batches
    on_device = b.columns["device"] >= 0
    ends = [int(b.columns["ts_ns"][mask].max()) for mask in (on_device, ~on_device)]
    assert abs(ends[0] - ends[1]) <= 1000  # kernels and calls end at the same moment


STRINGS = '{"data":["[Unknown]","[Unknown kernel module]","my_kernel(float*)","cudaMalloc_v3020"]}'
EVENTS = [
    f'{{"Type":48,"TraceProcessEvent":{{"startNs":"1900","endNs":"1950","correlationId":11,"globalTid":"{PROCESS + 78}","name":"3"}}}}',
    (f'{{"Type":79,"CudaEvent":{{"startNs":"2000","endNs":"2500","correlationId":11,"globalPid":"{PROCESS}","deviceId":0,'
    '"streamId":"7","kernel":{"demangledName":"2","shortName":"2"}}}'),
    (f'{{"Type":80,"CudaEvent":{{"startNs":"1000","endNs":"1100","correlationId":10,"globalPid":"{PROCESS}","deviceId":0,'
    '"streamId":"7","memcpy":{"sizebytes":"512","copyKind":1}}}'),
    f'{{"Type":59,"NvtxEvent":{{"Type":59,"Timestamp":"900","Text":"step 4","GlobalTid":"{PROCESS + 78}","EndTimestamp":"3000"}}}}',
    '{"Type":59,"NvtxEvent":{"Type":34,"Timestamp":"905","Text":"mark","GlobalTid":"0"}}',
    f'{{"Type":47,"TraceProcessEvent":{{"startNs":"1","endNs":"2","globalTid":"{PROCESS + 78}","name":"1"}}}}',
]


@pytest.mark.parametrize("lines", [[STRINGS, *EVENTS], [*EVENTS, STRINGS]], ids=["strings first", "strings last"])
def test_json_lines_hold_the_same_events(export, lines):
    run = read_sources([Source("run.jsonl", content="\n".join(lines).encode())])
    found, truth = table_of(run), table_of(read_any([str(export)]))
    shift = truth["ts_ns"][0] - found["ts_ns"][0]
    assert [t + shift for t in found["ts_ns"]] == truth["ts_ns"]
    assert all(found[key] == truth[key] for key in found if key != "ts_ns")
    assert not run.problems


def test_damaged_json_lines_are_counted():
    lines = [STRINGS, *EVENTS, EVENTS[1][:60], EVENTS[1].replace('"2000"', '"x"'), EVENTS[1].replace('"2500"', '"1"')]
    run = read_sources([Source("run.jsonl", content="\n".join(lines).encode())])
    assert len(table_of(run)["name"]) == 4
    assert {p.id: p.lost for _, p in run.problems} == {"input.truncated": 1, "input.negative_duration": 2}


@given(st.lists(st.sampled_from([*EVENTS, STRINGS, "{}", "[]", "null", '{"Type":79,"CudaEvent":7}', EVENTS[0][:-9]])), st.integers(0, 400))
def test_json_lines_never_fail(lines, cut):
    content = "\n".join([EVENTS[1], *lines]).encode()
    read_sources([Source("run.jsonl", content=content[: len(content) - cut])])

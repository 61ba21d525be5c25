import gzip
import sqlite3

import pytest

from moexray.core.source import Source
from moexray.core.tables.timeline import CATEGORIES
from moexray.readers.read_any import read_one

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
    assert "without event tables" in reason
    assert not reading.batches


def test_a_damaged_database_is_told(tmp_path):
    reading, reason = read(None, gzip.compress(b"SQLite format 3\0" + b"\x10\x00" + b"x" * 5000))
    assert "SQLite" in reason
    assert reading.rows == 0

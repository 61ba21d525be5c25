"""Bad input through the real program: a clear message, the right exit code, no traceback, bounded memory."""

import gzip
import json
import os
import pickle
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

OOM = (
    "ERROR 10-11 12:27:29 engine.py:157] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a "
    "total capacity of 79.15 GiB of which 200.00 MiB is free. Including non-PyTorch memory, this process has 78.90 GiB memory "
    "in use. Of the allocated memory 75.00 GiB is allocated by PyTorch, and 2.00 GiB is reserved by PyTorch but unallocated.\n"
)
PEAK = 1 << 20  # KiB: 1 GiB


def run(*paths, stdin=b""):
    """Runs `moexray diagnose`; returns (exit code, document, stderr, peak resident KiB)."""
    script = (
        "import resource, subprocess, sys\n"
        "p = subprocess.run([sys.executable, '-m', 'moexray', 'diagnose', '--format', 'json', *sys.argv[1:]])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\n"
        "sys.exit(p.returncode)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, paths)], input=stdin, capture_output=True, timeout=300, check=False
    )
    errors = done.stderr.decode()
    assert "Traceback" not in errors
    lines = errors.strip().splitlines()
    document = json.loads(done.stdout) if done.stdout.strip() else None
    peak = int(lines[-1])
    assert peak < PEAK
    return done.returncode, document, "\n".join(lines[:-1]), peak


def ids(document):
    return [f["id"] for f in document["findings"]]


@pytest.fixture
def good(tmp_path):
    """A folder with one good log, to which a bad file is added."""
    (tmp_path / "server.log").write_text(OOM)
    return tmp_path


def still_used(folder):
    """The good part is still used: the verdict of the log stands. Returns the document."""
    code, document, _, _ = run(folder)
    assert code == 1
    assert "mem.fragmentation" in ids(document)
    return document


def test_a_missing_path(tmp_path):
    code, document, errors, _ = run(tmp_path / "nothing")
    assert code == 2
    assert document["schema"] == "moexray.error/1"
    assert "does not exist" in document["error"]["what"]
    assert "does not exist" in errors
    assert "try:" in errors


def test_an_empty_folder(tmp_path):
    code, document, _, _ = run(tmp_path)
    assert code == 2
    assert document["verdict"] == "none"


def test_a_gzip_bomb(good):
    engine = zlib.compressobj(9, zlib.DEFLATED, 31)
    with (good / "bomb.json.gz").open("wb") as out:
        for _ in range(3000):
            out.write(engine.compress(b" " * (1 << 20)))
        out.write(engine.flush())
    document = still_used(good)
    assert any("bomb" in s["reason"] for s in document["skipped"])


def test_a_bomb_in_a_bomb(good):
    inner = gzip.compress(b"0" * (300 << 20))
    (good / "b.log.gz").write_bytes(gzip.compress(inner))
    still_used(good)


def test_a_sparse_file_of_2_gb(good):
    with (good / "sparse.log").open("wb") as out:
        out.truncate(2 << 30)
    document = still_used(good)
    assert [s["path"] for s in document["skipped"]] == ["sparse.log"]


def test_zeros_and_then_something(good):
    with (good / "late.bin").open("wb") as out:
        out.truncate(300 << 20)
        out.seek(0, os.SEEK_END)
        out.write(OOM.encode())
    still_used(good)


def test_links_that_loop_and_dangle(good):
    (good / "loop").symlink_to(good)
    (good / "gone.log").symlink_to(good / "nowhere")
    (good / "self").symlink_to(good / "self")
    document = still_used(good)
    assert {s["path"] for s in document["skipped"]} == {"loop", "gone.log", "self"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(good):
    (good / "secret.log").write_text(OOM)
    (good / "secret.log").chmod(0)
    document = still_used(good)
    assert "permission" in document["skipped"][0]["reason"].lower()


def test_a_named_pipe_is_not_opened(good):
    os.mkfifo(good / "pipe.log")
    assert still_used(good)["skipped"][0]["reason"] == "not a regular file"


class Boom:
    def __reduce__(self):
        return (os.system, ("echo MARKER-RAN; touch /tmp/moexray-marker",))


def test_a_pickle_that_wants_to_run_code(good, tmp_path):
    (good / "evil.pickle").write_bytes(pickle.dumps({"segments": [], "x": Boom()}))
    document = still_used(good)
    assert "input.unsafe_pickle" in ids(document)
    assert "MARKER-RAN" not in json.dumps(document)
    assert not Path("/tmp/moexray-marker").exists()


def test_a_billion_laughs_pickle(good):
    nest = ["lol"] * 10
    for _ in range(12):
        nest = [nest] * 10
    (good / "laughs.pickle").write_bytes(pickle.dumps({"segments": nest, "device_traces": nest}))
    still_used(good)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 5_000_000,
        b'{"a":' * 2_000_000,
        b'{"traceEvents": [' + b'{"ph":"X","ts":1,"dur":1,"name":"k","cat":"kernel"},' * 20 + b"NaN, Infinity, ",
        b'{"traceEvents": [{"ph":"X","cat":"kernel","name":"k","ts":1e308,"dur":1e308,"pid":0,"tid":0}]}',
        b'{"segments": [{"total_size": 1e400, "blocks": [{"size": -1}]}], "device_traces": []}',
        b'{"logical_count": [[[NaN, 1], [2]]]}',
        b"\xff\xfe" + "t,v\n1,2\n".encode("utf-16-le")[:-1],
        b"a,b\n" + b"1," * 1_000_000,
        b"x" * 50_000_000,
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"PK\x03\x04" + b"\0" * 100,
        b"SQLite format 3\0" + b"\0" * 5000,
        b"<?xml version='1.0'?><!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;'>]><nvidia_smi_log>&b;",
        b"# HELP a b\n# TYPE a gauge\na{" + b'x="' * 100_000 + b"\n",
    ],
    ids=range(14),
)
def test_damaged_content_never_hurts_the_rest(good, content):
    (good / "bad").write_bytes(content)
    still_used(good)


def test_standard_input_that_is_binary():
    code, document, _, _ = run("-", stdin=os.urandom(100_000))
    assert code == 2
    assert document["findings"] == [] or all(f["id"].startswith("input.") for f in document["findings"])


def test_ten_thousand_small_files(good):
    many = good / "many"
    many.mkdir()
    for i in range(3000):
        (many / f"{i}.log").write_text("INFO 01-01 00:00:00 [a.py:1] hello\n")
    still_used(good)

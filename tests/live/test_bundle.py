"""A recording's folder: bounded, whole at any moment, and honest about what it did not take."""

import errno
import json
import os

import pytest

from moexray.core.errors import UsageError
from moexray.live import bundle as bundles
from moexray.live.bundle import LEAST_BYTES, PARTS, Bundle


@pytest.fixture
def bundle(tmp_path):
    return Bundle(tmp_path / "b", LEAST_BYTES)


def files(bundle):
    return {p.relative_to(bundle.folder).as_posix(): p.read_text("utf-8") for p in sorted(bundle.folder.rglob("*")) if p.is_file()}


def test_lines_go_into_segments_with_their_header(bundle):
    line = "x" * 999 + "\n"
    for _ in range(70):
        bundle.append("latency/steps.csv", line, header="head\n")
    found = files(bundle)
    assert list(found)[:2] == ["latency/steps-0001.csv", "latency/steps-0002.csv"]
    assert all(text.startswith("head\n") and text.endswith("x\n") for text in found.values())
    assert sum(text.count("x\n") for text in found.values()) == 70
    assert bundle.lost == bundle.dropped == {}


def test_the_oldest_goes_first_and_is_counted_by_stream(bundle):
    line = "x" * 999 + "\n"
    for _ in range(300):
        bundle.append("a.csv", line)
    for _ in range(2000):
        bundle.append("b.csv", line)
    found = files(bundle)
    assert sum(map(len, found.values())) <= LEAST_BYTES
    assert sum(map(len, found.values())) > LEAST_BYTES * (1 - 3 / PARTS) - bundles.SPARE
    assert "a-0001.csv" not in found
    assert "b-0001.csv" not in found
    kept = sum(text.count("\n") for text in found.values())
    assert sum(bundle.dropped.values()) == 1000 * (2300 - kept)
    assert bundle.dropped["a.csv"] > 0


def test_a_file_is_whole_under_its_name_and_goes_in_its_turn(bundle):
    for number in range(40):
        bundle.file("metrics", f"metrics/{number:02d}.prom", b"y" * 50_000)
    found = files(bundle)
    assert max(found) == "metrics/39.prom"
    assert set(map(len, found.values())) == {50_000}
    assert bundle.dropped["metrics"] == (40 - len(found)) * 50_000


def test_what_is_larger_than_the_folder_is_lost_and_counted(bundle):
    bundle.file("memory", "memory/big.pickle", b"z" * (LEAST_BYTES + 1))
    assert files(bundle) == {}
    assert bundle.lost == {"memory": LEAST_BYTES + 1}


@pytest.mark.parametrize("partly", [False, True])
def test_a_full_disk_is_counted_leaves_whole_lines_and_ends_with_room(bundle, monkeypatch, partly):
    bundle.append("a.csv", "one\n")
    write = os.pwrite

    def full(fd, data, at):
        if partly:
            return write(fd, data[:2], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        bundle.append("a.csv", "two\n")
        bundle.file("metrics", "m.prom", b"abcdef")
        assert bundle.manifest({}) is False
        assert bundle.error == "No space left on device"
    assert files(bundle) == {"a-0001.csv": "one\n"}
    bundle.append("a.csv", "three\n")
    assert files(bundle) == {"a-0001.csv": "one\nthree\n"}
    assert bundle.lost == {"a.csv": 4, "metrics": 6}
    assert bundle.manifest({"steps": 1})
    about = json.loads((bundle.folder / "manifest.json").read_text("utf-8"))
    assert (about["schema"], about["steps"], about["files"]) == ("moexray.bundle/1", 1, ["a-0001.csv"])
    assert about["lost_bytes"] == {"a.csv": 4, "metrics": 6}


def test_a_manifest_that_grows_shorter_is_whole(bundle):
    bundle.manifest({"text": "long" * 100})
    bundle.manifest({})
    assert json.loads((bundle.folder / "manifest.json").read_text("utf-8"))["files"] == []


def test_a_folder_in_use_or_too_small_is_refused(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match="is not empty"):
        Bundle(tmp_path / "full", LEAST_BYTES)
    with pytest.raises(UsageError, match="too small"):
        Bundle(tmp_path / "new", 1000)
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(UsageError, match="name another folder"):
        Bundle(tmp_path / "file", LEAST_BYTES)

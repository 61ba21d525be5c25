from __future__ import annotations

import json
import pickle

import pytest
from click.testing import CliRunner

from moexray.faces.cli.main import main

MIB = 1 << 20


def snapshot(blocks):
    """One segment from (size in MiB, live) pairs."""
    at, rows = 1 << 40, []
    for mib, live in blocks:
        state = "active_allocated" if live else "inactive"
        rows.append({"address": at, "size": mib * MIB, "requested_size": mib * MIB, "state": state, "frames": []})
        at += mib * MIB
    active = sum(m for m, live in blocks if live) * MIB
    segment = {
        "device": 0, "address": 1 << 40, "total_size": at - (1 << 40), "allocated_size": active,
        "active_size": active, "requested_size": active, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": rows,
    }  # fmt: skip
    return {"segments": [segment], "device_traces": [[]], "allocator_settings": {}}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot([(60, False), (10, True), (30, False), (20, True)])))
    return str(path)


def test_figures_by_hand(file):
    result = CliRunner().invoke(main, ["memory", file, "--format", "json", "--request", "0.025"])
    assert result.exit_code == 0, result.output
    [document] = json.loads(result.output)
    [pool] = document["pools"]
    assert pool["reserved_bytes"] == 120 * MIB
    assert pool["free_bytes"] == pool["stuck_bytes"] == 90 * MIB
    assert pool["ratio"] == pytest.approx(1 - 60 / 90)
    assert pool["ratio_of_all"] == pytest.approx(1 - 60 / 120)
    # 25.6 MiB fits twice into 60 and once into 30
    assert document["served"] == [{"request_bytes": int(0.025 * (1 << 30)), "served": 3}]


def test_nothing_free_has_the_ratio_0(tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot([(20, True)])))
    [document] = json.loads(CliRunner().invoke(main, ["memory", str(path), "--format", "json"]).output)
    assert document["pools"][0]["ratio"] == 0


def test_text_names_pool_and_stuck_bytes(file):
    text = CliRunner().invoke(main, ["memory", file]).output
    assert "the default pool" in text
    assert "90.0 MiB" in text
    assert "0.333" in text


def test_without_a_snapshot_the_error_says_so(tmp_path):
    path = tmp_path / "x.log"
    path.write_text("hello\n")
    result = CliRunner().invoke(main, ["memory", str(path)])
    assert result.exit_code == 2
    assert "no allocator snapshot" in result.output + result.stderr
    assert CliRunner().invoke(main, ["memory", "no/such"]).exit_code == 2

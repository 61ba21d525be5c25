"""`moexray whatif policies`: table, JSON, picture, and refusals."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from moexray.faces.cli.main import main
from snapshot_samples import BASE, MIB, segment, temporary, whole, write


@pytest.fixture
def snapshot(tmp_path):
    parts = [segment(BASE, [(30 * MIB, "a"), (10 * MIB, "f")])]
    return write(tmp_path / "a.pickle", whole(parts, temporary(BASE + 30 * MIB, 8 * MIB, 7)))


def run(*args):
    return CliRunner().invoke(main, ["whatif", "policies", *args], catch_exceptions=False)


def test_json(snapshot):
    done = run(snapshot, "--format", "json", "--capacity", "64MiB")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["schema"] == "moexray.whatif.policies/1"
    assert document["capacity_bytes"] == 64 * MIB
    [case] = document["cases"]
    assert (case["events"], case["live_peak_bytes"]) == (3, 38 * MIB)
    rows = {row["policy"]: row for row in case["policies"]}
    assert rows["first-fit"]["peak_bytes"] == 38 * MIB
    assert rows["first-fit"]["fragmentation_ratio_at_end"] == 0.0
    assert rows["buddy"]["peak_bytes"] == 40 * MIB
    assert rows["buddy"]["internal_waste_bytes_at_peak"] == 2 * MIB
    assert all(row["events_per_s"] > 0 for row in rows.values())


def test_text_and_one_policy(snapshot):
    done = run(snapshot, "--policy", "first-fit")
    assert done.exit_code == 0, done.output
    assert "38.0 MiB alive at once, 40.0 MiB reserved when recorded" in done.stdout
    assert "first-fit" in done.stdout
    assert "buddy" not in done.stdout


def test_why_pytorch_needs_more_than_was_recorded():
    incident = Path(__file__).parents[2] / "examples/incident/memory"
    assert "without a limit it never gives cached memory back" in run(str(incident)).stdout
    assert "without a limit" not in run(str(incident), "--capacity", "77.7GiB").stdout


def test_the_picture_is_one_svg_and_is_not_overwritten(snapshot, tmp_path):
    out = tmp_path / "a.svg"
    assert run(snapshot, "--picture", str(out)).exit_code == 0
    root = ET.fromstring(out.read_text("utf-8"))
    texts = ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "tlsf" in texts
    assert "most alive at once: 38.0 MiB" in texts
    widths = [float(r.get("width")) for r in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert min(widths) >= 0
    out.write_text("mine")
    assert run(snapshot, "--picture", str(out)).exit_code == 2
    assert out.read_text() == "mine"
    assert run(snapshot, "--picture", str(out), "--force").exit_code == 0
    assert out.read_text() != "mine"


def test_refusals(snapshot, tmp_path):
    done = run(snapshot, "--policy", "magic")
    assert done.exit_code == 2
    assert "one of first-fit" in done.stderr
    assert run(str(tmp_path / "none")).exit_code == 2
    empty = write(tmp_path / "b.pickle", {"segments": [], "device_traces": [[]]})
    done = run(empty)
    assert done.exit_code == 2
    assert "no history" in done.stderr

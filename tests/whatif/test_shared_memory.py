"""On every shared snapshot the recorded settings give the recorded peak, and small files go through the command."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from moexray.analyse.snapshot import shots
from moexray.analyse.snapshot_history import timeline
from moexray.faces.cli.main import main
from moexray.readers.read_any import read_any
from moexray.whatif.cases import prepare_cases
from moexray.whatif.recordings import collect
from moexray.whatif.search import measured

SHARED = Path(__file__).resolve().parents[3] / "shared"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data lie beside the checkout; not here")
FILES = sorted([*SHARED.glob("data/memory/*.pickle*"), *SHARED.glob("data/incidents/*/memory/*.pickle")])
SMALL = [p for p in (SHARED / "data/memory").glob("*") if p.suffix != ".md" and p.stat().st_size < 70_000]


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.parent.name}-{p.name}")
def test_the_recorded_settings_give_the_recorded_peak(path):
    run = read_any([str(path)])
    found, left = collect(run)
    cases, broken = prepare_cases(found)
    assert not broken
    assert len(cases) + len(left) == len(shots(run))
    for case in cases:
        [shot] = [s for s in shots(run) if s.device == case.recording.device]
        [outcome] = measured([case], "", None).outcomes
        assert outcome.peak_reserved == timeline(shot).peak_reserved
        assert case.check.exact


@pytest.mark.parametrize("path", SMALL, ids=lambda p: p.name)
def test_the_command_ends_in_a_verdict(path):
    result = CliRunner().invoke(main, ["whatif", "memory", str(path), "--format", "json"])
    assert result.exit_code == 0, result.stderr
    doc = json.loads(result.stdout)
    assert doc["recommendation"]["reason"]
    for name in ("placements", "segments", "segment_frees", "final_blocks"):
        check = doc["self_check"][name]
        assert check["matched"] == check["total"]
    if doc["recommendation"]["conf"] is not None:
        start = doc["recommendation"]["start"]
        rows = [s if start == "kept" else s["restarted"] | {"conf": s["conf"]} for s in doc["settings"]]
        best = next(r for r in rows if r["conf"] == doc["recommendation"]["conf"])
        assert best["peak_reserved_bytes"] < rows[0]["peak_reserved_bytes"]

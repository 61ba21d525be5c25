"""What the shared data say: the case bank, the incident bundles, the real files. Skipped without them."""

import importlib.util
import json
from pathlib import Path

import pytest

from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_any

SHARED = next((p for p in (Path(__file__).resolve().parents[2] / "shared",) if (p / "data").is_dir()), None)
pytestmark = pytest.mark.skipif(SHARED is None, reason="the shared data lie beside the checkout; they do not here")
BUNDLES = sorted((SHARED / "data/incidents").glob("bundle-*/")) if SHARED else []
REAL = (
    [p for d in ("memory", "timeline", "routing") for p in sorted((SHARED / "data" / d).rglob("*")) if p.is_file()]
    if SHARED
    else []
)
SIDECARS = {"README.md", "truth.json", "default-counters.csv", "meta_info.json"}


def test_the_case_bank_is_answered(tmp_path):
    spec = importlib.util.spec_from_file_location("check_cases", SHARED / "check_cases.py")
    bank = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["check_cases"] = bank
    spec.loader.exec_module(bank)
    import shutil

    command = shutil.which("moexray", path=str(Path(sys.executable).parent)) or "moexray"
    cases = bank.check(SHARED / "data/cases", f"{command} diagnose {{dir}} --format json")
    crashed = [c.case for c in cases if c.crashed]
    wrong = {c.case: [r.problems for r in c.runs if r.problems] for c in cases if not c.top1}
    runs = [r for c in cases for r in c.runs]
    assert crashed == []
    assert sum(c.top1 for c in cases) >= 0.9 * len(cases), wrong
    assert sum(r.seen for r in runs) >= 0.6 * sum(r.numbers for r in runs)


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda p: p.name)
def test_a_bundle_is_diagnosed(bundle):
    truth = json.loads((bundle.parent / f"{bundle.name}.truth.json").read_text())
    result = diagnose(read_any([str(bundle)]))
    assert result.failures == ()
    strong = [f.id for f in result.findings if f.severity != "info"]
    found = [f.id for f in result.findings]
    root = truth.get("root")
    if root in (None, "none"):
        assert set(strong) - set(truth.get("accept", [])) == set()
    else:
        assert result.verdict in {root, *truth.get("accept", [])}
    causes = {}  # one id may stand for several ranks, each with its own cause
    for f in result.findings:
        causes[f.id] = (*causes.get(f.id, ()), *f.implied_by)
    for cause, effect in zip(truth.get("chain", []), truth.get("chain", [])[1:], strict=False):
        assert cause in causes.get(effect, ()), f"{cause} -> {effect}"
    assert set(truth.get("also", [])) - set(found) == set()
    assert set(truth.get("must_not", [])) & set(strong) == set()
    decoys = {d for ids in truth.get("decoys", {}).values() for d in ids}
    assert decoys & set(strong) == set()


@pytest.mark.parametrize("path", REAL, ids=lambda p: p.name)
def test_a_real_file_is_read(path):
    run = read_any([str(path)])
    if path.name in SIDECARS:
        assert [s.path for s in run.skipped] == [str(path)]
    else:
        assert run.inputs, [s.reason for s in run.skipped]
        assert not [p for _, p in run.problems if p.id == "input.unreadable"]
    result = diagnose(run)
    assert result.failures == ()
    json.dumps(result.to_json(), allow_nan=False)

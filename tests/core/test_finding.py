from __future__ import annotations

import re
from pathlib import Path

import moexray
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import REMEDIES
from moexray.core.verdicts import VERDICTS


def test_json_has_every_key_of_the_catalogue():
    f = Finding("mem.x", "warn", 0.7, "claim", Subject(device=0), evidence=(Evidence("a", "line 1", "t"),))
    assert set(f.to_json()) == {
        "id", "severity", "confidence", "claim", "subject", "value", "limit", "unit", "evidence",
        "implied_by", "remedies", "settle_with",
    }  # fmt: skip
    assert set(f.to_json()["subject"]) == {
        "rank", "device", "stream", "layer", "expert", "step_from", "step_to", "t_from_ns", "t_to_ns",
    }  # fmt: skip


def test_pairs_leave_nulls_out():
    assert pairs({"free_bytes": 12, "total_bytes": None, "share_ratio": 0.123456789}) == (
        "free_bytes=12 share_ratio=0.123457"
    )


def test_remedies_and_verdicts_have_unique_ids_and_full_texts():
    assert len({r.id for r in REMEDIES}) == len(REMEDIES)
    assert len({v.id for v in VERDICTS}) == len(VERDICTS)
    for r in REMEDIES:
        assert r.action
        assert r.undo
    for v in VERDICTS:
        assert v.means
        assert v.decided
        assert v.refuted
        assert v.do
        assert v.needs


def test_remedies_are_named_in_one_style_and_each_is_proposed():
    """Words with hyphens: an id with a dot is a verdict."""
    assert [r.id for r in REMEDIES if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", r.id)] == []
    assert len({r.action for r in REMEDIES}) == len(REMEDIES)
    package = Path(moexray.__file__).parent
    code = "".join(p.read_text("utf-8") for p in package.rglob("*.py") if "remedies" not in p.parts)
    assert [r.id for r in REMEDIES if f'"{r.id}"' not in code] == []
    proposed = set(re.findall(r'remedy\(\s*"([^"]+)"', code))
    assert proposed - {r.id for r in REMEDIES} == set()

from __future__ import annotations

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

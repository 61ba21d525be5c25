"""The remedies of a skew: what they predict, and when more slots are no better."""

import io

import numpy as np

from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources


def skew(loads, ranks):
    out = io.BytesIO()
    np.savez(out, logical_count=np.array([[loads]]), ep_size=ranks)
    found = diagnose(read_sources([Source("a.npz", content=out.getvalue())])).findings
    (one,) = [f for f in found if f.id == "ep.skew"]
    return one


def test_more_slots_that_are_no_better_are_said_to_be_so():
    found = skew([900, 900, 100, 100, 900, 900, 100, 100], 4)  # pairs of 900 and 100 are even on these slots
    same, more, _ = (r.action for r in found.remedies)
    assert "predicted balancedness 1.000" in same
    assert "no better" not in same
    assert "no better than placing anew on the same slots" in more
    assert "1 more expert per layer and rank" in more
    assert "How the ranks were counted: contiguous placement assumed" in found.claim


def test_more_slots_that_help_are_not_called_no_better():
    found = skew([9000, *[1000] * 7], 4)  # one expert is more than the part of a rank
    assert "no better" not in found.remedies[1].action

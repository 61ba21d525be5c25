"""The drift line of the report."""

import io

import numpy as np

from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources


def test_the_drift_line_marks_the_change():
    rng = np.random.default_rng(0)
    mixes = rng.dirichlet(np.full(16, 0.8), (2, 2))
    cube = np.stack([[rng.multinomial(400, mixes[i // 30][y]) for y in range(2)] for i in range(60)])
    saved = io.BytesIO()
    np.savez(saved, logical_count=cube)
    (line,) = diagnose(read_sources([Source("a.npz", content=saved.getvalue())])).exhibits["series"]
    assert line["x_unit"] == "step"
    assert [m["x"] for m in line["marks"]] == [30]
    assert min(line["y"][30:]) > max(line["y"][:30])

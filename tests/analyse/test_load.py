"""Load of engines from their logs."""

import pytest

from load_samples import read
from moexray.analyse.load import engine_points, points

READY = "INFO:     Application startup complete.\n"
SGLANG = (
    "[2025-01-01 10:01:{i:02d} DP{e} TP0] Decode batch. #running-req: {running}, #token: 123, token usage: 0.50, "
    "gen throughput (token/s): 1000.0, #queue-req: {i}, \n"
)


def test_a_line_is_a_point():
    [point] = points(read({"s.log": SGLANG.format(i=7, e=1, running=50)}))
    assert (point.running, point.waiting, point.kv) == (50, 7, 0.5)
    assert point.step_s == pytest.approx(0.05)  # 50 requests share 1000 tokens a second


def test_a_long_log_becomes_medians_of_equal_parts():
    log = READY + "".join(SGLANG.format(i=i, e=e, running=10 + e) for i in range(48) for e in (0, 1))
    found = engine_points(read({"s.log": log}))
    assert sorted(found) == ["0", "1"]
    assert [p.waiting for p in found["1"]] == [1.5 + 4 * k for k in range(12)]
    assert {p.running for p in found["1"]} == {11}

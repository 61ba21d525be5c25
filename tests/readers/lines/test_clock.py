"""Clock jumps: what is one, what is not, and where the stretches begin."""

import pytest

from moexray.readers.lines.clock import number_clocks
from moexray.readers.lines.line import Line


def lines(times, workers=None, **more):
    names = workers or ["w"] * len(times)
    return [Line(i, "x", t, worker=w, known=True, **more) for i, (t, w) in enumerate(zip(times, names, strict=True), 1)]


def test_a_step_back_of_an_hour_begins_a_new_stretch():
    out, jumps = number_clocks(lines([1e9, 1e9 + 10, 1e9 - 3580, 1e9 - 3570]))
    assert [x.clock for x in out] == [0, 0, 1, 1]
    assert [(j.number, j.step_s) for j in jumps] == [(3, -3590)]


def test_a_leap_of_a_whole_hour_in_a_dense_log():
    times = [1e9 + 10 * i for i in range(20)] + [1e9 + 3600 + 10 * i for i in range(20, 40)]
    out, jumps = number_clocks(lines(times))
    assert [j.leap for j in jumps] == [True]
    assert out[-1].clock == 1


@pytest.mark.parametrize(
    "times",
    [
        [1e9 + 3600 * i for i in range(24)],  # an hourly line
        [1e9 + 10 * i for i in range(20)] + [1e9 + 5000 + i for i in range(9)],  # idle, no whole hours
        [1e9, 1e9 + 5, 1e9 + 4.2, 1e9 + 9],  # lines interleave within a second
        [1e9 - 60 * i for i in range(20)],  # newest line first
    ],
)
def test_no_jump(times):
    assert number_clocks(lines(times))[1] == []


def test_workers_are_compared_with_themselves():
    assert number_clocks(lines([1e9, 1e9 + 3, 1e9, 1e9 + 4], ["a", "b", "a", "b"]))[1] == []


def test_a_new_process_with_a_relative_clock_is_no_jump():
    out, jumps = number_clocks(lines([0.0, 50.0, 0.0, 50.0], relative=True))
    assert jumps == []
    assert [x.clock for x in out] == [0, 0, 1, 1]

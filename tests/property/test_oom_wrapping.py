"""Law: however a message is wrapped and prefixed, the same numbers come out."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moexray.core.run import Reading
from moexray.readers.lines import clean_lines, oom
from oom_messages import (
    PREFIXES,
    WORDINGS,
    half_step,
    quoted,
    some_numbers,
    warning,
    wrap_anywhere,
    wrap_words,
)


def read(text):
    out = Reading("text")
    oom.parse(clean_lines(text), out)
    return out.tables.get("oom", [])


def check(row, numbers, fields, wording):
    for name in fields:
        value = row["device"] if name == "device" else row.get(f"{name}_bytes")
        want = getattr(numbers, name)
        if name == "device":
            assert value == want
            continue
        slack = half_step(want) + 1
        if name == "fragments" and wording == "1.11":  # reserved - allocated, two roundings
            slack = half_step(numbers.allocated + numbers.fragments) + half_step(numbers.allocated) + 1
        assert value is not None, name
        assert abs(value - want) <= slack, name
        assert row["rounding"][name] <= slack


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    wording=st.sampled_from(sorted(WORDINGS)),
    prefix=st.sampled_from(PREFIXES),
    width=st.integers(60, 200),
    how=st.sampled_from(("none", "anywhere", "repeat", "words")),
)
def test_wrapping_and_prefixes_do_not_matter(seed, wording, prefix, width, how):
    numbers = some_numbers(random.Random(seed))
    render, fields = WORDINGS[wording]
    text = render(numbers)
    if how == "none":
        text = prefix + text.replace("\n", "\n" + prefix)
    elif how == "words":
        text = wrap_words(text, width, prefix)
    else:
        text = "\n".join(wrap_anywhere(x, width, prefix, repeat=how == "repeat") for x in text.split("\n"))
    rows = read("INFO 01-12 09:40:00 [a.py:1] before\n" + text + "\nafter the message\n")
    assert len(rows) == 1
    assert rows[0]["kind"] == "record"
    check(rows[0], numbers, fields, wording)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), wording=st.sampled_from(sorted(WORDINGS)), how=st.sampled_from(("repr", "html", "json", "escaped")))
def test_other_notations_do_not_matter(seed, wording, how):
    numbers = some_numbers(random.Random(seed))
    render, fields = WORDINGS[wording]
    rows = read(quoted(render(numbers), how))
    assert len(rows) == 1
    check(rows[0], numbers, fields, wording)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), width=st.integers(40, 160))
def test_warnings_are_exact(seed, width):
    numbers = some_numbers(random.Random(seed))
    line = wrap_anywhere("[W812 16:00:28.643448608 CUDACachingAllocator.cpp:3933] " + warning(numbers), width, "", repeat=False)
    (row,) = read(line)
    assert row["kind"] == "warning"
    for name in ("request", "free", "total"):
        assert row[f"{name}_bytes"] == getattr(numbers, name)


@pytest.mark.parametrize("wording", sorted(WORDINGS))
def test_one_failure_repeated_on_the_way_up_is_one_record(wording):
    render, fields = WORDINGS[wording]
    numbers = some_numbers(random.Random(7))
    text = render(numbers)
    log = "\n".join(f"(EngineCore_DP0 pid=9) ERROR 01-12 09:40:11 [core.py:710] {x}" for x in text.split("\n"))
    log += '\nTraceback (most recent call last):\n  File "a.py", line 3, in f\n' + text + "\n"
    log += "(APIServer pid=1) ERROR 01-12 09:40:12 [launcher.py:1] " + text.replace("\n", " ")
    (row,) = read(log)
    assert row["repeats"] == 3
    check(row, numbers, fields, wording)

"""Bank conflicts from an access pattern, against a slow count of words per bank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.analyse.banks import degree, padding


@pytest.mark.parametrize(
    ("stride", "width", "base", "ways", "passes", "parts"),
    [
        (4, 4, 0, 1, 1, 1),  # neighbouring words
        (128, 4, 0, 32, 32, 1),  # a column of 32 floats: all in one bank
        (132, 4, 0, 1, 1, 1),  # the same, padded by a word
        (8, 4, 0, 2, 2, 1),  # every second bank
        (0, 4, 0, 1, 1, 1),  # one word for all lanes
        (2, 2, 0, 1, 1, 1),  # two lanes share a word
        (16, 16, 0, 1, 4, 1),  # float4 side by side: four quarters of a warp
        (512, 16, 0, 8, 32, 1),  # rows of 128 floats: eight lanes of a quarter in one bank
        (20, 16, 4, 1, 4, 4),  # float4 off its alignment: four loads of a word
        (256, 8, 0, 16, 32, 1),
    ],
)
def test_worked_patterns(stride, width, base, ways, passes, parts):
    found = degree(stride, width, base)
    assert (found.ways, found.passes, found.parts) == (ways, passes, parts)


def test_one_access_width_of_padding_is_enough():
    assert (padding(128, 4), padding(512, 16), padding(4, 4)) == (4, 16, 0)
    assert padding(20, 16) == 28  # up to the alignment, then past the conflict of 32 bytes
    assert padding(256, 16, base=8) is None


@given(st.integers(0, 1024), st.sampled_from((1, 2, 4)), st.integers(0, 256))
def test_narrow_aligned_accesses_count_distinct_words_per_bank(stride, width, base):
    stride, base = stride * width, base * width
    words = {(base + i * stride) // 4 for i in range(32)}
    most = max(sum(w % 32 == bank for w in words) for bank in range(32))
    assert degree(stride, width, base).ways == most


@given(st.integers(0, 4096), st.sampled_from((4, 8, 16)), st.integers(0, 64))
def test_padding_cures(stride, width, base):
    pad = padding(stride, width, base * width)
    if pad is not None:
        found = degree(stride + pad, width, base * width)
        assert (found.ways, found.parts) == (1, 1)

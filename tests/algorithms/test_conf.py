from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.algorithms.blocks import Settings
from moexray.algorithms.conf import parse, text

MIB = 1 << 20


def test_a_string_becomes_settings():
    conf = "expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8"
    settings, notes = parse(conf)
    assert settings == Settings(expandable=True, max_split=128 * MIB, gc_threshold=0.8)
    assert notes == ()


def test_a_list_of_divisions():
    settings, _ = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert settings.roundup == (1,) * 9 + (2, 4) + (8,) * 5
    settings, _ = parse("roundup_power2_divisions:[64:0,>:2]")
    assert settings.roundup[6:8] == (0, 2)


def test_minus_one_means_unlimited_and_notes_name_the_rest():
    settings, notes = parse("max_split_size_mb:-1,pinned_num_register_threads:4,foo:1,backend:native")
    assert settings == Settings()
    assert [n.split()[0] for n in notes] == ["pinned_num_register_threads", "foo"]


@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ("expandable_segments:true", "capital"),
        ("max_split_size_mb:10", "at least 20"),
        ("garbage_collection_threshold:1.5", "between 0 and 1"),
        ("roundup_power2_divisions:3", "power of two"),
        ("roundup_power2_divisions:[100:1]", "power of two"),
        ("large_segment_size_mb:8", "above 10"),
        ("backend:cudaMallocAsync", "another allocator"),
        ("nonsense", "key:value"),
        ("roundup_power2_divisions:[1:2", "bracket"),
        ("max_split_size_mb:x", "whole number"),
    ],
)
def test_what_pytorch_refuses_is_refused(conf, why):
    with pytest.raises(ValueError, match=why):
        parse(conf)


@given(
    st.builds(
        Settings,
        max_split=st.none() | st.integers(40, 4096).map(lambda n: n * MIB),
        max_non_split_rounding=st.integers(20, 100).map(lambda n: n * MIB),
        roundup=st.sampled_from([0, 2, 4, 8]).map(lambda d: (d,) * 16)
        | st.tuples(*[st.sampled_from([0, 1, 2, 4, 8])] * 16),
        gc_threshold=st.sampled_from([0.0, 0.25, 0.8]),
        expandable=st.booleans(),
        large_segment=st.integers(11, 40).map(lambda n: n * MIB),
    )
)
def test_text_and_parse_are_inverse(settings):
    assert parse(text(settings))[0] == settings

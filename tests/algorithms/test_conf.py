from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.algorithms.blocks import Settings, limited
from moexray.algorithms.conf import parse, text

MIB = 1 << 20


def test_a_string_becomes_settings():
    conf = "expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8,"
    settings, notes = parse(conf)
    assert settings == Settings(expandable=True, max_split=128 * MIB, gc_threshold=0.8)
    assert notes == ()
    assert parse("") == (Settings(), ())


def test_a_list_of_divisions():
    settings, _ = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert settings.roundup == (1,) * 9 + (2, 4) + (8,) * 5
    settings, _ = parse("roundup_power2_divisions:[64:0,>:2]")
    assert settings.roundup[6:8] == (0, 2)
    settings, _ = parse("roundup_power2_divisions:[1:2,4:8,>:0,]")
    assert settings.roundup == (2, 0, 8) + (0,) * 13
    assert parse("roundup_power2_divisions:[]")[0] == Settings()
    assert parse("roundup_power2_divisions:[>:4]")[0].roundup == (0,) + (4,) * 15


def test_the_large_segment_is_the_least_of_the_others_and_read_first():
    settings, _ = parse("max_split_size_mb:40,large_segment_size_mb:40")
    assert settings == Settings(max_split=40 * MIB, large_segment=40 * MIB, max_non_split_rounding=40 * MIB)
    settings, _ = parse("max_split_size_mb:12,large_segment_size_mb:12,max_non_split_rounding_mb:30")
    assert (settings.max_split, settings.max_non_split_rounding) == (12 * MIB, 30 * MIB)


def test_the_memory_fraction_becomes_a_limit_where_the_device_is_known():
    settings, _ = parse("per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True")
    assert limited(settings, 1001).limit == 500
    assert settings.throw_on_oom
    assert limited(parse("per_process_memory_fraction:1")[0], 1001).limit is None


def test_minus_one_means_unlimited_and_notes_name_what_has_no_effect():
    conf = "max_split_size_mb:-1,pinned_num_register_threads:4,backend:native,release_lock_on_cudamalloc:True"
    settings, notes = parse(conf)
    assert settings == Settings()
    assert [n.split()[0] for n in notes] == ["pinned_num_register_threads", "release_lock_on_cudamalloc"]


def test_an_unknown_option_of_a_recording_is_noted():
    assert parse("of_tomorrow:[a:1],expandable_segments:True", strict=False) == (
        Settings(expandable=True), ("of_tomorrow is not known",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ("foo:1", "no option"),
        ("expandable_segments:true", "capital"),
        ("max_split_size_mb:10", "at least 20"),
        ("max_split_size_mb:25,large_segment_size_mb:40", "at least 40"),
        ("max_split_size_mb:-2", "whole number"),
        ("max_non_split_rounding_mb:19", "at least 20"),
        ("garbage_collection_threshold:1.5", "between 0 and 1"),
        ("garbage_collection_threshold:1", "exclusive"),
        ("garbage_collection_threshold:0.8_5", "a number"),
        ("per_process_memory_fraction:1.01", "between 0 and 1"),
        ("throw_on_cudamalloc_oom:maybe", "capital"),
        ("roundup_power2_divisions:3", "power of two"),
        ("roundup_power2_divisions:0", "power of two"),
        ("roundup_power2_divisions:[100:1]", "power of two"),
        ("roundup_power2_divisions:[1:3]", "power of two"),
        ("roundup_power2_divisions:[1]", "size:divisions"),
        ("roundup_power2_divisions:[1:2", "bracket"),
        ("roundup_power2_divisions:[1:2]]", "bracket"),
        ("roundup_power2_divisions:[2:2]4", "bracket"),
        ("large_segment_size_mb:8", "at least 11"),
        ("large_segment_size_mb:10", "at least 11"),
        ("backend:cudaMallocAsync", "another allocator"),
        ("backend:other", "native or"),
        ("nonsense", "key:value"),
        ("max_split_size_mb:64,,expandable_segments:True", "empty part"),
        ("max_split_size_mb:x", "whole number"),
        ("max_split_size_mb:1_28", "whole number"),
        ("max_split_size_mb:١٢٨", "whole number"),
        ("expandable_segments:[True]", "capital"),
        ("pinned_num_register_threads:3", "power of two"),
        ("pinned_num_register_threads:256", "at most 128"),
        ("pinned_reserve_segment_size_mb:0", "at least 1"),
        ("pinned_use_background_threads:1", "capital"),
    ],
)
def test_what_pytorch_refuses_is_refused_with_the_reason(conf, why):
    with pytest.raises(ValueError, match=why):
        parse(conf)


def test_a_list_is_written_short():
    assert text(Settings(roundup=(0,) * 11 + (8,) + (0,) * 4)) == "roundup_power2_divisions:[1024:0,2048:8]"
    assert text(Settings(roundup=(1,) * 9 + (2, 4) + (8,) * 5)) == "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"


@given(
    large=st.integers(11, 40),
    split=st.none() | st.integers(40, 4096).map(lambda n: n * MIB),
    rounding=st.integers(40, 100),
    roundup=st.sampled_from([0, 2, 4, 8]).map(lambda d: (d,) * 16)
    | st.tuples(*[st.sampled_from([0, 0, 1, 2, 4, 8])] * 16),
    threshold=st.just(0.0) | st.floats(0.001, 0.999),
    fraction=st.just(1.0) | st.floats(0, 1),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_text_and_parse_are_inverse(large, split, rounding, roundup, threshold, fraction, flags):
    settings = Settings(
        max_split=split, max_non_split_rounding=rounding * MIB, roundup=roundup, gc_threshold=threshold,
        large_segment=large * MIB, fraction=fraction, expandable=flags[0], throw_on_oom=flags[1],
    )  # fmt: skip
    assert parse(text(settings))[0] == settings

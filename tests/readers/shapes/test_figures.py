import pytest

from moexray.readers.shapes.figures import figure_of, is_level, is_run, scale_of, stat_of


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean_ttft_ms", ("mean_ttft_s", 1e-3)),
        ("itl_p99_ms", ("p99_itl_s", 1e-3)),
        ("p999_itl_ms", ("p99.9_itl_s", 1e-3)),
        ("Median TPOT (ms)", ("p50_tpot_s", 1e-3)),
        ("99th percentile latency (us)", ("p99_latency_s", 1e-6)),
        ("Mean E2E Latency (ms)", ("mean_e2e_s", 1e-3)),
        ("time_to_first_token [s]", ("ttft_s", 1.0)),
        ("tok_s", ("tokens_per_s", 1.0)),
        ("Output token throughput (tok/s)", ("output_tokens_per_s", 1.0)),
        ("Peak output token throughput (tok/s)", ("max_output_tokens_per_s", 1.0)),
        ("total_token_throughput", ("total_tokens_per_s", 1.0)),
        ("request_throughput", ("requests_per_s", 1.0)),
        ("req/s", ("requests_per_s", 1.0)),
        ("Benchmark duration (s)", ("duration_s", 1.0)),
        ("peak_mem_gib", ("peak_memory_bytes", 2.0**30)),
        ("card_gib", ("memory_total_bytes", 2.0**30)),
        ("vram_free_mib", ("memory_free_bytes", 2.0**20)),
        ("step_ms", ("step_s", 1e-3)),
        ("median_itl", ("p50_itl_s", None)),
        ("Successful requests", ("requests", 1.0)),
    ],
)
def test_figures_have_one_name(name, expected):
    assert figure_of(name) == expected


@pytest.mark.parametrize("name", ["step", "seq_len", "entries", "with_traces_ms", "time", "Concurrency", "layer", "std"])
def test_other_words_are_no_figures(name):
    assert figure_of(name) is None


def test_the_unit_may_stand_elsewhere():
    assert figure_of("avg Time to First Token", "ms") == ("mean_ttft_s", 1e-3)


def test_stats():
    assert stat_of("p99.9_latency") == ("p99.9", "latency")
    assert stat_of("q0.5_latency") == ("p50", "latency")
    assert stat_of("latency") == ("", "latency")


def test_durations_without_a_unit_are_milliseconds_if_large():
    assert scale_of(None, [210.0, None, 260.0]) == 1e-3
    assert scale_of(None, [0.21]) == 1.0
    assert scale_of(1e-6, [210.0]) == 1e-6


def test_columns_of_load_and_of_arms():
    assert is_level("Max_Concurrency")
    assert not is_level("ttft_ms")
    assert is_run("build")
    assert is_run("backend_name")

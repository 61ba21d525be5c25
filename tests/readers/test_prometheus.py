import gzip
import json

import pytest

from load_samples import SGLANG, page, read, said
from moexray.readers.metric_names import canonical
from moexray.readers.prometheus import sniff

ONE = page({0: {"running": 3, "waiting": 1, "kv": 0.5, "preempted": 0, "tokens": 100, "itl": (1.5, 50)}})


def metrics(run):
    [batch] = run.batches("metrics")
    return dict(zip(batch.columns["metric"], batch.columns["value"], strict=True))


def test_canonical_names_and_engines():
    run = read({"m.prom": ONE})
    assert metrics(run) == {"requests_running": 3, "requests_waiting": 1, "kv_usage": 0.5, "preemptions": 0,
                            "generation_tokens": 100, "itl_bucket": 50, "itl_sum": 1.5, "itl_count": 50}
    assert set(run.batches("metrics")[0].columns["engine"]) == {"0"}
    assert run.inputs[0].rows == 8


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("vllm:gpu_cache_usage_perc", "gauge", "kv_usage"),
        ("vllm:time_per_output_token_seconds_sum", "histogram", "itl_sum"),
        ("ray_vllm_num_requests_running", "gauge", "requests_running"),
        ("sglang:num_running_reqs", "gauge", "requests_running"),
        ("sglang:num_retracted_reqs", "gauge", ""),
        ("sglang:num_retracted_reqs_total", "counter", "preemptions"),
        ("trtllm_kv_cache_utilization", "gauge", "kv_usage"),
        ("vllm:num_preemptions", "counter", "preemptions"),
        ("vllm:num_preemptions_created", "gauge", ""),
        ("vllm:request_time_per_output_token_seconds_sum", "histogram", ""),
        ("http_requests_total", "counter", ""),
        ("redis_queue_size", "gauge", ""),
        ("process_start_time_seconds", "gauge", "process_start"),
    ],
)
def test_names_by_release(name, kind, expected):
    assert canonical(name, kind) == expected


def test_a_family_that_keeps_its_meaning_in_a_label():
    text = '# TYPE nv_trt_llm_request_metrics gauge\nnv_trt_llm_request_metrics{request_type="active",model="m"} 7\n'
    assert metrics(read({"m.prom": text})) == {"requests_running": 7}


def test_percent_becomes_a_ratio():
    assert metrics(read({"m.prom": 'vllm:gpu_cache_usage_perc{model_name="M"} 55\n'})) == {"kv_usage": 0.55}


LEGAL = (
    "# HELP vllm:itl x\n# TYPE vllm:inter_token_latency_seconds histogram\n# UNIT vllm:inter_token_latency_seconds seconds\n"
    'vllm:inter_token_latency_seconds_bucket{le="0.1"} 3.0 # {trace_id="a{b}"} 0.05 1790000000.1\n'
    'vllm:inter_token_latency_seconds_bucket{le="+Inf"} 4.0\n'
    "vllm:inter_token_latency_seconds_sum 0.25\nvllm:inter_token_latency_seconds_count 4\n"
    "vllm:inter_token_latency_seconds_created 1.79e+09\n"
    '# TYPE go_gc_duration_seconds summary\ngo_gc_duration_seconds{quantile="0.5"} NaN\n'
    "# EOF\n"
)


def test_legal_features_are_no_finding():
    assert said({"m.prom": LEGAL}) == {}
    assert said({"m.prom": ONE.replace("\n", "\r\n")}) == {}


def test_time_stamps_are_milliseconds_or_seconds():
    for stamp in ("1790000000500", "1790000000.5"):
        run = read({"m.prom": f'vllm:num_requests_running{{engine="0"}} 3 {stamp}\n'})
        assert run.batches("metrics")[0].attrs["t_s"] == 1790000000.5


def test_nan_and_duplicates_are_named_and_the_rest_is_used():
    text = ONE + 'vllm:num_requests_running{engine="1",model_name="M"} NaN\nvllm:num_requests_waiting{engine="0",model_name="M"} 9\n'
    run = read({"m.prom": text})
    assert [p.id for _, p in run.problems] == ["input.scrape_dirty"] * 2
    assert metrics(run)["requests_waiting"] == 1
    found = said({"m.prom": text})["input.scrape_dirty"]
    assert "NaN" in found.claim
    assert any("twice" in e.text for e in found.evidence)


def test_lines_that_are_no_samples_are_counted():
    found = said({"m.prom": ONE + "vllm:num_requests_run"})
    assert "1 lines are no samples" in found["input.scrape_dirty"].claim


@pytest.mark.parametrize(
    "text",
    ["<html><head><title>503 Service Unavailable</title></head></html>\n", "404 page not found\n",
     '{"detail": "Not Found"}', "<!DOCTYPE html><html><body>sign in</body></html>"],
)
def test_an_error_page_is_no_metrics_page(text):
    run = read({"node7.prom": text})
    assert "not a metrics page" in run.skipped[0].reason
    assert [p.id for _, p in run.problems] == ["input.scrape_dirty"]


def test_a_web_page_of_another_name_is_only_skipped():
    run = read({"notes.html": "<html><head><title>Runbook</title></head></html>\n"})
    assert "not a metrics page" in run.skipped[0].reason
    assert not run.problems


def test_several_scrapes_one_after_the_other():
    later = ONE.replace(" 100\n", " 160\n")
    run = read({"m.prom": ONE + later})
    assert [b.attrs["scrape"] for b in run.batches("metrics")] == [0, 1]
    assert said({"m.prom": ONE + later}) == {}


def test_a_series_over_time_with_stamps():
    text = "".join(
        f'{name}{{engine="0"}} {v} {1790000000000 + 1000 * t}\n'
        for name in ("vllm:num_requests_running", "vllm:generation_tokens_total")
        for t, v in enumerate((3, 4, 5))
    )
    run = read({"m.prom": text})
    assert [b.attrs["t_s"] for b in run.batches("metrics")] == [1790000000.0, 1790000001.0, 1790000002.0]
    assert not run.problems


def test_a_query_result_in_json():
    result = [{"metric": {"__name__": "vllm:num_requests_running", "engine": "1"}, "values": [[10, "3"], [25, "4"], [40, "x"]]}]
    body = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    run = read({"q.json": json.dumps(body)})
    assert [(b.attrs["t_s"], list(b.columns["value"])) for b in run.batches("metrics")] == [(10.0, [3.0]), (25.0, [4.0])]


def test_a_compressed_page_and_sglang_labels():
    text = page({0: {"running": 1}, 1: {"running": 2}}, SGLANG, "dp_rank")
    run = read({"m.prom.gz": gzip.compress(text.encode())})
    assert list(run.batches("metrics")[0].columns["engine"]) == ["0", "1"]


@pytest.mark.parametrize("text", ["loss 0.5\nlr 0.1\n", "INFO x\nINFO y\n", "GPU 0\n", ""])
def test_other_text_is_no_page(text):
    assert not sniff(text.encode())


def test_a_page_without_any_usable_sample_is_refused():
    run = read({"m.prom": 'vllm:num_requests_running{engine="0"} NaN\n'})
    assert "without a usable sample" in run.skipped[0].reason


@pytest.mark.parametrize(
    "text",
    ["<html><head><title>503 Service Temporarily Unavailable</title></head></html>", "404 page not found\n", '{"detail":"Not Found"}'],
)
def test_an_error_answer_is_named_whatever_its_file_is_called(text):
    assert list(said({"a.txt": text, "b.txt": ONE})) == ["input.scrape_dirty"]


@pytest.mark.parametrize(
    "text", ["<!DOCTYPE html><html><head><title>Guide</title></head></html>", '{"detail": "CUDA error"}', "not found: module x\n"]
)
def test_other_pages_are_no_scrapes(text):
    assert "input.scrape_dirty" not in said({"a.txt": text, "b.txt": ONE})

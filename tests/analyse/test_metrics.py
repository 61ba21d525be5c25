"""Scrapes in order, and differences of counters."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_samples import page, read
from moexray.analyse.metrics import scrapes, series


def chain(files):
    return series(scrapes(read(files)))


def state(tokens, itl=(1.0, 10), **more):
    return {"running": 1, "tokens": tokens, "preempted": 0, "itl": itl, **more}


def test_counters_order_scrapes_whatever_their_names():
    files = {"z.prom": page({0: state(5)}), "a.prom": page({0: state(9)}), "m.prom": page({0: state(7)})}
    [found] = chain(files)
    assert [s.source for s in found.scrapes] == ["z.prom", "m.prom", "a.prom"]
    assert found.basis == "counters"
    assert [w.delta("generation_tokens") for w in found.windows] == [2, 2]
    assert found.whole.seconds is None


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=5, unique=True))
def test_order_does_not_depend_on_the_order_of_files(tokens):
    pages = {f"{i}.prom": page({0: state(t)}) for i, t in enumerate(tokens)}
    orders = set()
    for names in itertools.islice(itertools.permutations(pages), 6):
        [found] = chain({n: pages[n] for n in names})
        orders.add(tuple(s.get("generation_tokens") for s in found.scrapes))
    assert orders == {tuple(sorted(tokens))}


def test_counters_that_contradict_each_other_are_two_servers():
    files = {"a.prom": page({0: state(5, itl=(9.0, 90))}), "b.prom": page({0: state(9, itl=(1.0, 10))})}
    assert chain(files) == []


def test_start_times_tell_processes_apart():
    files = {n: page({0: state(t)}) + f"process_start_time_seconds {born}\n" for n, t, born in
             (("a.prom", 5, 100), ("b.prom", 9, 200))}
    assert chain(files) == []


def test_time_stamps_come_first():
    text = page({0: state(9)}, stamp=1790000010000) + page({0: state(5)}, stamp=1790000000000)
    [found] = chain({"m.prom": text})
    assert found.basis == "time stamps"
    assert found.whole.seconds == 10.0
    assert found.whole.delta("generation_tokens") == 4


def test_a_reset_counter_has_no_difference():
    text = page({0: state(9)}, stamp=1790000000000) + page({0: state(5)}, stamp=1790000010000)
    [found] = chain({"m.prom": text})
    assert found.whole.delta("generation_tokens") is None


def test_the_mean_of_a_window_is_sum_over_count():
    files = {"a.prom": page({0: state(5, itl=(1.0, 10))}), "b.prom": page({0: state(9, itl=(4.0, 70))})}
    [found] = chain(files)
    assert found.whole.mean("itl") == pytest.approx(0.05)


def test_ranks_that_report_one_batch_count_once():
    text = "".join(f'sglang:num_running_reqs{{dp_rank="0",tp_rank="{t}"}} 7\n' for t in range(4))
    [one] = scrapes(read({"m.prom": text}))
    assert one.get("requests_running") == 7


def test_series_with_a_reason_add_up():
    text = "".join(f'vllm:request_success_total{{engine="0",finished_reason="{r}"}} 7\n' for r in ("stop", "length"))
    [one] = scrapes(read({"m.prom": text + 'vllm:num_requests_running{engine="0"} 1\n'}))
    assert one.get("requests_done") == 14


def test_servers_on_one_page_are_kept_apart():
    text = "".join(f'vllm:num_requests_running{{engine="0",instance="{i}"}} {i}\n' for i in range(3))
    assert [s.get("requests_running") for s in scrapes(read({"m.prom": text}))] == [0, 1, 2]


def query(name, values, **labels):
    """Prometheus' answer to a range query of one metric."""
    pairs = [[1764100000 + 15 * i, str(v)] for i, v in enumerate(values)]
    series = {"metric": {"__name__": name, "instance": "h:8000", **labels}, "values": pairs}
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}})


def test_answers_to_several_queries_at_one_time_are_one_scrape():
    files = {"a": query("vllm:num_preemptions_total", [1, 5, 9]), "b": query("vllm:kv_cache_usage_perc", [0.9, 0.97, 0.99])}
    [found] = chain(files)
    assert [(s.get("preemptions"), s.get("kv_usage")) for s in found.scrapes] == [(1, 0.9), (5, 0.97), (9, 0.99)]


def test_the_same_series_twice_is_not_joined():
    assert len(scrapes(read({"a": query("vllm:num_requests_running", [1]), "b": query("vllm:num_requests_running", [2])}))) == 2

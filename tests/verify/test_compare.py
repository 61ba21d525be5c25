"""Two sets of results: what both hold, judged by its scatter; unlike things refused."""

import json

import numpy as np
import pytest

from ab_samples import counts, gaps
from load_samples import read
from moexray.core.errors import UsageError
from moexray.verify.ab import Margin
from moexray.verify.compare import compare, outcomes_of
from moexray.verify.quantities import Quantity, load_figure, quantities

FIVE = Margin(0.05, is_share=True)


def outcomes(before, after, margin=FIVE):
    return {o.figure: o for o in compare(read(before), read(after), margin).outcomes}


def test_equal_latencies_are_no_change_and_slower_ones_worse():
    same = outcomes(gaps(20), gaps(20, seed=1))
    assert (same["p50_itl_s"].verdict, same["p99_itl_s"].verdict) == ("no change", "no change")
    slower = outcomes(gaps(20), gaps(25, seed=1))
    assert slower["p99_itl_s"].verdict == "worse"
    assert slower["p99_itl_s"].ratio.low > 1.1
    assert outcomes(gaps(25), gaps(20))["p50_itl_s"].verdict == "better"


def test_too_few_values_for_p99_are_said():
    found = outcomes(gaps(20, n=200), gaps(25, n=200))
    assert found["p99_itl_s"].verdict == "cannot tell"
    assert "1,000 values" in found["p99_itl_s"].reason
    assert found["p50_itl_s"].verdict == "worse"


def test_a_thinned_series_gives_no_verdict():
    thin = {"itl.csv": "step,itl_ms\n" + "".join(f"{i * 10},{20 + i % 3}\n" for i in range(1500))}
    assert "thinned" in outcomes(thin, thin)["p99_itl_s"].reason


def test_answers_of_other_length_give_no_verdict_on_the_whole_time():
    def table(tokens):
        rows = "".join(f"{i},{i * 0.1},{50 + i % 5},{500 + i % 7},{tokens}\n" for i in range(1200))
        return {"requests.csv": f"request_id,arrival_s,ttft_ms,e2e_ms,output_tokens\n{rows}"}

    found = outcomes(table(16), table(64))
    assert "16 output tokens before, 64 after" in found["p50_e2e_s"].reason
    assert found["p50_ttft_s"].verdict == "no change"


def test_single_benchmark_figures_are_told_without_a_verdict():
    def bench(ttft):
        return {"bench.json": json.dumps({"mean_ttft_ms": ttft, "p99_ttft_ms": 3 * ttft, "request_throughput": 8.0})}

    found = outcomes(bench(50), bench(80))
    assert found["p99_ttft_s"].ratio.value == pytest.approx(1.6)
    assert found["p99_ttft_s"].verdict == "cannot tell"
    assert "one run on each side" in found["p99_ttft_s"].reason


def test_repeated_benchmark_runs_have_a_spread():
    def runs(ttft):
        return {
            f"run{i}.json": json.dumps({"mean_ttft_ms": ttft + i % 3, "request_throughput": 8.0 + 0.01 * i})
            for i in range(8)
        }

    found = outcomes(runs(50), runs(80))
    assert found["mean_ttft_s"].verdict == "worse"
    assert found["requests_per_s"].verdict == "no change"
    assert found["requests_per_s"].better == "higher"


def test_skew_has_an_interval_over_steps():
    found = outcomes(counts(0.5), counts(0.15, seed=1))
    assert {o.verdict for o in found.values()} == {"better"}
    assert found["skew_index"].before.value > found["skew_index"].after.value
    same = outcomes(counts(0.5), counts(0.5, seed=1), Margin(0.2, is_share=True))
    assert {o.verdict for o in same.values()} == {"no change"}


def test_figures_of_a_load_by_hand():
    even, one = np.array([[5.0, 5, 5, 5]]), np.array([[20.0, 0, 0, 0]])
    assert [float(load_figure(n, even)) for n in ("expert_load_std", "skew_index", "balancedness")] == [0, 0, 1]
    assert float(load_figure("expert_load_std", one)) == pytest.approx(3**0.5)
    assert float(load_figure("skew_index", one)) == pytest.approx(0.75)
    assert float(load_figure("balancedness", one)) == pytest.approx(0.25)
    idle = np.stack([even[0], np.zeros(4)])
    assert float(load_figure("balancedness", idle)) == 1.0


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (counts(0.5), counts(0.5, experts=16), "8 logical experts before, 16 logical experts|8 .*16"),
        (counts(0.5), counts(0.5, layers=3), "2 layers before, 3 after"),
        (gaps(20), counts(0.5), "nothing of the same kind"),
        ({"notes.txt": "hello"}, gaps(20), "before holds nothing to compare"),
        (gaps(20), {"notes.txt": "hello"}, "after holds nothing to compare"),
    ],
)
def test_unlike_things_are_refused(before, after, told):
    with pytest.raises(UsageError, match=told):
        compare(read(before), read(after))


def test_other_load_levels_are_refused():
    def bench(level):
        rows = {"max_concurrency": level, "mean_ttft_ms": 50.0, "p99_ttft_ms": 90.0}
        return {"bench.json": json.dumps(rows)}

    with pytest.raises(UsageError, match="nothing of the same kind") as why:
        compare(read(bench(8)), read(bench(16)))
    assert "level 8" in why.value.where
    assert "level 16" in why.value.where


def test_what_only_one_side_holds_is_told():
    found = compare(read(gaps(20)), read({**gaps(20), **counts(0.5)}))
    assert found.only_before == ()
    assert found.only_after == ("load",)
    assert "not measured together" in found.notes[0]


def test_a_figure_that_is_a_series_too_is_not_told_twice():
    run = read({**gaps(20), "bench.json": json.dumps({"mean_itl_ms": 20.0, "p99_itl_ms": 22.0, "mean_ttft_ms": 50.0})})
    names = [q.name for q in quantities(run)]
    assert "itl" in names
    assert "mean_ttft_s" in names
    assert "p99_itl_s" not in names


def test_the_detailed_output_of_a_serving_benchmark_has_intervals():
    def bench(ttft, n=1200):
        firsts = [ttft + i % 11 / 1000 for i in range(n)]
        body = {"mean_ttft_ms": 1e3 * ttft, "p99_ttft_ms": 1e3 * ttft + 10, "ttfts": firsts,
                "itls": [[0.02, 0.021]] * n, "output_lens": [3] * n}  # fmt: skip
        return {"bench.json": json.dumps(body)}

    found = outcomes(bench(0.05), bench(0.08))
    assert found["p99_ttft_s"].verdict == "worse"
    assert found["p99_ttft_s"].n_before == 1200
    assert found["p50_itl_s"].verdict == "no change"
    assert "mean_ttft_s" not in found


@pytest.mark.parametrize("shape", ["even", "skewed"])
@pytest.mark.parametrize("lengths", [(50, 50), (50, 2000), (2000, 50)])
def test_equal_routing_is_neither_better_nor_worse_whatever_the_lengths(shape, lengths):
    """False verdicts of the three figures together, nominally 5 % each."""
    experts = 32
    p = np.full(experts, 1 / experts) if shape == "even" else np.random.default_rng(0).dirichlet(np.full(experts, 2.0))

    def load(steps, seed):
        tokens = np.random.default_rng([seed, steps]).multinomial(64, p, size=(steps, 2)).astype(float)
        blocks = np.stack([b.sum(axis=0) for b in np.array_split(tokens, min(steps, 50))])
        return Quantity("load", "", "load", (blocks,), "ratio")

    found = [
        o.verdict for seed in range(16) for o in outcomes_of(load(lengths[0], 2 * seed), load(lengths[1], 2 * seed + 1))
    ]
    assert sum(v in ("better", "worse") for v in found) <= 7  # of 48


def test_a_longer_run_is_thinned_and_a_note_says_so():
    found = compare(read(counts(0.3)), read(counts(0.3, steps=400, seed=1)))
    assert "after has 10 times the tokens" in found.notes[0]
    assert {o.verdict for o in found.outcomes} == {"cannot tell"}
    worse = compare(read(counts(0.3)), read(counts(0.5, steps=400, seed=1)))
    assert {o.verdict for o in worse.outcomes} == {"worse"}
    assert "thinned" not in " ".join(compare(read(counts(0.3)), read(counts(0.3, seed=1))).notes)


def test_rows_that_could_not_be_read_are_told():
    broken = {"itl.csv": gaps(20)["itl.csv"] + "1500,nan\n1501,-3\n"}
    found = compare(read(gaps(20)), read(broken))
    assert found.notes[0].startswith("after: itl.csv: ")
    assert not any(n.startswith("before") and "itl.csv" in n for n in found.notes)

"""Budgets: a planted regression breaks each of the three, its absence passes; bad files are told how to be good."""

import pytest

from ab_samples import counts, gaps
from load_samples import read
from moexray.core.errors import UsageError
from moexray.readers.read_any import read_any
from moexray.verify.budget import KEYS, check, load_budget
from snapshot_samples import document, segment, write

MIB = 1 << 20


def budget(tmp_path, text):
    file = tmp_path / "budget.toml"
    file.write_text(text)
    return load_budget(file)


def fragmented(tmp_path, name, holes):
    """A snapshot whose segments each keep one live block and a hole of so many MiB."""
    segments = [
        segment((i + 1) << 32, [(2 * MIB, "active_allocated"), (hole * MIB, "inactive")]) for i, hole in enumerate(holes)
    ]
    folder = tmp_path / name
    folder.mkdir()
    write(folder / "snapshot.pickle", document(segments))
    return read_any([folder])


def statuses(found):
    return {x.budget: x.status for x in found.lines}


FRAGMENTATION = """
[fragmentation]
max_ratio = 0.5
max_stuck = "40MiB"
min_largest_free = "16MiB"
max_stuck_growth = "10%"
max_largest_free_loss = 0.1
"""


def test_fragmentation_fails_planted_and_passes_without(tmp_path):
    lines = budget(tmp_path, FRAGMENTATION)
    good = fragmented(tmp_path, "good", [20, 4])
    bad = fragmented(tmp_path, "bad", [8, 8, 8, 8, 8, 8])
    assert set(statuses(check(lines, good, good)).values()) == {"pass"}
    assert set(statuses(check(lines, bad, good)).values()) == {"fail"}


SKEW = """
[skew]
max_load_std = 0.5
max_index = 0.3
min_balancedness = 0.5
max_load_std_growth = 0.2
max_balancedness_loss = "20%"
"""


def test_skew_fails_planted_and_passes_without(tmp_path):
    lines = budget(tmp_path, SKEW)
    good, bad = read(counts(0.15)), read(counts(0.6, seed=1))
    assert set(statuses(check(lines, read(counts(0.15, seed=2)), good)).values()) == {"pass"}
    assert set(statuses(check(lines, bad, good)).values()) == {"fail"}


P99 = """
[p99]
max_itl = "24ms"
max_itl_growth = "10%"
"""


def test_p99_fails_planted_and_passes_without(tmp_path):
    lines = budget(tmp_path, P99)
    good = read(gaps(20))
    assert set(statuses(check(lines, read(gaps(20, seed=1)), good)).values()) == {"pass"}
    found = check(lines, read(gaps(20, seed=1, spikes=0.05)), good)
    assert set(statuses(found).values()) == {"fail"}
    line = found.to_json()["lines"][0]
    assert line["budget"] == "p99.max_itl"
    assert line["before"] == {"value": 0.024, "low": None, "high": None}
    assert line["after"]["low"] > 0.024
    assert line["verdict"] == "worse"
    assert found.to_json()["passed"] is False


def test_beyond_the_limit_but_within_the_scatter_is_undecided(tmp_path):
    run = read(gaps(20))
    p99 = check(budget(tmp_path, "[p99]\nmax_itl = 1"), run).lines[0].outcome.after
    assert p99.low < p99.value
    between = (p99.low + p99.value) / 2
    [line] = check(budget(tmp_path, f"[p99]\nmax_itl = {between}"), run).lines
    assert line.status == "cannot tell"


def test_a_benchmarks_own_p99_is_one_number(tmp_path):
    run = read({"bench.json": '{"p99_ttft_ms": 90.0, "mean_ttft_ms": 50.0}'})
    assert statuses(check(budget(tmp_path, '[p99]\nmax_ttft = "80ms"'), run)) == {"p99.max_ttft": "fail"}
    assert statuses(check(budget(tmp_path, '[p99]\nmax_ttft = "100ms"'), run)) == {"p99.max_ttft": "pass"}


@pytest.mark.parametrize(("line", "why"), [('max_itl = "1s"', "thinned"), ('max_e2e_growth = "900%"', "output tokens")])
def test_a_series_whose_quantiles_mislead_bounds_no_p99(tmp_path, line, why):
    def table(tokens):
        rows = "".join(f"{i},{i * 0.1},{50 + i % 5},{500 + i % 7},{tokens}\n" for i in range(1200))
        return f"request_id,arrival_s,ttft_ms,e2e_ms,output_tokens\n{rows}"

    thin = "step,itl_ms\n" + "".join(f"{i * 10},{20 + i % 3}\n" for i in range(1500))
    run, before = read({"itl.csv": thin, "requests.csv": table(64)}), read({"requests.csv": table(16)})
    with pytest.raises(UsageError, match=why):
        check(budget(tmp_path, f"[p99]\n{line}"), run, before)


def test_what_was_zero_may_not_grow(tmp_path):
    lines = budget(tmp_path, "[fragmentation]\nmax_ratio_growth = 0.5")
    good, bad = fragmented(tmp_path, "good", [20]), fragmented(tmp_path, "bad", [8, 8])
    assert statuses(check(lines, good, good)) == {"fragmentation.max_ratio_growth": "pass"}
    assert statuses(check(lines, bad, good)) == {"fragmentation.max_ratio_growth": "fail"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[p99\n", "the budget is not TOML"),
        ("", "holds no line"),
        ("[latency]\nmax = 1\n", r"no budget \[latency\]"),
        ("p99 = 3\n", r"no budget \[p99\]"),
        ("[p99]\nmax_iitl = 1\n", r"\[p99\] has no key max_iitl"),
        ("[p99]\nmax_itl = true\n", "is no limit"),
        ('[p99]\nmax_itl = "5 GiB"\n', "is no limit"),
        ("[p99]\nmax_itl = -1\n", "is no limit"),
        ("[p99]\nmax_itl = nan\n", "is no limit"),
        ('[fragmentation]\nmax_stuck = "much"\n', "is no limit"),
        ("[skew]\nmax_index = [1]\n", "is no limit"),
        ("[fragmentation]\nmax_stuck = " + 400 * "9", "is no limit"),
        ("[p99]\nmax_itl = " + 6000 * "9", "the budget is not TOML"),
        ("a = " + 100_000 * "[", "the budget is not TOML"),
        ("[p99]\nmax_itl = 1\n#" + (1 << 20) * "x" + "\nmax_ttft = 1\n", "longer than 1 MiB"),
    ],
)
def test_bad_budgets(tmp_path, text, told):
    with pytest.raises(UsageError, match=told):
        budget(tmp_path, text)


def test_an_unknown_key_lists_the_known_ones(tmp_path):
    with pytest.raises(UsageError) as why:
        budget(tmp_path, "[p99]\nmax_iitl = 1\n")
    assert "max_itl, max_itl_growth" in why.value.hint
    with pytest.raises(UsageError) as why:
        budget(tmp_path, "[latency]\nmax = 1\n")
    assert all(f"[{section}]" in why.value.hint for section in KEYS)


def test_limits_with_units(tmp_path):
    found = budget(tmp_path, '[p99]\nmax_itl = "50ms"\nmax_ttft = 0.2\nmax_e2e_growth = "5%"\n'
                             '[fragmentation]\nmax_stuck = "1.5GiB"\nmin_largest_free = 4096\n')  # fmt: skip
    limits = {k: limit for k, (_, limit) in found.items()}
    assert limits["p99.max_itl"] == pytest.approx(0.05)
    assert limits["p99.max_ttft"] == 0.2
    assert limits["p99.max_e2e_growth"] == pytest.approx(0.05)
    assert limits["fragmentation.max_stuck"] == 1.5 * 2**30
    assert limits["fragmentation.min_largest_free"] == 4096


@pytest.mark.parametrize(
    ("text", "run", "told"),
    [
        ("[p99]\nmax_ttft = 1\n", gaps(20), "p99.max_ttft asks for p99_ttft_s"),
        ("[skew]\nmax_index = 1\n", gaps(20), "skew.max_index asks for skew_index"),
        ("[p99]\nmax_itl_growth = 1\n", gaps(20), "compare with a baseline"),
        ("[p99]\nmax_itl = 1\n", gaps(20, n=300), "P99 wants 1,000 values per arm, there are 300"),
    ],
)
def test_what_cannot_be_checked_is_an_error(tmp_path, text, run, told):
    with pytest.raises(UsageError, match=told):
        check(budget(tmp_path, text), read(run))


def test_a_budget_may_begin_with_a_byte_order_mark(tmp_path):
    assert list(budget(tmp_path, "\ufeff[p99]\r\nmax_itl = 1\r\n")) == ["p99.max_itl"]


def test_rows_that_could_not_be_read_are_noted(tmp_path):
    lines = budget(tmp_path, P99)
    found = check(lines, read({"itl.csv": gaps(20)["itl.csv"] + "1500,nan\n"}), read(gaps(20)))
    assert len(found.notes) == 1
    assert found.to_json()["notes"][0].startswith("path: itl.csv: ")
    assert check(lines, read(gaps(20)), read(gaps(20))).notes == ()


def test_equal_skew_breaks_no_growth_whatever_the_lengths(tmp_path):
    lines = budget(tmp_path, '[skew]\nmax_load_std_growth = "20%"\nmax_index_growth = "20%"\n')
    long, short = read(counts(0.125, steps=800)), read(counts(0.125, steps=20, seed=1))
    assert "fail" not in statuses(check(lines, short, long)).values()
    hot = read(counts(0.5, steps=800, seed=2))
    assert set(statuses(check(lines, hot, short)).values()) == {"fail"}

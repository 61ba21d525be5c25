from dataclasses import replace

import pytest

from made_histories import Heap, growing
from moexray.algorithms import conf
from moexray.algorithms.blocks import Settings
from moexray.readers.read_any import read_any
from moexray.whatif import search as module
from moexray.whatif.cases import Memory, prepare_cases
from moexray.whatif.recordings import collect
from moexray.whatif.search import grid, measured, named, neighbours, ranked, search, spread
from snapshot_samples import MIB, write


def made(tmp_path, doc, **memory):
    found, _ = collect(read_any([write(tmp_path / "made.pickle", doc)]))
    cases, _ = prepare_cases(found, Memory(**memory))
    return cases


def same(settings):
    """What PyTorch makes of the line that we would advise."""
    return conf.parse(conf.text(settings))[0]


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("large", [True, False])
def test_every_setting_of_the_grid_is_one_that_pytorch_takes(limited, large):
    texts = grid(limited=limited, large=large)
    assert len(set(texts)) == len(texts)
    for text in texts:
        assert same(named(text)) == named(text)
    assert any("large_segment" in t for t in texts) == large
    assert any("garbage" in t for t in texts) == limited


def test_neighbours_of_neighbours_are_settings_that_pytorch_takes():
    todo, seen = [Settings()], set()
    for _ in range(3):
        todo = [n for s in todo for n in neighbours(s, [3], large=True) if n not in seen]
        seen |= set(todo)
    assert len(seen) > 80
    for settings in seen:
        assert same(settings) == settings, conf.text(settings)
    assert not any(s.gc_threshold for s in seen)


def test_the_steps_of_a_search_go_one_option_at_a_time():
    options = (
        "expandable",
        "max_split",
        "max_non_split_rounding",
        "roundup",
        "gc_threshold",
        "large_segment",
    )
    begin = replace(named("max_split_size_mb:128,roundup_power2_divisions:4"), limit=1 << 30)
    for n in neighbours(begin, [], large=True):
        changed = {o for o in options if getattr(n, o) != getattr(begin, o)}
        assert len(changed - {"max_non_split_rounding"}) <= 1
        assert n.limit == begin.limit


def test_the_search_goes_beyond_its_grid(tmp_path):
    cases = made(tmp_path, growing(12))
    alone = {t.name for t in search(cases, rounds=0)[1]}
    assert len({t.name for t in search(cases, rounds=2)[1]} - alone) > 5


def test_a_long_history_gets_fewer_trials(tmp_path, monkeypatch):
    cases = made(tmp_path, growing())
    monkeypatch.setattr(module, "BUDGET", 5 * len(cases[0].kept))
    _, trials, cut = search(cases)
    assert cut
    assert len(trials) == 5
    assert "expandable_segments:True" in {t.name for t in trials}


def test_of_settings_with_the_same_effect_the_simplest_ranks_first(tmp_path):
    cases = made(tmp_path, growing())
    recorded = measured(cases, "", None)
    names = ["expandable_segments:True,max_split_size_mb:512", "expandable_segments:True"]
    trials = [measured(cases, n, named(n)) for n in names]
    assert [t.name for t in ranked(recorded, trials, fresh=False)] == names[::-1]


def test_failures_rank_before_memory(tmp_path):
    cases = made(tmp_path, growing(), capacity=200 * MIB)
    recorded = measured(cases, "", None)
    names = ["roundup_power2_divisions:16", "expandable_segments:True"]
    low, high = (measured(cases, n, named(n)) for n in names)
    assert low.outcomes[0].retries > high.outcomes[0].retries == 0
    assert ranked(recorded, [low, high], fresh=False)[0] is high


def test_the_smallest_capacity_is_one_at_which_nothing_fails_and_less_does(tmp_path):
    heap = Heap()
    heap.give(heap.take(300))
    heap.take(12)
    heap.take(310)
    [case] = made(tmp_path, heap.document())
    settings = named("")
    least = case.kept.least(settings, case.kept.outcome(settings, None), None)
    assert abs(least - 610 * MIB) <= 2 * MIB  # the 12 MiB pin 300 MiB
    assert case.kept.outcome(settings, least).ooms == 0
    assert case.kept.outcome(settings, least - 4 * MIB).ooms == 1


def test_every_order_of_addresses_is_tried(tmp_path):
    cases = made(tmp_path, growing())
    trials = spread(cases, measured(cases, "", None), fresh=False)
    assert [t.outcomes[0].peak_reserved for t in trials] == [sum(100 + 2 * i for i in range(6)) * MIB] * 3

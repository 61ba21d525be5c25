"""The stress generator: it reaches its target, repeats itself, stops when told, and its files are exact."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys

import pytest

from moexray.algorithms.blocks import Settings
from moexray.algorithms.policies import POLICIES, FirstFit
from moexray.algorithms.replay import Action, Event, History, SegmentState, replay
from moexray.core.errors import UsageError
from moexray.verify.stress import MIXES, PolicyHeap, Spec, drive, record
from moexray.verify.stress.heaps import Row, ratio_of
from moexray.verify.stress.steer import Aim, actions, distance, preparation

MIB = 1 << 20
VARIANTS = [
    {"streams": s, "graph_pool": g, "oom": o, "expandable": e}
    for s, g, o, e in itertools.product((1, 4), (False, True), (False, True), (False, True))
]


def history(snapshot):
    """What the replay wants, straight from the dictionary."""
    events = [
        Event(Action[e["action"].upper()], e.get("addr", 0), e["size"], e["stream"], e["pool_id"])
        for e in snapshot["device_traces"][0]
    ]
    segments = [
        SegmentState(
            s["address"], s["total_size"], s["stream"], s["segment_type"] == "small", s["segment_pool_id"],
            tuple((b["address"], b["size"], b["requested_size"], b["state"] != "inactive") for b in s["blocks"]),
            expandable=s["is_expandable"],
        )
        for s in snapshot["segments"]
    ]  # fmt: skip
    settings = Settings(expandable=snapshot["allocator_settings"]["expandable_segments"])
    return History(tuple(events), tuple(segments), settings)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("mix", MIXES)
def test_the_replay_of_a_snapshot_is_exact(variant, mix):
    heap, _ = record(Spec(seed=3, events=1000, mix=mix, **variant))
    check = replay(history(heap.snapshot()))
    assert check.placements[1] > 250
    assert check.exact, check


@pytest.mark.parametrize("target", [0.1, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("mix", MIXES)
def test_the_target_is_reached(target, mix):
    for seed in range(2):
        heap, outcome = record(Spec(seed=seed, events=2500, target=target, mix=mix, oom=seed == 1))
        free = [b["size"] for s in heap.snapshot()["segments"] for b in s["blocks"] if b["state"] == "inactive"]
        assert outcome.ratio == pytest.approx(1 - max(free) / sum(free))
        assert outcome.error == outcome.ratio - target
        # Training frees all temporaries at the end of a step: what is left to steer with is coarse.
        assert abs(outcome.error) <= (0.02 if mix == "training" else 0.005 + 1e-9)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_variant_is_what_it_says(variant):
    heap, outcome = record(Spec(seed=1, events=1500, **variant))
    snapshot = heap.snapshot()
    trace = snapshot["device_traces"][0]
    said = {e["action"] for e in trace}
    assert ("segment_map" in said) == variant["expandable"]
    assert ("segment_alloc" in said) != variant["expandable"]
    assert all(s["is_expandable"] == variant["expandable"] for s in snapshot["segments"])
    assert (len({e["stream"] for e in trace} - {52}) > 1) == (variant["streams"] > 1)
    assert ((0, 1) in {s["segment_pool_id"] for s in snapshot["segments"]}) == variant["graph_pool"]
    assert (trace[-1]["action"] == "oom") == variant["oom"]
    assert outcome.failures == variant["oom"]
    if variant["oom"]:
        holes = [b["size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "inactive"]
        assert trace[-1]["size"] > max([*holes, trace[-1]["device_free"]])
        assert "addr" not in trace[-1]
    _check_layout(snapshot)


def _check_layout(snapshot):
    """Blocks tile their segment; sums, times and states agree."""
    times = [e["time_us"] for e in snapshot["device_traces"][0]]
    assert times == sorted(times)
    live = {}
    for e in snapshot["device_traces"][0]:
        if e["action"] == "alloc":
            assert e["addr"] not in live
            live[e["addr"]] = e["size"]
        elif e["action"] == "free_completed":
            assert live.pop(e["addr"]) == e["size"]
    seen = {}
    for s in snapshot["segments"]:
        at = s["address"]
        for b in s["blocks"]:
            assert b["address"] == at
            at += b["size"]
            if b["state"] != "inactive":
                seen[b["address"]] = b["requested_size"]
        assert at == s["address"] + s["total_size"]
        assert s["active_size"] == sum(b["size"] for b in s["blocks"] if b["state"] != "inactive")
    assert seen == live
    addresses = [s["address"] for s in snapshot["segments"]]
    assert addresses == sorted(addresses)


def test_frees_are_deferred_with_several_streams():
    heap, _ = record(Spec(seed=2, events=3000, streams=4))
    trace = heap.events
    gaps = [i for i, e in enumerate(trace[:-1]) if e["action"] == "free_requested" and trace[i + 1]["action"] != "free_completed"]
    assert gaps
    heap, _ = record(Spec(seed=2, events=3000))
    assert all(heap.events[i + 1]["action"] == "free_completed" for i, e in enumerate(heap.events) if e["action"] == "free_requested")


def test_what_is_given_back_names_its_own_stream_and_pool():
    for expandable, taken, back in ((False, "segment_alloc", "segment_free"), (True, "segment_map", "segment_unmap")):
        heap, _ = record(Spec(seed=1, events=3000, streams=4, graph_pool=True, oom=True, expandable=expandable))
        homes, seen = [], 0
        for e in heap.events:
            where = (e["stream"], e["pool_id"])
            if e["action"] == taken:
                homes.append((e["addr"], e["addr"] + e["size"], where))
            elif e["action"] == back:
                seen += 1
                assert {h for low, high, h in homes if low <= e["addr"] < high} == {where}
        assert seen > 3


def test_a_small_device_makes_retries():
    endless, _ = record(Spec(seed=1, events=3000))
    peak = endless.allocator.counters.peak_reserved
    heap, _ = record(Spec(seed=1, events=3000, capacity=int(peak * 0.97)))
    assert heap.allocator.counters.retries > 0
    assert heap.allocator.counters.peak_reserved <= int(peak * 0.97)


DIGEST = """
import hashlib, pickle
from moexray.verify.stress import Spec, record
heap, _ = record(Spec(seed=5, events=800, streams=3, graph_pool=True, oom=True))
print(hashlib.sha256(pickle.dumps(heap.snapshot(), protocol=4)).hexdigest())
"""


def test_the_same_seed_gives_the_same_bytes_in_another_process():
    digests = {
        subprocess.run([sys.executable, "-c", DIGEST], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    other = record(Spec(seed=6, events=800, streams=3, graph_pool=True, oom=True))[0]
    assert pickle.dumps(other.snapshot()) != pickle.dumps(record(Spec(seed=5, events=800, streams=3, graph_pool=True, oom=True))[0].snapshot())


@pytest.mark.parametrize("after", [0, 1, 7, 60])
def test_stop_ends_it_with_a_sound_history(after):
    asked = itertools.count()
    heap, outcome = record(Spec(seed=1, events=50_000), stop=lambda: next(asked) >= after)
    assert outcome.interrupted
    assert outcome.events < 50_000
    _check_layout(heap.snapshot())
    assert replay(history(heap.snapshot())).exact


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_driven_too(name):
    heap = PolicyHeap(POLICIES[name]())
    outcome = drive(heap, Spec(seed=1, events=1500, target=0.6))
    if name in ("first-fit", "best-fit", "segregated"):  # the others place what steering asks for elsewhere
        assert abs(outcome.error) < 0.01
    live = {}
    for handle, size in heap.steps:
        if size:
            live[handle] = size
        else:
            del live[handle]
    assert len(live) == len(heap.policy.used)


def test_what_cannot_be_generated_is_refused():
    for spec, words in (
        (Spec(target=1.0), "cannot be reached"),
        (Spec(streams=9), "9 streams"),
        (Spec(mix="none"), "there is no mix none"),
        (Spec(live_bytes=1), "too little memory"),
    ):
        with pytest.raises(UsageError, match=words):
            record(spec)


# ---- steering, on rows worked by hand: 8 free, used, 4 free, used, 4 free

HOME = (0, (0, 0))
ROWS = [Row(HOME, 1, 1 << 40, [(8 * MIB, None), (2 * MIB, 1), (4 * MIB, None), (2 * MIB, 2), (4 * MIB, None)])]


def test_each_action_says_what_will_be_left():
    assert ratio_of(ROWS) == 0.5
    assert distance(ROWS, Aim(0.5, 1)) == 0.0
    found = actions(ROWS, [], Aim(0.0, 1), _Dice(), keep=set())
    left = {a.handle: a.off for a in found if a.handle is not None}
    assert left == {1: pytest.approx(1 - 14 / 18), 2: pytest.approx(1 - 10 / 18)}
    filled = {a.size: a.off for a in found if a.handle is None and a.size}
    assert filled[8 * MIB] == pytest.approx(0.5)  # 4 and 4 are left
    assert filled[4 * MIB] == pytest.approx(1 - 8 / 12)
    assert not [a for a in actions(ROWS, [], Aim(0.0, 1), _Dice(), keep={1, 2}) if a.handle is not None]


def test_a_preparation_is_worked_out_by_hand():
    brief = preparation(ROWS, Aim(0.2, 1), most=1 << 40)
    assert (brief.size, brief.brief) == (64 * MIB, True)  # 1 - 64 / (16 + 64) = 0.2
    more = preparation(ROWS, Aim(0.9, 1), most=1 << 40)  # a hole as large as the largest, in new memory
    assert (more.size - more.piece, more.piece, more.brief) == (8 * MIB, 8 * MIB + 512, True)
    assert more.seal > more.size
    little = preparation(ROWS, Aim(0.6, 1), most=1 << 40)
    assert little.size - little.piece == 4 * MIB  # 1 - 8 / (16 + 4) = 0.6
    first = preparation([Row(HOME, 1, 1 << 40, [(MIB, 1)])], Aim(0.75, 64 * MIB, cached=False), most=1 << 40)
    assert first.size - first.piece == 16 * MIB  # four of them make 64 MiB and 0.75


class _Dice:
    def sample(self, population, k):
        return list(population)[:k]


def test_a_driven_arena_fails_within_its_capacity():
    heap = PolicyHeap(FirstFit(3 << 30))
    outcome = drive(heap, Spec(seed=1, events=4000))
    assert heap.policy.high_water <= 3 << 30
    assert outcome.failures == heap.failures


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_a_temporary_of_steering_may_be_preempted_on_a_full_device(seed):
    _, outcome = record(Spec(seed=seed, events=3000, live_bytes=64 * MIB, capacity=80 * MIB))
    assert outcome.failures > 0

"""Recordings of tools/gpu_record.py under tests/data/gpu: how far our replay agrees with a GPU.

What moexray claims (CLAIMED) must agree in everything. Each other recording is told with what agrees:
as a pass, or as an expected failure with its figures (`pytest -rxX`).
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import snapshot_samples as samples
from gpu_record import STEPS, sequence
from moexray.algorithms.conf import parse
from moexray.algorithms.replay import replay
from moexray.algorithms.simulate import prepare, simulate
from moexray.core.errors import UsageError
from moexray.readers.read_any import read_any
from moexray.verify.stress import TorchHeap
from moexray.verify.stress.mixes import Request
from moexray.whatif.allocator import recordings

FOLDER = Path(__file__).parent / "data" / "gpu"
# Steps whose setting we claim to replay exactly; the rules of the others are derived from PyTorch's source
# (docs/decisions/020). A step that a recording confirms moves up here.
CLAIMED = frozenset({"default"})


def steps(folder):
    """(file, step) of each snapshot that a run on a GPU left in a folder."""
    record = folder / "record.json"
    if not record.is_file():
        return []
    document = json.loads(record.read_text("utf-8"))
    assert not document["dry_run"], "a dry run holds no snapshots"
    return [(folder / name, step) for step in document["steps"].values() for name in step.get("files", ())]


def differences(path, step):
    """What of a recording the replay does not agree with, in words; [] if it agrees in everything."""
    try:
        [recording] = recordings(read_any([str(path)]))
    except UsageError as why:
        return [str(why)]
    settings = replace(parse(step["conf"])[0], limit=step["limit_mib"] * samples.MIB or None)
    history = replace(recording.history, settings=settings)
    check = replay(history)
    parts = ("placements", "segment_allocs", "segment_frees", "final_blocks")
    out = ["{} {}/{}".format(part, *getattr(check, part)) for part in parts if len(set(getattr(check, part))) > 1]
    if check.contradiction:
        return [*out, check.contradiction]
    plan = prepare(history)
    capacity = plan.capacity[0] if plan.capacity[1] is not None else None
    mine = simulate(plan, settings, capacity=capacity).reserved
    equal = sum(a == b for a, b in zip(mine, plan.recorded_reserved, strict=True))
    return out if mine == plan.recorded_reserved else [*out, f"reserved at own addresses {equal}/{len(mine)}"]


FOUND = steps(FOLDER)


@pytest.mark.parametrize(("path", "step"), FOUND, ids=[p.name for p, _ in FOUND])
def test_the_replay_agrees_with_a_gpu(path, step):
    found = differences(path, step)
    if found and step["name"] not in CLAIMED:
        pytest.xfail(f"{path.name} ({step['conf'] or 'default'}): {'; '.join(found)}")
    assert found == []


def test_the_claimed_settings_were_recorded():
    if not FOUND:
        pytest.skip("no recordings of a GPU in tests/data/gpu; see tools/README.md")
    assert {step["name"] for _, step in FOUND} >= CLAIMED


# ---- that the comparison sees what it must


def recorded(folder, document, **step):
    """A folder as gpu_record.py leaves it, with one snapshot."""
    samples.write(folder / "one.pickle", document)
    about = {"name": "one", "conf": "", "limit_mib": 0, "files": {"one.pickle": {}}, **step}
    (folder / "record.json").write_text(json.dumps({"dry_run": False, "steps": {"one": about}}), "utf-8")
    return steps(folder)


def segments(conf):
    settings = {"PYTORCH_CUDA_ALLOC_CONF": conf, "expandable_segments": False}
    whole = [samples.segment(samples.BASE, [(3 * samples.MIB, "a"), (17 * samples.MIB, "f")])]
    return samples.whole(whole, settings=settings)


@pytest.mark.parametrize("step", [s for s in STEPS if s.work == "scripted"], ids=lambda s: s.name)
def test_every_scripted_step_can_be_compared(step, tmp_path):
    """Our own allocator in the place of the GPU: what differs in a real recording is then a rule, not our way of reading it."""
    heap, live = TorchHeap(replace(parse(step.conf)[0], limit=step.limit_mib * samples.MIB or None)), {}
    for action, key, size in sequence():
        if action == "alloc":
            live[key] = heap.allocate(Request(size, 0, ("scripted", "gpu_steps.py", 1)), (0, (0, 0)))
        elif action == "empty_cache":
            heap.release()
        elif (handle := live.pop(key)) is not None:
            heap.free(handle)
    [(path, about)] = recorded(tmp_path, heap.snapshot(), conf=step.conf, limit_mib=step.limit_mib)
    assert differences(path, about) == []


def test_the_setting_of_the_step_is_used_and_a_difference_is_told(tmp_path):
    """12 MiB segments were asked for, and the recording has 20: both kinds of replay see it."""
    [(path, step)] = recorded(tmp_path, segments("large_segment_size_mb:12"), conf="large_segment_size_mb:12")
    told = differences(path, step)
    assert any(line.startswith("segment_allocs 0/1") for line in told)
    assert any(line.startswith("reserved at own addresses 0/1") for line in told)


def test_a_dry_run_is_no_recording(tmp_path):
    (tmp_path / "record.json").write_text('{"dry_run": true, "steps": {}}', "utf-8")
    with pytest.raises(AssertionError, match="dry run"):
        steps(tmp_path)

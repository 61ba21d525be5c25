"""The recorder's dry run: the real flow, on CPU tensors."""

import gzip
import json
import random
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest

import gpu_record
import snapshot_samples as samples
from gpu_record import MIB, STEPS, Step, sequence
from moexray.algorithms.allocator import CachingAllocator, OutOfMemoryError
from moexray.algorithms.conf import parse
from moexray.algorithms.replay import Device
from moexray.readers.read_any import read_any
from moexray.whatif.allocator import recordings

torch = pytest.importorskip("torch", reason="the recorder needs torch")
import gpu_steps  # noqa: E402


def simulated(step):
    """The scripted sequence through our own allocator under a step's setting."""
    settings = replace(parse(step.conf)[0], limit=step.limit_mib * MIB or None)
    allocator, live = CachingAllocator(settings, Device()), {}
    for action, key, size in sequence():
        if action == "free":
            if key in live:
                allocator.free(live.pop(key))
        elif action == "empty_cache":
            allocator.release_cached()
        else:
            try:
                live[key] = allocator.malloc(size)
            except OutOfMemoryError:
                continue
    return allocator.counters


SCRIPTED = {s.name: s for s in STEPS if s.work == "scripted"}


def test_the_sequence_is_the_same_everywhere_and_frees_what_it_allocated():
    before = random.getstate()
    steps = sequence()
    assert steps == sequence()
    assert random.getstate() == before
    live = set()
    for action, key, size in steps:
        if action == "alloc":
            assert size > 0
            live.add(key)
        elif action == "free":
            live.remove(key)
    sizes = [size for action, _, size in steps if action == "alloc"]
    assert len(sizes) < 5000  # three entries each; the files stay below 1 MB
    assert min(sizes) <= 512
    assert max(sizes) > 32 * MIB


def test_each_setting_has_an_effect_on_the_sequence():
    """A GPU session is too dear to record settings that change nothing."""
    of = {name: simulated(step) for name, step in SCRIPTED.items()}
    reserved = {name: (c.peak_reserved, c.device_allocs, c.maps) for name, c in of.items()}
    assert len(set(reserved.values())) == len(reserved)
    assert of["default"].retries == 0
    assert of["default"].device_frees > 0
    for name in ("limit", "limit-expandable", "limit-split"):
        assert of[name].retries > of[name].ooms > 0, name
    assert of["expandable"].unmaps > 0
    assert of["collect"].device_frees > of["default"].device_frees
    assert of["collect"].retries == 0


# ---- the steps, in this process


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name)
def test_the_strings_of_the_steps_are_valid(step):
    parse(step.conf)
    torch._C._accelerator_setAllocatorSettings(step.conf)
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20,expandable_segments:False")


class Plain(gpu_steps.Cpu):
    """A CPU machine that records nothing: the profiler runs in the child processes below."""

    def record(self):
        self.profile = None

    def save(self, path):
        raise NotImplementedError


def test_work_on_the_cpu(monkeypatch):
    saved = []
    m = Plain("", 64)
    results = {name: work(m, lambda part="": saved.append(part)) for name, work in gpu_steps.WORK.items()}
    assert saved == ["", "", "", "", "-released", "", "-released"]
    assert results["scripted"] == {"allocations": 2000, "live": results["scripted"]["live"], "failed": []}
    assert results["running_out"]["with_retry"]["message"] is None
    assert "can't allocate memory" in results["running_out"]["beyond"]["message"]
    assert results["counters"]["replays"] == 100
    assert results["counters"]["wrong"] == 0
    assert [row["mib"] for row in results["costs"]["by_size"]] == [2, 20]
    json.dumps(results)


def test_a_failed_request_is_left_out(monkeypatch):
    m, left = Plain("", 0), [3]
    plain = m.empty

    def scarce(size):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("no room")
        return plain(size)

    monkeypatch.setattr(m, "empty", scarce)
    result = gpu_steps.scripted(m, lambda: None)
    assert [f["key"] for f in result["failed"]] == [3]


def test_calls_fit_torchs_signatures_and_a_snapshot_is_saved_without_folders(monkeypatch, tmp_path):
    """There is no device here: torch.cuda is replaced by doubles that check their arguments."""
    names = ("init", "get_allocator_backend", "get_device_properties", "mem_get_info", "set_per_process_memory_fraction", "memory_stats")
    doubles = {name: create_autospec(getattr(torch.cuda, name)) for name in names}
    doubles["get_device_properties"].return_value = SimpleNamespace(
        name="a GPU", total_memory=80 << 30, major=9, minor=0, multi_processor_count=132
    )
    doubles["mem_get_info"].return_value = (70 << 30, 80 << 30)
    doubles["memory_stats"].return_value = {"num_ooms": 0, "num_alloc_retries": 2}
    record = create_autospec(torch.cuda.memory._record_memory_history)
    document = samples.whole([samples.segment(samples.BASE, [(MIB, "a"), (MIB, "f")], kind="small")])
    for name, double in doubles.items():
        monkeypatch.setattr(torch.cuda, name, double)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", create_autospec(torch.cuda.memory._snapshot, return_value=document))
    m = gpu_steps.Cuda("", 513)
    assert doubles["set_per_process_memory_fraction"].call_args.args == (513 * MIB / (80 << 30),)
    assert m.state() == {"room_bytes": 513 * MIB, "total_bytes": 80 << 30, "stats": {"num_alloc_retries": 2}}
    monkeypatch.setenv("PATH", str(tmp_path))  # a container without nvidia-smi
    assert m.facts()["gpu"] == "a GPU"
    path = tmp_path / "one.pickle.gz"
    m.save(path)
    assert b"/srv/app" not in gzip.decompress(path.read_bytes())
    [recording] = recordings(read_any([str(path)]))
    assert len(recording.history.events) == 2
    m.stop_recording()


# ---- the processes


def test_a_run_is_completed_by_the_next_and_never_written_over(tmp_path, capsys):
    out = tmp_path / "out"
    assert gpu_record.main([str(out), "--dry-run", "--steps", "default"]) == 0
    record = json.loads((out / "record.json").read_text())
    assert (record["schema"], record["dry_run"], [*record["steps"]]) == (gpu_record.SCHEMA, True, ["facts", "default"])
    facts, default = record["steps"].values()
    assert facts["result"]["torch"] == torch.__version__
    [(name, file)] = default["files"].items()
    data = (out / name).read_bytes()
    assert (name, file["bytes"]) == ("default.json.gz", len(data))
    events = json.loads(gzip.decompress(data))["traceEvents"]
    wanted = sorted(size for action, _, size in sequence() if action == "alloc")
    assert sorted(e["args"]["Bytes"] for e in events if e["name"] == "[memory]" and e["args"]["Bytes"] > 0) == wanted

    (out / "record.json").write_text(json.dumps(record))
    before = (out / name).stat().st_mtime_ns
    assert gpu_record.main([str(out), "--dry-run", "--steps", "default"]) == 0  # nothing is left to do
    assert (out / name).stat().st_mtime_ns == before
    assert gpu_record.main([str(out)]) == 2  # a dry run is not continued on a device
    (tmp_path / "mine.txt").write_text("mine")
    assert gpu_record.main([str(tmp_path), "--dry-run"]) == 2
    assert "--force" in capsys.readouterr().err
    assert gpu_record.main([str(out), "--dry-run", "--steps", "default", "--budget", "0"]) == 0
    (out / name).unlink()
    assert gpu_record.main([str(out), "--dry-run", "--steps", "default", "--budget", "0"]) == 1  # no time for it


def test_a_step_that_fails_or_hangs_is_noted(tmp_path):
    broken = gpu_record.run_step(tmp_path, Step("x", "no_such_work"), dry_run=True, seconds=30)
    assert (broken["status"], "no_such_work" in broken["error"]) == ("failed", True)
    stuck = gpu_record.run_step(tmp_path, Step("x", "facts"), dry_run=True, seconds=0.05)
    assert stuck["status"] == "timeout"
    assert not gpu_record.is_done(tmp_path, broken)


def test_without_a_device_it_says_so(tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert gpu_record.main([str(tmp_path / "out")]) == 2
    assert "--dry-run" in capsys.readouterr().err


@pytest.mark.soak
def test_the_whole_dry_run(tmp_path):
    assert gpu_record.main([str(tmp_path / "out"), "--dry-run"]) == 0
    steps = json.loads((tmp_path / "out" / "record.json").read_text())["steps"]
    assert [*steps] == [s.name for s in STEPS]
    assert all(f["bytes"] < gpu_steps.LARGEST_FILE for s in steps.values() for f in s["files"].values())

import gzip
import json

import pytest
from click.testing import CliRunner

import made_histories as histories
from moexray.faces.cli.main import main
from snapshot_samples import MIB, document, event, segment, write

FIGURES = {
    "conf", "peak_reserved_bytes", "peak_allocated_bytes", "stuck_bytes", "retries", "ooms", "segment_ops",
    "min_capacity_bytes",
}  # fmt: skip
KINDS = ("placements", "segments", "segment_frees", "final_blocks")


def whatif(*args, code=0):
    result = CliRunner().invoke(main, ["whatif", "memory", *map(str, args)])
    assert result.exit_code == code, result.output + result.stderr
    return result.stdout if code == 0 else result.stderr


def as_json(*args):
    return json.loads(whatif(*args, "--format", "json"))


@pytest.fixture
def pinned(tmp_path):
    return write(tmp_path / "pinned.pickle", histories.pinned())


def test_the_document_is_what_is_promised(pinned):
    doc = as_json(pinned)
    assert doc["schema"] == "moexray.whatif.memory/1"
    assert all(set(doc["self_check"][k]) == {"matched", "total"} for k in KINDS)
    assert doc["self_check"]["placements"] == {"matched": 2, "total": 2}
    assert doc["self_check"]["exact"]
    assert doc["capacity_bytes"] == 900 * MIB
    assert all(set(s) >= FIGURES for s in doc["settings"])
    assert all(s["peak_allocated_bytes"] <= s["min_capacity_bytes"] for s in doc["settings"] if not s["ooms"])
    assert set(doc["recommendation"]) >= {"conf", "reason", "blocked_by", "caveats"}
    assert doc["seconds"] > 0


def test_the_recommended_line_removes_the_failure(pinned):
    doc = as_json(pinned)
    recorded = doc["settings"][0]
    assert recorded["conf"] == ""
    assert recorded["ooms"] == 1
    advised = doc["recommendation"]["conf"]
    again = as_json(pinned, "--conf", advised)
    [after] = again["settings"]
    assert after["conf"] == advised
    assert again["recorded"]["ooms"] == 1
    assert (after["ooms"], after["retries"]) == (0, 0)
    assert after["min_capacity_bytes"] <= doc["capacity_bytes"]
    assert again["recommendation"]["conf"] == advised


def test_the_text_ends_in_the_line_to_set(pinned):
    last = whatif(pinned).strip().splitlines()[-1]
    assert last.startswith("set: PYTORCH_ALLOC_CONF=")
    assert "failed requests from 1 to 0" in whatif(pinned)


def test_what_no_setting_cures_is_said(tmp_path):
    path = write(tmp_path / "full.pickle", histories.full())
    doc = as_json(path)
    assert doc["recommendation"]["conf"] is None
    assert "no setting cures" in doc["recommendation"]["reason"]
    assert "200.0 MiB more than there is" in doc["recommendation"]["reason"]
    assert all(s["ooms"] == 1 for s in doc["settings"])
    assert whatif(path).strip().endswith("set: nothing")


def test_a_failed_request_fits_where_the_capacity_is_larger(pinned):
    assert as_json(pinned, "--capacity", "1200MiB")["settings"][0]["ooms"] == 0
    assert as_json(pinned, "--capacity", "1100MiB")["settings"][0]["ooms"] == 1


def test_only_the_settings_asked_for_are_replayed_in_their_order(pinned):
    asked = ["max_split_size_mb:64", "expandable_segments:True", "roundup_power2_divisions:4"]
    doc = as_json(pinned, *(x for a in asked for x in ("--conf", a)))
    assert [s["conf"] for s in doc["settings"]] == asked


@pytest.mark.parametrize(
    ("flags", "id"),
    [
        (["--engine", "vllm", "--tp", "2"], "custom_all_reduce"),
        (["--engine", "sglang", "--tp", "8"], "custom_all_reduce"),
        (["--sleep-mode"], "sleep_mode"),
        (["--cuda-ipc"], "cuda_ipc"),
        (["--custom-pool"], "custom_pool"),
    ],
)
def test_a_conflict_blocks_the_setting(pinned, flags, id):
    doc = as_json(pinned, "--conf", "expandable_segments:True", *flags)
    assert doc["recommendation"]["conf"] is None
    assert doc["recommendation"]["blocked_by"] == [id]
    other = as_json(pinned, *flags)["recommendation"]
    assert "expandable_segments" not in other["conf"]
    assert other["blocked_by"] == [id]


@pytest.mark.parametrize(
    "flags",
    [
        ["--engine", "vllm"],
        ["--engine", "hf", "--tp", "2"],
        ["--engine", "vllm", "--tp", "2", "--no-custom-all-reduce"],
    ],
)
def test_what_is_no_conflict_blocks_nothing(pinned, flags):
    doc = as_json(pinned, "--conf", "expandable_segments:True", *flags)
    assert doc["recommendation"]["conf"] == "expandable_segments:True"
    assert doc["recommendation"]["blocked_by"] == []


def test_a_launch_line_that_disables_custom_all_reduce_wins_over_the_flags(tmp_path):
    path = write(tmp_path / "snap.pickle", histories.pinned())
    launch = tmp_path / "launch.sh"
    flags = ["--conf", "expandable_segments:True", "--engine", "vllm", "--tp", "2"]
    launch.write_text("vllm serve MODEL --tensor-parallel-size 2 --disable-custom-all-reduce\n")
    assert as_json(tmp_path, *flags)["recommendation"]["blocked_by"] == []
    launch.write_text("vllm serve MODEL --tensor-parallel-size 2\n")
    assert as_json(tmp_path, *flags[:2])["recommendation"]["blocked_by"] == ["custom_all_reduce"]
    assert as_json(path, *flags[:2])["recommendation"]["blocked_by"] == []


def test_a_memory_fraction_limits_what_may_be_reserved(pinned):
    half = as_json(pinned, "--capacity", "1200MiB", "--memory-fraction", "0.5")
    assert half["settings"][0]["ooms"] == 1
    assert any("garbage_collection_threshold" in s["conf"] for s in half["settings"])
    asked = as_json(pinned, "--capacity", "1200MiB", "--conf", "per_process_memory_fraction:0.5")
    assert asked["settings"][0]["ooms"] == 1
    assert asked["recorded"]["ooms"] == 0


def test_a_memory_fraction_of_an_unknown_card_is_refused(tmp_path):
    path = write(tmp_path / "quiet.pickle", histories.growing())
    for flags in (["--memory-fraction", "0.5"], ["--conf", "per_process_memory_fraction:0.5"]):
        assert "needs the memory of the card" in whatif(path, *flags, code=2)


@pytest.mark.parametrize(
    ("trace", "why"),
    [([], "never switched on"), ([event("alloc", 1 << 40, MIB)], "state mode")],
)
def test_without_a_history_nothing_is_advised_and_that_is_no_error(tmp_path, trace, why):
    path = write(tmp_path / "bare.pickle", document([segment(1 << 40, [(4 * MIB, "a")])], trace))
    doc = as_json(path)
    assert (doc["settings"], doc["recommendation"]["conf"]) == ([], None)
    assert all(doc["self_check"][k] == {"matched": 0, "total": 0} for k in KINDS)
    assert why in doc["recommendation"]["reason"]
    assert whatif(path).strip().endswith("set: nothing")


def test_an_inexact_replay_shows_everything_and_advises_nothing(tmp_path):
    doc = histories.pinned()
    for e in doc["device_traces"][0]:  # the block of 12 MiB stands 20 MiB further in
        if e["action"] == "alloc" and e["size"] == 12 * MIB:
            e["addr"] += 20 * MIB
    [held] = [s for s in doc["segments"] if s["active_size"]]
    front, pin, rest = held["address"], held["blocks"][0], held["blocks"][1]
    first = {**rest, "address": front, "size": 20 * MIB}
    held["blocks"] = [
        first,
        {**pin, "address": front + 20 * MIB},
        {**rest, "address": front + 32 * MIB, "size": 480 * MIB},
    ]
    found = as_json(write(tmp_path / "odd.pickle", doc))
    assert found["self_check"]["placements"] == {"matched": 1, "total": 2}
    assert len(found["settings"]) > 5
    assert found["recommendation"]["conf"] is None
    assert "1 of 2 placements" in found["recommendation"]["reason"]


def test_several_files_are_told_apart(tmp_path):
    write(tmp_path / "rank0.pickle", histories.pinned())
    write(tmp_path / "rank1.pickle", histories.growing())
    write(tmp_path / "rank2.pickle", document([segment(1 << 40, [(4 * MIB, "a")])]))
    doc = as_json(tmp_path)
    assert [f["rank"] for f in doc["files"]] == [0, 1]
    assert [len(f["settings"]) for f in doc["files"]] == [len(doc["settings"])] * 2
    assert doc["self_check"]["placements"]["total"] == 2 + 6
    assert doc["settings"][0]["peak_reserved_bytes"] == max(
        f["settings"][0]["peak_reserved_bytes"] for f in doc["files"]
    )
    assert [x["source"].endswith("rank2.pickle") for x in doc["not_replayed"]] == [True]
    assert "rank 1" in whatif(tmp_path)


def trace(marks, kind=0, device=-1, reserved=0):
    sizes = {"Device Type": kind, "Device Id": device, "Total Allocated": 0, "Total Reserved": reserved}
    events = [
        {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": float(i),
         "args": {"Addr": a, "Bytes": n, **sizes}}
        for i, (a, n) in enumerate(marks)
    ]  # fmt: skip
    events.append(
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::empty",
            "pid": 1,
            "tid": 1,
            "ts": 0.5,
            "dur": 1.0,
            "args": {},
        }
    )
    return {"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": events}


def growing_marks(steps=6):
    return [(64 * (i + 1), n) for i in range(steps) for n in ((100 + 2 * i) * MIB, -(100 + 2 * i) * MIB)]


def test_a_cpu_run_foretells_fragmentation(tmp_path):
    path = tmp_path / "run.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace(growing_marks())).encode()))
    doc = as_json(path)
    assert all(doc["self_check"][k] == {"matched": 0, "total": 0} for k in KINDS)
    assert doc["self_check"]["applicable"] is False
    assert doc["files"][0]["kind"] == "cpu_profile"
    figures = {s["conf"]: s for s in doc["settings"]}
    assert figures[""]["peak_reserved_bytes"] == sum(100 + 2 * i for i in range(6)) * MIB
    assert figures["expandable_segments:True"]["peak_reserved_bytes"] == 120 * MIB
    assert doc["recommendation"]["conf"]
    assert any("forecast" in c for c in doc["recommendation"]["caveats"])
    assert any("workspaces" in c for c in doc["recommendation"]["caveats"])
    assert "not applicable" in whatif(path)


@pytest.mark.parametrize(("kind", "device"), [(1, 0), (6, -1)])
def test_gpu_memory_of_a_trace_is_called_approximate_and_host_memory_is_left_out(tmp_path, kind, device):
    path = tmp_path / "run.json"
    stated = sum(100 + 2 * i for i in range(6)) * MIB
    gpu = trace(growing_marks(), kind, device, stated)["traceEvents"]
    path.write_text(
        json.dumps({"schemaVersion": 1, "traceEvents": trace([(1, 5 * MIB)])["traceEvents"] + gpu})
    )
    doc = as_json(path)
    assert [(f["kind"], f["device"]) for f in doc["files"]] == [("gpu_profile", device)]
    assert any("approximate" in c for c in doc["recommendation"]["caveats"])
    assert doc["recommendation"]["conf"]


def test_a_profile_whose_own_peak_is_far_away_is_no_ground_for_advice(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(trace(growing_marks(), 1, 0, 9 << 30)))
    found = as_json(path)["recommendation"]
    assert found["conf"] is None
    assert "states 9.00 GiB" in found["reason"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["no/such"], "does not exist"),
        (["README.md"], "no history to replay"),
        (["examples/incident", "--capacity", "huge"], "no size"),
        (["examples/incident", "--capacity", "0"], "no size"),
        (["examples/incident", "--capacity", "9" * 40], "no size"),
        (["examples/incident", "--tp", "0"], "--tp"),
        (["examples/incident", "--memory-fraction", "1.5"], "--memory-fraction"),
        (["examples/incident", "--conf", "expandable_segments:yes"], "must be True or False"),
        (["examples/incident", "--conf", "no_such_option:1"], "no option"),
        (["examples/incident", "--conf", "backend:cudaMallocAsync"], "another allocator"),
        (["examples/incident", "--conf", "expandable_segments"], "no key:value"),
    ],
)
def test_bad_usage_is_exit_2(args, words):
    assert words in whatif(*args, code=2)


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04", b"{}", b'{"traceEvents": []}', b"cos\nsystem\n(S'echo'\ntR.", b"[1, 2"]
)
def test_odd_files_are_a_clear_error(tmp_path, content):
    path = tmp_path / "odd.pickle"
    path.write_bytes(content)
    assert "no history to replay" in whatif(path, code=2)


def test_segments_that_are_missing_are_an_inexact_replay(tmp_path):
    found = as_json(write(tmp_path / "lost.pickle", {**histories.pinned(), "segments": []}))
    assert found["self_check"]["exact"] is False
    assert found["recommendation"]["conf"] is None


def test_a_history_that_contradicts_itself_is_no_ground_for_advice(tmp_path):
    doc = histories.pinned()
    doc["segments"] *= 2
    found = as_json(write(tmp_path / "twice.pickle", doc))
    assert (found["settings"], found["recommendation"]["conf"]) == ([], None)
    assert "contradicts itself" in found["recommendation"]["reason"]
    assert found["self_check"]["placements"] == {"matched": 0, "total": 2}
    write(tmp_path / "sound.pickle", histories.growing())
    both = as_json(tmp_path)
    assert len(both["settings"]) > 5
    assert both["recommendation"]["conf"] is None

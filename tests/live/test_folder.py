"""Metrics of a folder of recordings: the bundled incident, and a recording that grows."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from moexray.core.errors import UsageError
from moexray.live import folder as module
from moexray.live.feed import collisions
from moexray.live.folder import Folder, Names
from moexray.live.page import Page

INCIDENT = Path(__file__).resolve().parents[2] / "examples" / "incident"


def whole(page):
    """{(name, labels without the scope's): value} of everything but ages."""
    return {
        (s.name, tuple(v for k, v in s.labels if k not in ("model", "engine"))): s.value
        for s in page.samples()
        if s.name != "moex_exporter_lag_seconds"
    }


def dump(path, rows, first=0, experts=4):
    """An expert-distribution dump of some steps: rows [steps, layers, experts]."""
    snapshots = [{"step": first + i, "latest_expert_load": np.asarray(row).tolist()} for i, row in enumerate(rows)]
    path.write_text(json.dumps({"world_size": 2, "num_logical_experts": experts, "window_size": 1, "snapshots": snapshots}))


def test_the_incident_fills_the_page():
    page = Page()
    assert Folder(page, INCIDENT, Names("M", "vllm")).update() is not None
    got = whole(page)
    snapshot = ("0", "0", "default")
    free = got["moex_memory_reserved_bytes", snapshot] - got["moex_memory_allocated_bytes", snapshot]
    largest = got["moex_memory_largest_free_block_bytes", snapshot]
    assert got["moex_fragmentation_ratio", snapshot] == pytest.approx(1 - largest / free)
    assert 0 < got["moex_memory_stuck_bytes", snapshot] < free
    counts = json.loads((INCIDENT / "routing" / "expert_load.json").read_text())["snapshots"]
    cube = np.array([s["latest_expert_load"] for s in counts])
    for layer in range(cube.shape[1]):
        assert got["moex_routed_choices_total", (str(layer),)] == cube[:, layer].sum()
        beyond = collisions(cube[:, layer], cube.shape[2]).sum()
        assert got["moex_routing_collisions_total", (str(layer),)] == beyond
        assert 0 < got["moex_expert_balancedness_ratio", (str(layer),)] < 0.8
    rows = (INCIDENT / "latency" / "itl.csv").read_text().split()[1:]
    assert got["moex_decode_step_duration_seconds_count", ()] == len(rows)
    total = sum(float(r.split(",")[1]) for r in rows) / 1e3
    assert got["moex_decode_step_duration_seconds_sum", ()] == pytest.approx(total)
    assert got["moex_alltoall_wait_seconds_count", ("dispatch",)] == got["moex_alltoall_wait_seconds_count", ("combine",)]
    assert got["moex_allocator_retries_total", ("0",)] == 8
    assert {v for k, v in got.items() if k[0] == "moex_exporter_dropped_total"} == {0}


def test_nothing_is_counted_twice():
    page = Page()
    folder = Folder(page, INCIDENT)
    folder.update()
    before = whole(page)
    assert folder.update() is None
    folder._print = None  # as if a file had been touched
    assert folder.update() is not None
    assert whole(page) == before


def test_a_recording_that_grows_and_forgets(tmp_path):
    """The recorder's ring drops old steps: counters go on, none is counted twice."""
    rng = np.random.default_rng(1)
    steps = rng.integers(0, 50, (30, 2, 4))
    path, page = tmp_path / "expert_load.json", Page()
    folder = Folder(page, tmp_path)
    for first, last in ((0, 10), (0, 12), (5, 20), (18, 30)):
        dump(path, steps[first:last], first)
        os.utime(path, ns=(last, last))
        folder.update()
        assert whole(page)["moex_routed_choices_total", ("0",)] == steps[:last, 0].sum()


def mixed(step):
    """Ten choices, no two neighbouring steps alike (those would be warm-up)."""
    return [[1, 2, 3, 4], [4, 3, 2, 1]][step % 2]


def test_the_last_step_of_a_file_that_grows_waits_until_it_is_whole(tmp_path):
    """A recorder writes layer by layer: what is read in between must not count as the whole step."""
    rows = [{"step": s, "layer": y, "expert_counts": mixed(s)} for s in range(4) for y in range(2)]
    file, page = tmp_path / "expert_counts_rank1_77-0001.jsonl", Page()
    folder = Folder(page, tmp_path)
    for count, steps in ((5, 2), (6, 2), (8, 3)):
        file.write_text("".join(json.dumps(r) + "\n" for r in rows[:count]))
        folder.update()
        assert whole(page)["moex_routed_choices_total", ("1", "1")] == 10 * steps
    os.utime(file, (1, 1))
    folder.update()
    assert whole(page)["moex_routed_choices_total", ("1", "1")] == 40


def test_ranks_lives_and_pieces_of_a_recording_are_all_counted(tmp_path):
    page = Page()
    for name in ("rank0_1-0001", "rank0_1-0002", "rank0_9-0001", "rank1_2-0001"):
        first = 4 if name.endswith("2") else 0
        rows = [{"step": first + s, "layer": y, "expert_counts": mixed(s)} for s in range(4) for y in range(2)]
        file = tmp_path / f"expert_counts_{name}.jsonl"
        file.write_text("".join(json.dumps(r) + "\n" for r in rows))
        os.utime(file, (1, 1))
        steps = tmp_path / f"steps_{name}.csv"
        steps.write_text("t_s,step_ms\n" + "".join(f"{first + s}.5,20\n" for s in range(40)))
        os.utime(steps, (1, 1))
    folder = Folder(page, tmp_path)
    folder.update()
    got = whole(page)
    assert got["moex_routed_choices_total", ("0", "1")] == 3 * 40
    assert got["moex_routed_choices_total", ("1", "1")] == 40
    assert got["moex_decode_step_duration_seconds_count", ("0",)] == 120
    assert got["moex_decode_step_duration_seconds_count", ("1",)] == 40
    (tmp_path / "expert_counts_rank0_1-0001.jsonl").unlink()  # the recorder's bound
    (tmp_path / "steps_rank0_1-0001.csv").unlink()
    folder.update()
    assert {k: v for k, v in whole(page).items() if "total" in k[0] or "count" in k[0]}.items() <= got.items()


def test_a_layer_without_a_name_has_no_label(tmp_path):
    page = Page()
    dump(tmp_path / "expert_load.json", [[[1, 2, 3, 4]], [[5, 6, 7, 9]]])
    os.utime(tmp_path / "expert_load.json", (1, 1))
    Folder(page, tmp_path).update()
    assert whole(page)["moex_routed_choices_total", ()] == 37


def test_only_what_changed_within_the_window_is_read(tmp_path):
    shutil.copytree(INCIDENT, tmp_path / "b")
    old = time.time() - 1000
    for file in (tmp_path / "b").rglob("*"):
        os.utime(file, None if "routing" in file.parts else (old, old))
    run = Folder(Page(), tmp_path / "b", window_s=500).update()
    assert {i.path for i in run.inputs} == {"routing/expert_load.json"}


def test_an_unreadable_file_is_counted_once(tmp_path):
    page = Page()
    folder = Folder(page, tmp_path)
    (tmp_path / "launch.txt").write_text("nothing of a known form\n")
    for text in (b"", b" "):
        (tmp_path / "snapshot.pickle").write_bytes(b"\x80\x04cposix\nsystem\nX\x04\x00\x00\x00true\x85R." + text)
        folder.update()
    assert page.value("moex_exporter_dropped_total", "files", "unreadable") == 1


def test_one_broken_subject_costs_no_other(tmp_path, monkeypatch):
    def broken(run):
        raise RuntimeError("no")

    page = Page()
    folder = Folder(page, INCIDENT)
    monkeypatch.setattr(folder, "_memory", broken)
    folder.update()
    assert page.value("moex_exporter_dropped_total", "updates", "failed") == 1
    assert page.value("moex_routed_choices_total", "", "", "", 0) > 0


def test_marks_of_what_was_seen_stay_bounded(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 10)
    seen = module._Seen()
    for key in range(50):
        assert seen.after(key, np.arange(3)).all()
    assert not seen.after(49, np.arange(3)).any()
    assert len(seen.upto) == 10


def test_no_such_folder():
    with pytest.raises(UsageError, match="does not exist"):
        Folder(Page(), Path("nowhere"))

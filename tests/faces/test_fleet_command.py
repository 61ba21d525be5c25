"""`diagnose --executor processes`: the same answer, killed workers, second runs."""

import json
import os
import resource
import signal
import threading
import time
from multiprocessing import active_children
from multiprocessing.popen_spawn_posix import Popen

import pytest
from click.testing import CliRunner

from moexray.core.source import walk
from moexray.diagnose.fleet import conclude, units
from moexray.faces.cli.fleet import on_processes, on_ray
from moexray.faces.cli.main import main
from moexray.verify.incidents.fleet import Fleet, simulate, write

FLEET = Fleet(ranks=6, steps=20, guilty=4, stalls=(5, 11, 16))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("fleet")
    rounds = simulate(FLEET)
    for rank in range(FLEET.ranks):
        write(FLEET, rounds, rank, place)
    return place


def call(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


def test_a_folder_of_ranks_in_a_pool_of_processes(folder, tmp_path):
    args = ("diagnose", folder, "--executor", "processes", "--workers", 2, "--work", tmp_path, "--format", "json")
    first = call(*args)
    document = json.loads(first.stdout)
    assert first.exit_code == 1
    assert document["verdict"] == "mem.alloc_stall"
    assert "summarised 6 of 6 ranks;" in first.stderr
    again = call(*args)
    assert "6 of them known from before" in again.stderr
    assert json.loads(again.stdout) == document


def test_the_text_says_who_was_read_in_full(folder, tmp_path):
    text = call("diagnose", folder, "--executor", "processes", "--work", tmp_path, "--quiet").stdout
    assert "fleet: 6 ranks met; read in full: " in text


def test_a_killed_process_costs_nothing(folder, tmp_path):
    found = units((name, str(file)) for name, file in walk(folder)[0])
    killed = []

    def kill():
        for _ in range(600):
            if children := active_children():
                killed.append(children[0].pid)
                os.kill(children[0].pid, signal.SIGKILL)
                return
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    outcomes = list(on_processes(found, str(tmp_path), None, 2))
    killer.join()
    assert killed
    assert sorted(u.rank for u, _ in outcomes) == list(range(FLEET.ranks))
    assert not [o for _, o in outcomes if isinstance(o, str)]


def test_a_pool_that_breaks_while_it_starts_a_process_costs_nothing(folder, tmp_path, monkeypatch):
    found = units((name, str(file)) for name, file in walk(folder)[0])
    launch, killed = Popen._launch, []

    def late(self, process):
        if not killed and (others := active_children()):
            killed.append(others[0].pid)
            os.kill(others[0].pid, signal.SIGKILL)
            time.sleep(1)  # the pool finds out, and closes what the new process is to inherit
        launch(self, process)

    monkeypatch.setattr(Popen, "_launch", late)
    outcomes = list(on_processes(found, str(tmp_path), None, 2))
    assert killed
    assert sorted(u.rank for u, _ in outcomes) == list(range(FLEET.ranks))
    assert not [o for _, o in outcomes if isinstance(o, str)]


def test_a_file_that_vanishes_fails_its_unit_alone(folder, tmp_path):
    found = units([*((name, str(file)) for name, file in walk(folder)[0]), ("rank77.json", str(tmp_path / "gone"))])
    outcomes = {unit.rank: outcome for unit, outcome in on_processes(found, str(tmp_path), None, 2)}
    assert "FileNotFoundError" in outcomes[77]
    assert sum(isinstance(o, str) for o in outcomes.values()) == 1


def test_what_cannot_be_opened_is_told(folder, tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    for rank in range(2):
        (place / f"rank{rank}.json.gz").symlink_to(sorted(folder.rglob("*.gz"))[rank])
    (place / "rank8.json").symlink_to("rank8.json")
    os.mkfifo(place / "rank9.json")
    result = call("diagnose", place, "--executor", "processes", "--work", tmp_path / "w", "--format", "json")
    skipped = {s["path"]: s["reason"] for s in json.loads(result.stdout)["skipped"]}
    assert "cannot be opened" in skipped["rank8.json"]
    assert skipped["rank9.json"] == "not a regular file"


def test_summaries_below_the_folder_are_not_summarised(folder, tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    (place / "rank0.json.gz").symlink_to(min(folder.rglob("*.gz")))
    args = ("diagnose", place, "--executor", "processes", "--workers", 1, "--work", place / "work", "--format", "json")
    first, again = call(*args), call(*args)
    assert "1 of 1 ranks, 1 of them known from before" in again.stderr
    assert json.loads(again.stdout) == json.loads(first.stdout)


def test_an_empty_folder_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    result = call("diagnose", tmp_path / "empty", "--executor", "processes", "--work", tmp_path / "w")
    assert result.exit_code == 2
    assert "no file to read" in result.stderr


@pytest.mark.soak
def test_a_thousand_ranks_with_a_killed_worker_and_on_ray(tmp_path):
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    fleet = Fleet(ranks=1000, steps=120, guilty=613, stalls=tuple(range(7, 120, 11)), seed=1)
    rounds = simulate(fleet)
    for rank in range(fleet.ranks):
        write(fleet, rounds, rank, tmp_path / "in")
    found = units((name, str(file)) for name, file in walk(tmp_path / "in")[0])
    here = []
    for i, (_, outcome) in enumerate(on_processes(found, str(tmp_path / "a"), None, 2)):
        here.append(outcome)
        if i == 300:
            os.kill(active_children()[0].pid, signal.SIGKILL)
    there = [outcome for _, outcome in on_ray(found, str(tmp_path / "b"), None, 2)]
    ray.shutdown()
    first, second = (conclude(outcomes).to_json() for outcomes in (here, there))
    assert first == second
    assert len(first["fleet"]) == fleet.ranks
    assert first["verdict"] == "mem.alloc_stall"
    assert {f["subject"]["rank"] for f in first["findings"] if f["id"] == "comm.straggler_wait"} == {fleet.guilty}
    peak_kib = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    assert peak_kib < 2 << 20


def test_ray_gives_the_same(folder, tmp_path):
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    found = units((name, str(file)) for name, file in walk(folder)[0])
    here = {u.rank: o.findings for u, o in on_processes(found, str(tmp_path / "a"), None, 2)}
    there = {u.rank: o.findings for u, o in on_ray(found, str(tmp_path / "b"), None, 2)}
    assert here == there

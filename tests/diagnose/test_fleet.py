"""Many ranks: summaries meet, the answer does not depend on the order, what was made is not made again."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from moexray.core.finding import Evidence, Finding, Subject
from moexray.core.limits import Limits
from moexray.core.remedies import remedy
from moexray.core.source import walk
from moexray.diagnose.engine import diagnose
from moexray.diagnose.fleet import Unit, _finding, _folded, conclude, summarise, units
from moexray.readers.read_any import read_any
from moexray.verify.incidents.fleet import Fleet, simulate, write

FLEET = Fleet(ranks=14, steps=40, guilty=9, stalls=(7, 18, 29), seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("fleet")
    rounds = simulate(FLEET)
    for rank in range(FLEET.ranks):
        write(FLEET, rounds, rank, place)
    return place


@pytest.fixture(scope="module")
def found(folder):
    return units((name, str(file)) for name, file in walk(folder)[0])


@pytest.fixture(scope="module")
def summaries(found, tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    return [summarise(unit, str(work)) for unit in found]


def essence(diagnosis):
    document = diagnosis.to_json()
    return {key: document[key] for key in ("verdict", "findings", "chain", "fleet", "skipped")}


def test_files_are_grouped_by_the_rank_of_their_names():
    names = ["traces/rank3.json", "logs/server.log", "memory/snapshot_rank3.pickle", "traces/rank10.json", "rank_7/trace.json"]
    assert [(u.name, u.rank, [n for n, _ in u.files]) for u in units((n, n) for n in names)] == [
        ("logs/server.log", None, ["logs/server.log"]),
        ("rank 3", 3, ["traces/rank3.json", "memory/snapshot_rank3.pickle"]),
        ("rank 7", 7, ["rank_7/trace.json"]),
        ("rank 10", 10, ["traces/rank10.json"]),
    ]


def test_the_late_rank_and_its_cause_are_named(summaries):
    document = conclude(summaries).to_json()
    assert document["verdict"] == "mem.alloc_stall"
    by_id = {f["id"]: f for f in document["findings"]}
    assert by_id["mem.alloc_stall"]["subject"]["rank"] == FLEET.guilty
    assert by_id["comm.straggler_wait"]["subject"]["rank"] == FLEET.guilty
    assert by_id["comm.straggler_wait"]["implied_by"] == ["mem.alloc_stall"]
    assert "input.rank_set" not in by_id  # all are there, though few were read in full
    assert len(document["inputs"]) == len(document["fleet"]) == FLEET.ranks
    latest = max(document["fleet"], key=lambda row: row["late_s"])
    assert latest["rank"] == FLEET.guilty
    assert latest["closer"]
    assert sum(row["closer"] for row in document["fleet"]) < FLEET.ranks


def test_clocks_are_aligned_with_an_error_bound(summaries):
    rows = conclude(summaries).to_json()["fleet"]
    assert rows[0]["clock_offset_ns"] == 0
    assert all(abs(row["clock_offset_ns"]) > 1_000 for row in rows[1:])  # up to 18 ms apart
    assert all(row["clock_error_ns"] < 1_000 for row in rows)


def test_the_answer_is_that_of_reading_everything_at_once(folder, summaries):
    whole = diagnose(read_any([str(folder)]))
    fleet = conclude(summaries)
    assert fleet.verdict == whole.verdict
    assert {(f.id, f.subject.rank) for f in fleet.findings} == {(f.id, f.subject.rank) for f in whole.findings}


def test_the_order_of_the_summaries_does_not_matter(summaries):
    assert essence(conclude(summaries[::-1])) == essence(conclude(summaries))


def test_a_summary_is_made_once_while_files_version_and_limits_are_the_same(found, tmp_path):
    first = summarise(found[0], str(tmp_path))
    again = summarise(found[0], str(tmp_path))
    assert (first.again, again.again) == (False, True)
    assert replace(again, again=False) == first
    limits = replace(Limits(), timeline=replace(Limits().timeline, burst_steps=9.0))
    assert not summarise(found[0], str(tmp_path), limits).again
    assert not summarise(found[0], str(tmp_path)).again


def test_a_changed_file_is_summarised_again(tmp_path):
    file = tmp_path / "rank0.log"
    file.write_text("INFO ready\n")
    unit = Unit("rank 0", 0, (("rank0.log", str(file)),))
    summarise(unit, str(tmp_path / "work"))
    file.write_text("INFO ready\nINFO and more\n")
    assert not summarise(unit, str(tmp_path / "work")).again


def test_a_unit_that_failed_is_told_and_the_rest_goes_on(summaries):
    lost = summaries[3].unit
    document = conclude([s for s in summaries if s.unit is not lost], [(lost, "its process was killed")]).to_json()
    assert {"path": lost.name, "reason": "its process was killed"} in document["skipped"]
    assert document["verdict"] == "mem.alloc_stall"
    assert "input.rank_set" in {f["id"] for f in document["findings"]}


def test_nothing_usable_is_no_diagnosis():
    assert conclude([]).to_json()["findings"] == []


def said(rank, id="mem.churn", **more):
    return Finding(id, "warn", 0.9, f"{id} on {rank}.", Subject(rank=rank), evidence=(Evidence("a", "b", "c"),), **more)


def test_what_many_ranks_share_is_told_once_for_the_gravest():
    few, many = [said(rank) for rank in range(4)], [said(rank, "mem.fragmentation", cost=float(rank % 7)) for rank in range(40)]
    folded = _folded([*few, *many])
    assert folded[:4] == few
    assert len(folded) == 5
    assert folded[4].claim == (
        "mem.fragmentation on 6. The same is found 39 more times (ranks 0, 1, 2, 3, 4, 5, 7, 8, 9, 10, ...)."
    )


def test_a_rank_that_is_not_read_in_full_keeps_what_its_summary_said(summaries):
    closer = {row["rank"] for row in conclude(summaries).to_json()["fleet"] if row["closer"]}
    other = next(s for s in summaries if s.rank not in closer)
    told = [replace(s, findings=(replace(said(s.rank), severity="info"),)) if s is other else s for s in summaries]
    assert f"mem.churn on {other.rank}." in [f["claim"] for f in conclude(told).to_json()["findings"]]


def test_findings_of_a_summary_survive_its_file(tmp_path):
    f = Finding("mem.x", "warn", 0.9, "c", Subject(rank=3), 1.0, 2.0, "bytes", (Evidence("a", "b", "c"),), ("mem.y",),
                (remedy("comm-find-late-work", who="rank 3", what="x"),), ("a trace",), 5.0)
    assert _finding(json.loads(json.dumps(asdict(f)))) == f


@pytest.mark.parametrize("name", ["*.parquet", "manifest.json", "summary.json"])
@pytest.mark.parametrize("damage", [b"", b"no", b'{"schema": "moexray.unit/1"}', b"[]"])
def test_a_damaged_summary_is_made_again(found, tmp_path, name, damage):
    first = summarise(found[0], str(tmp_path))
    assert summarise(found[0], str(tmp_path)) == replace(first, again=True)
    for file in Path(first.folder).glob(name):
        file.write_bytes(damage)
    assert summarise(found[0], str(tmp_path)) == first
    assert summarise(found[0], str(tmp_path)).again

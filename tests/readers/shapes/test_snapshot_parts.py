"""Snapshots that lack a part: what is there is read, what is missing is said."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest
from click.testing import CliRunner

from moexray.analyse.snapshot import shots
from moexray.analyse.snapshot_history import history
from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.faces.cli.main import main
from moexray.readers.read_any import read_sources
from snapshot_samples import BASE, GIB, segment, whole

SEGMENTS = [segment(BASE, [(GIB, "a"), (GIB, "f")]), segment(BASE + 4 * GIB, [(GIB, "a")])]


def findings(document, protocol=4):
    run = read_sources([Source("s.pickle", content=pickle.dumps(document, protocol))])
    assert not run.skipped
    return run, {f.id: f for f in diagnose(run).findings}


def bare(found):
    return [{k: v for k, v in s.items() if k != "blocks"} for s in found]


def test_segments_without_blocks_keep_their_sizes():
    run, found = findings({**whole(SEGMENTS), "segments": bare(SEGMENTS)})
    [shot] = shots(run)
    assert shot.segments["total_bytes"].tolist() == [2 * GIB, GIB]
    assert "it lists no blocks, only its size is known" in found["snapshot.inconsistent"].claim
    assert "ends in is unknown" in found["snapshot.history_incomplete"].claim
    assert "mem.fragmentation" not in found


def test_a_history_without_segments():
    document = whole(SEGMENTS)
    del document["segments"]
    run, found = findings(document)
    [shot] = shots(run)
    assert len(shot.events["action"]) == 4
    assert history(shot).kind == "endless"
    assert "end state is valid" not in found["snapshot.history_incomplete"].claim


@pytest.mark.parametrize("part", ["segments", "blocks"])
def test_every_command_takes_a_part(part, tmp_path):
    document = whole(SEGMENTS)
    if part == "segments":
        del document["segments"]
    else:
        document["segments"] = bare(SEGMENTS)
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(document))
    for command in (["memory"], ["whatif", "memory"], ["inspect"]):
        result = CliRunner().invoke(main, [*command, str(path)])
        assert result.exit_code in (0, 1), result.output


def test_ordered_dicts_numpy_numbers_and_huge_integers_cost_nothing_else():
    plain, _ = findings(whole(SEGMENTS))
    odd = whole(SEGMENTS)
    odd["segments"] = [OrderedDict(s, total_size=np.int64(s["total_size"])) for s in SEGMENTS]
    run, found = findings(odd)
    assert shots(run)[0].segments["stuck"].tolist() == shots(plain)[0].segments["stuck"].tolist()
    odd["segments"][1]["address"] = 10**400
    run, found = findings(odd)
    assert found["input.dirty_table"].severity == "warn"
    assert shots(run)[0].segments["total_bytes"].tolist() == [2 * GIB, GIB]


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"])
def test_the_page_size_stands_under_any_name_of_the_variable(name):
    """Pages that are mapped at once and not yet unmapped are stuck: with pages of 64 MiB all of them."""
    here = [segment(BASE, [(1 << 20, "a"), (63 << 20, "f")], expandable=True)]
    settings = {"expandable_segments": True, name: "expandable_segments:True,large_segment_size_mb:64"}
    run, _ = findings(whole(here, settings=settings))
    with_default, _ = findings(whole(here, settings={"expandable_segments": True}))
    assert shots(run)[0].segments["stuck"].sum() > shots(with_default)[0].segments["stuck"].sum()

"""What a command writes over: its own pages with --force, never what it reads or what is no page."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

import moexray
from moexray.faces.cli.main import main
from trace_samples import pair_of_ranks

LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.15 GiB of which 1.00 GiB is free.\n"
)


def call(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "server.log").write_text(LOG)
    for trace in pair_of_ranks(steps=4):
        trace.write(tmp_path / "run" / f"rank{trace.rank}.json")
    (tmp_path / "counts.json").write_text(json.dumps({"expert_counts": [[5, 3, 2, 2]]}))
    return tmp_path / "run"


def commands(folder):
    log, trace, counts = folder / "server.log", folder / "rank0.json", folder.parent / "counts.json"
    return [
        (("diagnose", log, "--report", log), log),
        (("diagnose", folder, "--report", log), log),
        (("diagnose", folder / "." / "server.log", "--report", log), log),
        (("memory", log, "--report", log), log),
        (("export", "perfetto", trace, "-o", trace), trace),
        (("plan", counts, "--gpus", "2", "-o", counts), counts),
    ]


@pytest.mark.parametrize("which", range(6))
def test_force_does_not_cost_the_evidence(folder, which):
    args, file = commands(folder)[which]
    before = file.read_bytes()
    result = call(*args, "--force")
    assert result.exit_code == 2
    assert "not overwrit" in result.stderr
    assert file.read_bytes() == before


def test_nor_through_a_link_nor_from_a_notebook(folder, tmp_path):
    link = tmp_path / "r.html"
    link.symlink_to(folder / "server.log")
    assert call("diagnose", folder / "server.log", "--report", link, "--force").exit_code == 2
    with pytest.raises(moexray.MoexrayError, match="not overwritten"):
        moexray.diagnose(folder / "server.log").report(folder / "server.log", force=True)
    assert (folder / "server.log").read_text() == LOG


def test_an_earlier_page_and_an_empty_file_are_overwritten_with_force(folder, tmp_path):
    page = folder / "report.html"
    page.touch()
    for _ in range(2):
        assert call("diagnose", folder, "--report", page).exit_code == 2
        assert call("diagnose", folder, "--report", page, "--force").exit_code == 1
        assert page.read_text().startswith("<!DOCTYPE html>")


def test_a_folder_is_no_place_for_a_report(folder, tmp_path):
    with pytest.raises(moexray.MoexrayError, match="is a folder"):
        moexray.diagnose(folder).report(tmp_path, force=True)


@pytest.mark.parametrize("command", ["diagnose", "inspect", "timeline", "routing", "memory"])
def test_an_empty_path_is_not_the_folder_one_is_in(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    result = call(command, "")
    assert result.exit_code == 2
    assert "a path is empty" in result.stderr


def test_closed_standard_input_is_told():
    command = ["sh", "-c", 'exec "$0" -m moexray diagnose - <&-', sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr

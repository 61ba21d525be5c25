"""Names of files that no format holds as they are: bytes that are no UTF-8, line ends, markup, commands."""

import json
import os
import re
from urllib.parse import unquote_to_bytes

import pytest
from click.testing import CliRunner

import moexray
from moexray.core.file_name import printable
from moexray.faces.cli.main import main

LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.15 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.10 GiB memory in "
    "use. Of the allocated memory 74.00 GiB is allocated by PyTorch, and 3.00 GiB is reserved by PyTorch but "
    "unallocated.\n"
)
NAMES = (
    b"\xff\xfe.log", b"a\nverdict: none\n## x.log", b"<script>alert(1)<b>.log", b"\x1b[31mred.log", b"`|*.log",
    "\u202egol.exe.log".encode(), b"-rf.log", b"%2e%2e%2f.log", b"#x?y.log", b"n" * 250,
)  # fmt: skip


@pytest.fixture(params=NAMES, ids=repr)
def folder(request, tmp_path):
    place = tmp_path / os.fsdecode(b"ru\xffn")
    place.mkdir()
    (place / os.fsdecode(request.param)).write_text(LOG)
    return str(place)


def call(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.mark.parametrize("form", ["text", "md", "json"])
def test_output_is_one_line_a_name_and_no_command_of_a_terminal(folder, form):
    result = call("diagnose", folder, "--format", form)
    assert result.exit_code == 1, result.output
    out = result.stdout
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ud800-\udfff]", out)
    assert not re.search(r"^(verdict: none|## x)", out, re.MULTILINE)


def test_a_report_is_written_and_its_links_lead_to_files(folder, tmp_path):
    report = tmp_path / "r.html"
    result = call("diagnose", folder, "--report", report)
    assert result.exit_code == 1, result.output
    html = report.read_text(encoding="utf-8")
    assert "<script>alert" not in html
    for link in re.findall(r'class="where" href="([^"]+)"', html):
        assert (tmp_path / os.fsdecode(unquote_to_bytes(link))).exists()


def test_a_notebook_shows_them(folder, tmp_path):
    run = moexray.read(folder)
    found = moexray.diagnose(run)
    for shown in (run._repr_html_(), repr(run.inputs), found._repr_html_(), repr(found), repr(found.frame)):
        shown.encode("utf-8")
        assert "<script>" not in shown or "<table" not in shown
    assert run.tables["oom"].height == 1
    found.report(tmp_path / "r.html")


def test_a_fleet_takes_them(folder, tmp_path):
    work = ("--executor", "processes", "--workers", "1", "--work", tmp_path / "w", "--format", "json")
    result = call("diagnose", folder, *work)
    assert result.exit_code == 1, result.output
    assert len(json.loads(result.stdout)["inputs"]) == 1


def test_a_name_that_is_text_stays_as_it_is():
    assert printable("traces/rank 0 (é, 中, 😀).json") == "traces/rank 0 (é, 中, 😀).json"
    assert printable("a\udcff\n\t") == "a\\udcff\\n\\t"

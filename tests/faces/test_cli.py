from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from moexray.core.verdicts import VERDICTS
from moexray.faces.cli.main import COMMANDS, main, run

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.15 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.10 GiB memory in "
    "use. Of the allocated memory 74.00 GiB is allocated by PyTorch, and 3.00 GiB is reserved by PyTorch but "
    "unallocated."
)


def call(*args, stdin=None):
    return CliRunner().invoke(main, list(args), input=stdin)


def test_help_lists_every_command():
    text = call("--help").output
    for name, _, line in COMMANDS:
        assert name in text
        assert line.split()[0] in text


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_every_command_has_help(name):
    result = call(name, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_a_pasted_log_is_answered_with_exit_1():
    result = call("diagnose", "-", stdin=OOM)
    assert result.exit_code == 1
    assert "verdict: mem.fragmentation" in result.output


def test_json_is_the_only_thing_on_standard_output():
    result = call("diagnose", "-", "--format", "json", stdin=OOM)
    document = json.loads(result.stdout)
    assert document["schema"] == "moexray.diagnosis/1"
    assert document["verdict"] == document["findings"][0]["id"]


def test_markdown_names_the_verdict():
    assert "## moexray: `mem.fragmentation`" in call("diagnose", "-", "--format", "md", stdin=OOM).output


@pytest.mark.parametrize(("level", "code"), [("info", 1), ("warn", 1), ("error", 1), ("never", 0)])
def test_fail_on(level, code):
    assert call("diagnose", "-", "--fail-on", level, stdin=OOM).exit_code == code


def test_nothing_usable_is_exit_2_and_says_so():
    result = call("diagnose", "-", stdin="hello\n")
    assert result.exit_code == 2
    assert "no verdict" in result.output


def test_a_missing_path_is_exit_2_with_a_hint():
    result = call("diagnose", "no/such/file")
    assert result.exit_code == 2
    assert "does not exist" in result.stderr
    assert "try:" in result.stderr


def test_a_report_is_written_and_never_overwritten_by_default(tmp_path):
    report = tmp_path / "r.html"
    assert call("diagnose", "-", "--report", str(report), stdin=OOM).exit_code == 1
    assert "mem.fragmentation" in report.read_text()
    assert call("diagnose", "-", "--report", str(report), stdin=OOM).exit_code == 2
    assert call("diagnose", "-", "--report", str(report), "--force", stdin=OOM).exit_code == 1


def test_a_report_that_cannot_be_written_is_told(tmp_path):
    result = call("diagnose", "-", "--report", str(tmp_path / "no" / "r.html"), stdin=OOM)
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr
    if Path("/dev/full").exists():
        full = call("diagnose", "-", "--report", "/dev/full", "--force", stdin=OOM)
        assert full.exit_code == 2
        assert "/dev/full cannot be written (No space left" in full.stderr


def test_all_prints_the_undo_of_remedies():
    assert "undo: " not in call("diagnose", "-", stdin=OOM).output
    assert "undo: " in call("diagnose", "-", "--all", stdin=OOM).output


def test_files_of_two_folders_keep_their_folders_and_links(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for node in ("node0", "node1"):
        (tmp_path / node).mkdir()
        (tmp_path / node / "server.log").write_text(OOM)
    (tmp_path / "out").mkdir()
    result = call("diagnose", "node0", "node1/", "--format", "json", "--report", "out/r.html")
    assert [i["path"] for i in json.loads(result.stdout)["inputs"]] == ["node0/server.log", "node1/server.log"]
    assert 'href="../node0/server.log"' in (tmp_path / "out" / "r.html").read_text()


@pytest.mark.parametrize(("content", "words"), [
    (None, "check the path of --limits"),
    ("[routing\n", "the limits are not TOML"),
    ("[rooting]\n", "there is no subject [rooting]"),
])
def test_wrong_limits_say_what_is_wrong(tmp_path, content, words):
    file = tmp_path / "l.toml"
    if content:
        file.write_text(content)
    result = call("diagnose", "-", "--limits", str(file), stdin=OOM)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_part_of_an_id_lists_or_explains():
    listed = call("explain", "mem")
    assert listed.exit_code == 0
    assert "mem.fragmentation " in listed.output
    assert "decided:" not in listed.output
    assert "decided:" in call("explain", "TRUE_EXHAUSTION").output
    assert call("explain", "zzz").exit_code == 2


def test_inspect_of_nothing_usable_says_so(tmp_path):
    result = call("inspect", str(tmp_path))
    assert result.exit_code == 2
    assert "nothing in what was given" in result.stderr


def test_explain_lists_explains_and_suggests():
    assert all(v.id in call("explain").output for v in VERDICTS)
    assert "decided:" in call("explain", "mem.fragmentation").output
    result = call("explain", "mem.fragmentatoin")
    assert result.exit_code == 2
    assert "mem.fragmentation" in result.stderr


def test_inspect_lists_tables_and_saves_them(tmp_path):
    log = tmp_path / "a.log"
    log.write_text(OOM)
    text = call("inspect", str(log)).output
    assert "oom" in text
    assert "1 row from 1 file" in text
    listed = json.loads(call("inspect", str(log), "--format", "json").output)
    assert listed["schema"] == "moexray.inspect/1"
    assert listed["tables"][0]["table"] == "oom"
    assert call("inspect", str(log), "--save", str(tmp_path / "run")).exit_code == 0
    again = call("diagnose", str(tmp_path / "run"))
    assert "verdict: mem.fragmentation" in again.output
    assert call("inspect", str(log), "--save", str(tmp_path / "run")).exit_code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell):
    assert "_MOEXRAY_COMPLETE" in call("completion", shell).output


def test_markdown_passes_on_no_html_links_or_mentions():
    from moexray.faces.cli.screen import as_markdown

    hostile = "a`<img src=x>`[b](http://c) @all"
    finding = {
        "id": "mem.x", "severity": "warn", "confidence": 0.9, "claim": "process <b>x</b> [l](u) @you runs",
        "evidence": [{"source": hostile, "where": "<i>", "text": hostile}], "remedies": [], "settle_with": [],
        "implied_by": [],
    }  # fmt: skip
    text = as_markdown({"verdict": "mem.x", "findings": [finding], "skipped": [], "inputs": [], "chain": []})
    bare = "".join(text.split("`")[::2])  # what stands outside of code spans
    assert "<" not in bare.replace("\\<", "")
    assert "[l](u)" not in bare
    assert "@" not in bare.replace("\\@", "")


@pytest.mark.parametrize("command", ["memory", "routing", "timeline", "diagnose"])
def test_a_path_that_cannot_be_looked_at_is_no_fault_of_ours(command, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["moexray", command, "a" * 300])
    with pytest.raises(SystemExit) as left:
        run()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "name too long" in said
    assert "moexray failed" not in said


@pytest.mark.parametrize("command", [
    ["diagnose"], ["inspect"], ["memory"], ["timeline"], ["routing"], ["plan", "--gpus", "2"],
    ["whatif", "memory"], ["whatif", "routing"], ["whatif", "policies"],
])  # fmt: skip
def test_a_refusal_is_a_json_document_where_json_was_asked_for(command, tmp_path):
    result = call(*command, str(tmp_path / "nowhere"), "--format", "json")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    if document["schema"] == "moexray.error/1":
        assert document["error"]["what"]
        assert f"error: {document['error']['what']}" in result.stderr
        assert set(document["error"]) == {"what", "where", "try"}
    else:
        assert document["skipped"]
    assert call(*command, str(tmp_path / "nowhere")).stdout == ""


def test_a_file_that_cannot_be_written_is_a_json_document_too(tmp_path):
    result = call("lab", "stress", "-o", str(tmp_path / "no" / "s.pickle"), "--format", "json")
    assert (result.exit_code, json.loads(result.stdout)["schema"]) == (2, "moexray.error/1")

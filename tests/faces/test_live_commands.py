"""exporter, watch, hook and export of configurations: what they print and what they refuse."""

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from moexray.faces.cli.export import command as export
from moexray.faces.cli.exporter import command as exporter
from moexray.faces.cli.hook import command as hook
from moexray.faces.cli.watch import command as watch
from moexray.live.configs import TARGETS, Places
from moexray.live.exporter import Exporter
from moexray.live.hook import Hook

INCIDENT = str(Path(__file__).resolve().parents[2] / "examples" / "incident")


def run(command, *words):
    return CliRunner().invoke(command, list(words))


def test_watch_says_a_line_a_finding_and_the_spikes_by_cause():
    result = run(watch, INCIDENT, "--once")
    assert result.exit_code == 0, result.output
    first, *rest = result.stdout.splitlines()
    assert first.endswith("mem.fragmentation")
    assert rest[0].startswith("  warn  mem.fragmentation: ")
    assert rest[-1] == "  8 spikes by mem.alloc_stall, the longest 150.9 ms"
    assert all(len(line) < 400 for line in rest)


def test_watch_as_lines_of_json():
    result = run(watch, INCIDENT, "--once", "--format", "ndjson")
    [document] = [json.loads(line) for line in result.stdout.splitlines()]
    assert document["schema"] == "moexray.watch/1"
    assert document["verdict"] == "mem.fragmentation"
    assert {s["cause"] for s in document["spikes"]} == {"mem.alloc_stall"}
    assert len(document["spikes"]) == 8


def test_watch_of_an_empty_folder_says_nothing_found(tmp_path):
    result = run(watch, str(tmp_path), "--once")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing found in 0 files" in result.stderr


def test_watch_says_that_it_watches_and_what_it_leaves_out(tmp_path, monkeypatch):
    """A recording of yesterday would else show nothing for ever, without a word."""
    monkeypatch.setattr("moexray.faces.cli.watch.stopping", lambda: lambda: None)
    (tmp_path / "x.log").write_text("INFO nothing\n")
    fresh = run(watch, str(tmp_path))
    assert f"watching {tmp_path}" in fresh.stderr
    os.utime(tmp_path / "x.log", (1000, 1000))
    old, all_files = run(watch, str(tmp_path)), run(watch, str(tmp_path), "--window", "0")
    assert ["--window 0 reads all" in r.stderr for r in (fresh, old, all_files)] == [False, True, False]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_export_writes_what_the_target_needs_and_never_over_a_file(tmp_path, target):
    folder = tmp_path / "new"
    result = run(export, target.name, "-o", str(folder), "--exporter", "host:1")
    assert result.exit_code == 0, result.output
    names = list(target.files(Places()))
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)
    assert result.stdout.splitlines()[-1] == f"next: {target.next}"
    (folder / names[0]).write_text("mine")
    again = run(export, target.name, "-o", str(folder))
    assert again.exit_code == 2
    assert "exists" in again.stderr
    assert (folder / names[0]).read_text() == "mine"
    assert run(export, target.name, "-o", str(folder), "--force").exit_code == 0


def test_export_into_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    result = run(export, "grafana", "-o", str(tmp_path / "file" / "x"))
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [(exporter, ["nowhere"], "nowhere does not exist"),
     (exporter, [INCIDENT, "--listen", "0.0.0.0:0"], "no token"),
     (exporter, [INCIDENT, "--listen", "port"], "no address"),
     (exporter, [INCIDENT, "--experts", "0"], "a number from 1, or all"),
     (exporter, [INCIDENT, "--token-file", "none"], "none cannot be read"),
     (exporter, [INCIDENT, "--remote-write", "file:///x"], "no address to send to"),
     (watch, ["nowhere", "--once"], "nowhere does not exist"),
     (watch, [INCIDENT, "--listen", "[::]:0"], "no token"),
     (hook, ["--state", "s"], "nothing to diagnose"),
     (hook, [INCIDENT, "--state", "s", "--listen", "0.0.0.0:0"], "no token"),
     (hook, ["--state", "s", "--argo", "ftp://x"], "no address to send to"),
     (hook, ["--state", "s", "--argo", "http://x", "--namespace", "A b"], "no name of Kubernetes"),
     (hook, [INCIDENT, "--state", "s", "--grafana", "x"], "no address to send to")],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_to_try(tmp_path, monkeypatch, command, words, says):
    monkeypatch.chdir(tmp_path)
    result = run(command, *words)
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_an_empty_token_file_is_refused(tmp_path):
    (tmp_path / "t").write_text("\n")
    result = run(exporter, INCIDENT, "--token-file", str(tmp_path / "t"))
    assert result.exit_code == 2
    assert "holds no token" in result.stderr


@pytest.mark.parametrize(
    ("command", "words", "kind"),
    [(exporter, [INCIDENT], Exporter), (watch, [INCIDENT], Exporter), (hook, [INCIDENT, "--state", "STATE"], Hook)],
)
def test_what_is_told_to_end_while_it_starts_ends_in_order(tmp_path, monkeypatch, command, words, kind):
    """A service manager may change its mind early; what was sampled or queued by then must not be lost."""
    begin, end, ended = kind.start, kind.close, []

    def start(self):
        os.kill(os.getpid(), signal.SIGTERM)
        begin(self)

    monkeypatch.setattr(kind, "start", start)
    monkeypatch.setattr(kind, "close", lambda self: ended.append(end(self)))
    before = signal.getsignal(signal.SIGTERM)
    try:
        listen = [] if command is watch else ["--listen", "127.0.0.1:0"]
        result = run(command, *[str(tmp_path) if word == "STATE" else word for word in words], *listen)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result.exit_code, ended) == (0, [None]), result.output

"""`moexray ab`: two servers or one with a switch; verdict, rollback, exit codes, refusals."""

import json
import shlex
import sys

import pytest
from click.testing import CliRunner

from fake_server import FakeServer
from moexray.core.errors import UsageError
from moexray.faces.cli.ab import margin_of
from moexray.faces.cli.main import main
from moexray.verify.ab import Margin, trial

FAST = ["--turn", "0.1", "--rate", "100", "--settle", "0", "--max-tokens", "2", "--alpha", "0.5", "--quads", "8", "--quiet"]
GET = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()"


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr(trial, "refusal", lambda *_: "")


def _run(*args):
    return CliRunner().invoke(main, ["ab", *args])


def _get(url):
    return shlex.join([sys.executable, "-c", GET, url])


@pytest.mark.usefixtures("quiet")
def test_one_server_that_two_commands_switch_is_rolled_back_once(tmp_path):
    saved = tmp_path / "ab.json"
    with FakeServer(delays={"A": 0.002, "B": 0.08}) as server:
        found = _run(
            "--url", server.url, "--switch-a", _get(f"{server.url}/setting?is=A"),
            "--switch-b", _get(f"{server.url}/setting?is=B"), "--margin", "20ms", "--save", str(saved),
            "--rollback", _get(f"{server.url}/setting?is=rolled-back"), *FAST,
        )  # fmt: skip
    assert found.exit_code == 1, found.output
    assert "\nB is worse: " in found.stdout
    assert "rolled back once, after" in found.stdout
    assert server.settings.count("rolled-back") == 1
    assert server.settings[-1] == "rolled-back"
    document = json.loads(saved.read_text())
    assert document["schema"] == "moexray.ab/1"
    assert document["verdict"] == "worse"
    p50 = document["outcomes"][0]
    assert p50["figure"] == "p50_s"
    assert p50["difference"]["low"] > 0.02


@pytest.mark.usefixtures("quiet")
def test_two_servers_have_nothing_to_roll_back_without_a_command():
    with FakeServer() as a, FakeServer(delays={"A": 0.08}) as b:
        found = _run("--a", a.url, "--b", b.url, "--margin", "20ms", *FAST)
    assert found.exit_code == 1, found.output
    assert "rolled back once" not in found.stdout
    assert "nothing was rolled back" in found.stdout


@pytest.mark.usefixtures("quiet")
def test_two_equal_servers_do_not_differ():
    with FakeServer() as a, FakeServer() as b:
        found = _run("--a", a.url, "--b", b.url, "--margin", "10s", "--format", "json", *FAST)
    document = json.loads(found.stdout)
    assert found.exit_code == 0
    assert document["verdict"] == "no change"
    assert document["rollback"] is None
    assert document["what"]["url_b"] == b.url
    assert document["control"]["outcomes"]


@pytest.mark.usefixtures("quiet")
def test_a_server_that_refuses_everything_is_worse():
    with FakeServer() as a, FakeServer(mode="refuse") as b:
        found = _run("--a", a.url, "--b", b.url, *FAST)
    assert found.exit_code == 1
    assert "B is worse: errors of a turn" in found.stdout
    assert "failed requests: 0 in A" in found.stdout


def test_a_noisy_machine_is_refused(monkeypatch):
    monkeypatch.setattr(trial, "refusal", lambda *_: "the machine is too noisy: load 7.1 on 2 cores (limit 3.0)")
    with FakeServer() as server:
        refused = _run("--a", server.url, "--b", server.url, *FAST)
        asked = len(server.seen)
        marked = _run("--a", server.url, "--b", server.url, "--noisy", "--margin", "10s", *FAST)
    assert refused.exit_code == 2
    assert "load 7.1 on 2 cores" in refused.stderr
    assert "--noisy" in refused.stderr
    assert asked == 0
    assert marked.exit_code == 2
    assert marked.stdout.startswith(f"A: {server.url}\nB: {server.url}\n\ncannot tell whether B differs from A")
    assert "p50_s" in marked.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "two settings are wanted"),
        (["--a", "http://127.0.0.1:1"], "two settings are wanted"),
        (["--url", "http://127.0.0.1:1", "--switch-a", "true"], "two settings are wanted"),
        (["--a", "here", "--b", "there"], "here is no address"),
        (["--a", "http://127.0.0.1:1", "--b", "http://127.0.0.1:1"], "no model is listed"),
        (["--a", "http://127.0.0.1:1", "--b", "http://x", "--extra", "[]"], "--extra is no JSON object"),
        (["--a", "http://127.0.0.1:1", "--b", "http://x", "--model", "m", "--margin", "five"], "write 5ms"),
    ],
)
def test_bad_usage(args, told):
    found = _run(*args, "--quiet")
    assert found.exit_code == 2
    assert told in found.stderr


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("switch", "told"), [("false", "exit 1"), ("no-such-program", "cannot be run"), ('"', "cannot be run")]
)
def test_a_switch_that_fails_ends_the_trial(switch, told):
    with FakeServer() as server:
        found = _run("--url", server.url, "--switch-a", "true", "--switch-b", switch, *FAST)
    assert found.exit_code == 2
    assert told in found.stderr


@pytest.mark.usefixtures("quiet")
def test_prompts_of_a_file(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "first"}\n{"prompt": "second"}\n')
    with FakeServer() as server:
        _run("--a", server.url, "--b", server.url, "--prompts", str(file), *FAST)
        assert {body["prompt"] for _, body, _ in server.seen} == {"first", "second"}
        file.write_text("\n")
        found = _run("--a", server.url, "--b", server.url, "--prompts", str(file), *FAST)
    assert "the file of prompts is empty" in found.stderr


def test_margins():
    assert margin_of("5ms") == Margin(0.005)
    assert margin_of("0.2 s") == Margin(0.2)
    assert margin_of("5%") == Margin(0.05, is_share=True)
    with pytest.raises(UsageError):
        margin_of("-5ms")

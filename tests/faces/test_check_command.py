"""`moexray compare` and `moexray check`: what they print, their exit codes, bad input without a traceback."""

import json

import pytest
from click.testing import CliRunner

from moexray.faces.cli.main import main

BUDGET = '[p99]\nmax_itl = "24ms"\nmax_itl_growth = 0.1\n'


def _run(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture
def files(tmp_path):
    for name, ms in (("good", 20), ("bad", 30)):
        folder = tmp_path / name
        folder.mkdir()
        rows = "".join(f"{i},{ms + i % 7 / 10}\n" for i in range(1200))
        (folder / "itl.csv").write_text("step,itl_ms\n" + rows)
    (tmp_path / "budget.toml").write_text(BUDGET)
    return tmp_path


def test_a_budget_holds_and_breaks(files):
    args = ("--budget", files / "budget.toml", "--baseline", files / "good")
    good, bad = (_run("check", files / name, *args) for name in ("good", "bad"))
    assert (good.exit_code, bad.exit_code) == (0, 1)
    assert good.stdout.endswith("no line is broken\n")
    assert bad.stdout.splitlines()[0].startswith("fail")
    assert bad.stdout.endswith("2 lines of 2 broken\n")
    document = json.loads(_run("check", files / "bad", *args, "--format", "json").stdout)
    assert document["schema"] == "moexray.check/1"
    assert document["passed"] is False
    growth = document["lines"][1]
    assert growth["status"] == "fail"
    assert {"figure", "before", "after", "difference", "ratio", "verdict", "reason"} <= growth.keys()


def test_strict_fails_the_undecided(files):
    rows = "".join(f"{i},{20 + (i * 7919 % 1200) / 100}\n" for i in range(1200))
    (files / "good" / "itl.csv").write_text("step,itl_ms\n" + rows)
    (files / "budget.toml").write_text("[p99]\nmax_itl = 0.03186\n")
    args = ("check", files / "good", "--budget", files / "budget.toml")
    lax, strict = _run(*args), _run(*args, "--strict")
    assert "1 undecided" in lax.stdout
    assert (lax.exit_code, strict.exit_code) == (0, 1)


@pytest.mark.parametrize(
    ("budget", "args", "told"),
    [
        ("[p99\n", (), "the budget is not TOML"),
        ("[p98]\nx = 1\n", (), "there is no budget [p98]"),
        ("[p99]\nmax_x = 1\n", (), "one of max_ttft"),
        (BUDGET, (), "compare with a baseline"),
        (BUDGET, ("--baseline", "nowhere"), "nowhere does not exist"),
    ],
)
def test_bad_input_exits_2(files, budget, args, told):
    (files / "budget.toml").write_text(budget)
    found = _run("check", files / "good", "--budget", files / "budget.toml", *args)
    assert found.exit_code == 2
    assert told in found.stderr


def test_a_budget_that_is_not_there(files):
    found = _run("check", files / "good", "--budget", files / "none.toml")
    assert found.exit_code == 2
    assert "the budget cannot be read" in found.stderr


def test_compare_prints_the_change_with_its_interval(files):
    found = _run("compare", files / "good", files / "bad")
    assert found.exit_code == 0
    line = next(x for x in found.stdout.splitlines() if x.startswith("p99_itl_s"))
    assert "+10.0 ms [" in line
    assert line.endswith("worse")
    assert "not measured together" in found.stdout
    document = json.loads(_run("compare", files / "good", files / "good", "--format", "json").stdout)
    assert document["schema"] == "moexray.compare/1"
    assert [o["verdict"] for o in document["outcomes"][:2]] == ["no change", "no change"]


def test_compare_refuses(files):
    (files / "notes.txt").write_text("hello\n")
    (files / "ab.json").write_text('{\n "schema": "moexray.ab/1",\n "verdict": "worse"\n}\n')
    for args, told in (
        (("good", "notes.txt"), "after holds nothing to compare"),
        (("good", "gone"), "gone does not exist"),
        (("ab.json", "good"), "is a document of moexray itself (moexray.ab/1)"),
        (("good", "bad", "--margin", "wide"), "--margin wide"),
    ):
        found = _run("compare", files / args[0], files / args[1], *args[2:])
        assert found.exit_code == 2
        assert told in found.stderr

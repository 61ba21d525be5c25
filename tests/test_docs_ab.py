"""docs/ab.md and the example for CI: the budget loads, its keys and the commands exist."""

import re
from pathlib import Path

from click.testing import CliRunner

from moexray.faces.cli.main import COMMANDS, main
from moexray.verify.budget import KEYS, load_budget

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "ab.md").read_text("utf-8")


def test_the_example_budget_loads_and_uses_all_three_sections():
    names = {name.partition(".")[0] for name in load_budget(DOCS / "ci-budget" / "budget.toml")}
    assert names == set(KEYS)


def test_every_key_is_on_the_page():
    told = set(re.findall(r"`((?:max|min)_\w+)`", PAGE))
    for section in ("fragmentation", "skew"):
        assert set(KEYS[section]) <= told
    assert {k for k in KEYS["p99"] if not k.endswith("_growth")} <= told


def test_commands_of_the_page_and_the_workflow_have_these_options():
    text = PAGE + (DOCS / "ci-budget" / "workflow.yml").read_text("utf-8")
    calls = re.findall(r"moexray (ab|compare|check|precision)\b([^\n`]*)", text)
    assert {name for name, _ in calls} == {"ab", "compare", "check", "precision"}
    assert {name for name, _ in calls} <= {name for name, _, _ in COMMANDS}
    for name, rest in calls:
        shown = CliRunner().invoke(main, [name, "--help"]).stdout
        for option in re.findall(r"(?<!\S)(--[a-z-]+)", rest):
            assert option in shown, (name, option)

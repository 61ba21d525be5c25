"""The pages of docs/questions: each command is run on the sample of its page and prints what the page shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "questions").glob("*.md"))
LIMIT_S = 180  # s for one command, on a busy machine


def samples(text):
    return dict(re.findall(r"^```text name=(\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def commands(text):
    """Pairs (command, lines that the page shows of its output, "..." for any number of others)."""
    for body in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        command, *shown = body.splitlines()
        yield command.removeprefix("$ "), shown


CASES = [(page, *case) for page in PAGES for case in commands(page.read_text("utf-8"))]


@pytest.mark.parametrize(("page", "command", "shown"), CASES, ids=[f"{p.stem}: {c}" for p, c, _ in CASES])
def test_a_command_prints_what_its_page_shows(page, command, shown, tmp_path):
    for name, text in samples(page.read_text("utf-8")).items():
        (tmp_path / name).write_text(text)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    line = command.replace("moexray", f'"{sys.executable}" -m moexray', 1)
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode in ((0, 1) if "diagnose" in command else (0,)), done.stderr
    printed = iter(done.stdout.splitlines())
    for expected in shown:
        if expected != "...":
            assert expected in printed, f"not printed (in this order): {expected}\n{done.stdout}"


def test_there_is_a_page_for_each_of_the_ten_questions():
    assert len(PAGES) == 10
    titles = [p.read_text("utf-8").splitlines()[0] for p in PAGES]
    assert all(t.startswith("# ") and t.endswith("?") for t in titles)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_verdicts_that_a_page_names_exist_and_links_lead_somewhere(page):
    text = page.read_text("utf-8")
    known = (ROOT / "docs" / "verdicts.md").read_text("utf-8")
    families = set(re.findall(r"^## (\w+)\.", known, re.MULTILINE))
    named = {i for i in re.findall(r"`([a-z0-9]+\.[a-z_]+)`", text) if i.split(".")[0] in families}
    assert named
    assert not [i for i in named if f"\n## {i}\n" not in known]
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (page.parent / target).exists(), target

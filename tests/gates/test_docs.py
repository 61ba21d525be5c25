"""Links of the documentation lead somewhere, and each decision has its place in the list."""

import re
from pathlib import Path

import click
import pytest

from moexray.faces.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def _anchors(path):
    text = path.read_text("utf-8")
    heads = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", re.sub(r"<[^>]*>", "", h)).strip().lower().replace(" ", "-") for h in heads}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    broken = []
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in _anchors(path)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def _calls(text):
    """What stands behind `moexray` in code spans and command lines, without remarks and other programs."""
    spans = re.findall(r"`([^`\n]+)`", text)
    lines = [line.partition(" #")[0] for line in re.findall(r"^(?: {4}|\$ )(.*)$", text.replace("\\\n", " "), re.MULTILINE)]
    for code in (*spans, *lines):
        for call in re.findall(r"(?:^|\| )(?:\$ )?moexray +([a-z][^|;&]*)", code):
            yield call.partition(" -- ")[0].split()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_commands_and_options_that_a_page_names_exist(page):
    for words in _calls(page.read_text("utf-8")):
        command, rest = main, list(words)
        while rest and isinstance(command, click.Group) and rest[0].isalpha():
            command = command.get_command(click.Context(command), rest[0].partition("|")[0])
            assert command, f"moexray {' '.join(words)}"
            rest.pop(0)
        known = {"--help", *(o for p in command.params for o in (*p.opts, *p.secondary_opts))}
        given = {found[0] for word in rest if (found := re.match(r"--[a-z][a-z0-9-]*", word))}
        assert given <= known, f"moexray {' '.join(words)}"


def test_decisions_are_numbered_and_listed():
    folder = ROOT / "docs" / "decisions"
    names = sorted(p.name for p in folder.glob("[0-9]*.md"))
    listed = re.findall(r"\]\(([0-9][^)]*\.md)\)", (folder / "README.md").read_text("utf-8"))
    assert listed == names
    assert [int(n[:3]) for n in names] == list(range(1, len(names) + 1))
    for name in names:
        text = (folder / name).read_text("utf-8")
        assert text.startswith(f"# {name[:3]} ")
        assert all(f"**{part}" in text for part in ("Decision.", "Why.", "Cost.", "Overturned by"))

"""What is read is used: a table or column that nothing looks at says so in its own text."""

import re
from pathlib import Path

import pytest

from moexray.core.tables import TABLES

SRC = Path(__file__).resolve().parents[2] / "src" / "moexray"
UNREAD = "No rule reads it"
CODE = "".join(
    p.read_text("utf-8")
    for p in sorted(SRC.rglob("*.py"))
    if not p.is_relative_to(SRC / "readers") and not p.is_relative_to(SRC / "core" / "tables")
)
# analyse/snapshot.py asks for all of these by f"snapshot_{table}".
BY_PREFIX = re.compile(r"snapshot_(?:segments|blocks|events|stacks|annotations)")


def _is_read(table):
    return bool(BY_PREFIX.fullmatch(table.name)) or re.search(rf'(?:rows|batches)\(\s*"{table.name}"', CODE)


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_a_table_is_read_or_says_that_it_is_not(table):
    assert bool(_is_read(table)) != (UNREAD in table.doc)


@pytest.mark.parametrize("table", [t for t in TABLES if _is_read(t)], ids=lambda t: t.name)
def test_a_column_is_read_or_says_that_it_is_not(table):
    """A name that occurs anywhere counts as read, so this finds only what is surely dead."""
    silent = [
        c.name
        for c in table.columns
        if bool(re.search(rf"(?:[\"']|\.){c.name}\b", CODE)) == (UNREAD in c.doc)
    ]
    assert silent == []

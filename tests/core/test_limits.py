from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from moexray.core.errors import UsageError
from moexray.core.limits import Limits
from moexray.core.limits.load import load_limits


def write(tmp_path, text):
    path = tmp_path / "limits.toml"
    path.write_text(text)
    return path


def test_a_limit_is_overridden_and_the_rest_stays(tmp_path):
    limits = load_limits(write(tmp_path, "[snapshot]\nstuck_ratio = 0.5\n"))
    assert limits.snapshot.stuck_ratio == 0.5
    assert limits.snapshot.stuck_bytes == Limits().snapshot.stuck_bytes
    assert limits.memory == Limits().memory


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[snapshot]\nnonsense = 1\n", "has no limit nonsense"),
        ("[elsewhere]\na = 1\n", "no subject"),
        ("[snapshot]\nstuck_ratio = 'much'\n", "kind of its default"),
        ("[snapshot\n", "are not TOML"),
    ],
)
def test_what_does_not_exist_is_a_clear_error(tmp_path, text, words):
    with pytest.raises(UsageError, match=words):
        load_limits(write(tmp_path, text))


def test_a_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        load_limits(tmp_path / "none.toml")


@pytest.mark.parametrize("part", fields(Limits), ids=lambda f: f.name)
def test_each_limit_says_where_it_comes_from(part):
    """By a line of the class's Args, a comment above it or beside it, or a text below it."""
    kind = type(getattr(Limits(), part.name))
    lines = [*Path(inspect.getfile(kind)).read_text("utf-8").splitlines(), ""]
    silent = []
    for f in fields(kind):
        at = next(i for i, line in enumerate(lines) if re.match(rf"    {f.name}: ", line))
        above = at
        while re.match(r"    \w+: ", lines[above]):  # one comment may speak of several
            above -= 1
        beside = "#" in lines[at] or lines[above].startswith("    #") or lines[at + 1].startswith('    """')
        if not beside and not re.search(rf"^ +{f.name}: ", kind.__doc__, re.MULTILINE):
            silent.append(f.name)
    assert silent == []

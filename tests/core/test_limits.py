from __future__ import annotations

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

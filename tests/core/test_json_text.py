"""Documents are JSON that a strict parser takes."""

import json

import pytest

from moexray.core.json_text import json_text


def strict(text):
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_what_json_does_not_know_is_null():
    document = {"a": [float("nan"), 1.5], "b": (float("inf"), {"c": float("-inf")}), "d": "NaN"}
    assert strict(json_text(document)) == {"a": [None, 1.5], "b": [None, {"c": None}], "d": "NaN"}


def test_control_characters_are_escaped():
    assert json_text({"name": "\x1b[31m\x9b"}, indent=None) == '{"name": "\\u001b[31m\\u009b"}'

import re

import pytest

from moexray.core.pattern import lazy


def test_it_behaves_like_the_compiled_pattern():
    words, plain = lazy(r"(\w)(\d)", re.IGNORECASE), re.compile(r"(\w)(\d)", re.IGNORECASE)
    text = "a1 B2"
    assert words.search(text).groups() == plain.search(text).groups()
    assert [m.span() for m in words.finditer(text)] == [m.span() for m in plain.finditer(text)]
    assert words.sub("x", text) == plain.sub("x", text)
    assert words.match(text, 3).group() == "B2"
    assert words.pattern == plain.pattern


def test_nothing_is_compiled_before_the_first_use():
    broken = lazy("(")
    with pytest.raises(re.error):
        broken.search("x")
    with pytest.raises(AttributeError):
        _ = broken.nothing

"""Lines kept of very large logs."""

from hypothesis import given
from hypothesis import strategies as st

from moexray.readers.lines import LINE_PARSERS, WORDS
from moexray.readers.lines.choose import Chooser


def chosen(block, words=("kill", "gpu 1"), quota=100, after=0):
    return Chooser(words, quota, after).choose(block)


def test_lines_with_a_word_and_those_behind():
    block = b"a\nProcess KILLED\nb\nc\nd\n"
    assert chosen(block) == [(1, b"Process KILLED")]
    assert [i for i, _ in chosen(block, after=2)] == [1, 2, 3]


def test_digits_of_words_stand_for_any_digit():
    assert [i for i, _ in chosen(b"GPU 7 hot\ngpu x\n")] == [0]


def test_quota_counts_lines_of_a_word_and_names_it():
    chooser = Chooser(("kill", "free"), 2, 0)
    assert len(chooser.choose(b"kill 1\nkill 2\nkill 3\n")) == 2
    assert chooser.full == ["kill"]
    assert chooser.choose(b"kill and free\nkill\n") == [(0, b"kill and free")]


def test_shapes_are_forgotten_not_lost(monkeypatch):
    monkeypatch.setattr("moexray.readers.lines.choose.KNOWN_BYTES", 1)
    chooser = Chooser(("kill",), 100, 0)
    assert [len(chooser.choose(b"kill 1\nx\n")) for _ in range(3)] == [1, 1, 1]


@given(st.lists(st.text("kilGPU 18x", max_size=12), max_size=20))
def test_every_line_that_holds_a_word_is_kept(lines):
    block = "\n".join(lines).encode() + b"\n"
    expected = {i for i, x in enumerate(lines) if any(w in x.lower() for w in WORDS)}
    assert expected <= {i for i, _ in Chooser(WORDS, 10**6, 0).choose(block)}


def test_words_are_lower_case_and_parsers_have_some():
    assert all(w == w.lower() for w in WORDS)
    assert all(p.words for p in LINE_PARSERS)

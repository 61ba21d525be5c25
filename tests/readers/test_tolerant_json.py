import json

import pytest

from moexray.core.errors import LimitError, ReadError
from moexray.core.run import Reading
from moexray.core.source import Source
from moexray.readers import tolerant_json
from moexray.readers.json_mend import mend


def parse(text):
    return tolerant_json.parse(text)


def load(content):
    out = Reading("json")
    return tolerant_json.load(Source("sample.json", content=content), out), out.problems


def test_sound_json_is_read_as_it_is():
    document, problems = load(b'{"a": [1, 2.5, null, "x"]}')
    assert document == {"a": [1, 2.5, None, "x"]}
    assert not problems


@pytest.mark.parametrize("word", ["inf", "-inf", "nan", "-nan", "NaN", "Infinity", "N/A", "None", "-nan(ind)", "1.#INF"])
def test_bare_words_become_missing_values(word):
    document, repairs = parse(f'{{"e": [{{"v": 1}}, {{"name": "k", "v": {word}}}]}}')
    assert document == {"e": [{"v": 1}, {"name": "k", "v": None}]}
    assert repairs.tokens == 1
    assert repairs.named == ["record 1 (k)"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('["a\x01b"]', ["a\x01b"]),
        ('["a\\qb"]', ["a\\qb"]),
        ('["a\nb"]', ["a\nb"]),
        ('{"a": 1,}', {"a": 1}),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ('[{"a": 1} {"a": 2}]', [{"a": 1}, {"a": 2}]),
        ('{"a": , "b": 2}', {"a": None, "b": 2}),
        ("{'a': 1, 'b': None, 'c': True}", {"a": 1, "b": None, "c": True}),
        ('{"a": +5, "b": .5}', {"a": 5.0, "b": 0.5}),
        ('{"a": 1 \x00\x02, "b": 2}', {"a": 1, "b": 2}),
        ('["\\ud800x"]', ["\ufffdx"]),
    ],
)
def test_one_reading_is_repaired_and_counted(text, value):
    document, repairs = parse(text)
    assert document == value
    assert repairs.count >= 1
    assert repairs.dropped == 0


@pytest.mark.parametrize(
    "record",
    ['{"n": "foo "bar" baz", "v": 1}', '{"n": 1,5, "v": 1}', '{"n": abc, "v": 1}', '{"n": 1 2}', '{"n": 007}', '{"n" 1}'],
)
def test_two_readings_drop_the_record_and_keep_the_others(record):
    document, repairs = parse(f'{{"e": [{{"n": 0}}, {record}, {{"n": 9}}], "tail": "]["}}')
    assert document == {"e": [{"n": 0}, {"n": 9}], "tail": "]["}
    assert (repairs.dropped, repairs.count) == (1, 0)


@pytest.mark.parametrize("cut", range(2, 60))
def test_a_cut_keeps_the_whole_records(cut):
    records = [{"ph": "X", "n": i} for i in range(4)]
    text = json.dumps({"events": records})[:cut]
    document, repairs = parse(text)
    if document is not None:
        assert repairs.end in ("mark", "record")
        found = document.get("events") or []
        assert found == records[: len(found)]


def test_the_number_of_whole_records_is_told():
    document, problems = load(b'{"events": [{"a": 1}, {"a": 2}, {"a"')
    assert document == {"events": [{"a": 1}, {"a": 2}]}
    assert problems[0].id == "input.truncated"
    assert problems[0].values["records"] == 2


def test_json_lines_and_several_documents():
    assert load(b'{"a": 1}\n{"a": 2}\n')[0] == [{"a": 1}, {"a": 2}]
    assert parse('{"a": 1}{"b": 2}')[0] == [{"a": 1}, {"b": 2}]


def test_damaged_lines_are_repaired_or_dropped():
    document, repairs = parse('{"a": 1}\n{"a": inf}\n{"a": x y}\n{"a": 4}\n{"a"')
    assert document == [{"a": 1}, {"a": None}, {"a": 4}]
    assert (repairs.tokens, repairs.dropped, repairs.end) == (1, 1, "record")


def test_bad_utf8_is_replaced_and_counted():
    document, problems = load(b'{"a": "x\xff\xfey", "b": "\xc3\xa9"}')
    assert document == {"a": "x\ufffd\ufffdy", "b": "\u00e9"}
    assert [p.id for p in problems] == ["input.json_repaired"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_other_encodings_give_the_same_document(encoding):
    document, problems = load('{"a": "\u00e9"}'.encode(encoding))
    assert document == {"a": "\u00e9"}
    assert problems[0].id == "input.encoding"


@pytest.mark.parametrize("text", ["[" * 200_000, '[{"a":' * 20_000, '{"a":' * 20_000, '"a' * 50_000, "", "@"])
def test_hostile_text_ends_in_bounded_work(text):
    parse(text)


def test_what_would_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(tolerant_json, "MAX_OBJECTS_BYTES", 1 << 20)
    with pytest.raises(LimitError, match="objects"):
        load(b"[" + b"{}," * (6 << 20) + b"{}]")


def test_nothing_readable_is_an_error():
    with pytest.raises(ReadError, match="no whole record"):
        load(b'{"a')


def test_mending_gives_up_outside_its_limit():
    assert mend('{"a": inf}', 0, 5) is None
    assert mend("{]", 0, 2) is None
    assert mend("[" * 500, 0, 500) is None


def test_well_formed_but_too_deep_is_told_as_such():
    with pytest.raises(LimitError, match="nested too deep"):
        load(b'{"counts":' + b"[" * 100_000 + b"]" * 100_000 + b"}")

import pytest

from moexray.readers.cells import base, is_placeholder, number, quantity, split_unit, words


@pytest.mark.parametrize(
    ("cell", "value"),
    [("12", 12.0), ("-1.5", -1.5), (".5", 0.5), ("2e3", 2000.0), ("1,024", None), ("nan", None), ("12 MiB", None)],
)
def test_a_number_has_one_reading(cell, value):
    assert number(cell) == value


def test_a_quantity_keeps_its_unit():
    assert quantity("655.00 W") == (655.0, "W")
    assert quantity("99 %") == (99.0, "%")
    assert quantity("fast") is None


@pytest.mark.parametrize("cell", ["", "N/A", "[Not Supported]", "-", "ERR!", "null"])
def test_placeholders_are_missing(cell):
    assert is_placeholder(cell)


def test_a_word_is_no_placeholder():
    assert not is_placeholder("nan")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memory.used [MiB]", ("memory.used", "mib")),
        ("Mean TTFT (ms)", ("mean_ttft", "ms")),
        ("itl_ms", ("itl", "ms")),
        ("output_tok_s", ("output_tok", "per s")),
        ("tokens/s", ("tokens", "per s")),
        ("Request Throughput (requests/sec)", ("request_throughput", "requests/sec")),
        ("step", ("step", "")),
    ],
)
def test_units_stand_in_brackets_or_at_the_end(name, expected):
    assert split_unit(name) == expected


def test_words_keep_abbreviations_whole():
    assert words("Mean E2E Latency (ms)") == "mean_e2e_latency_ms"
    assert words("iterLatencyMS") == "iter_latency_ms"


def test_base_units_carry_no_binary_dust():
    assert base(274.9, 1e-3) == 0.2749

"""Damage crossed with containers: the sound part is used, and the right thing is said of the rest."""

import io
import json
import zipfile

import numpy as np
import pytest
import zstandard

from moexray.core.source import Source
from moexray.faces.plain import visible
from moexray.readers.json_recover import Recovery
from moexray.readers.read_any import read_sources
from moexray.readers.tolerant_json import parse

COUNTS = [[[100, 101, 99, 100], [98, 103, 100, 99]] for _ in range(6)]
TABLE = "layer,expert_0,expert_1,expert_2,expert_3\n" + "".join(f"{i},100,101,99,100\n" for i in range(8))
LOG = "INFO 03-11 10:00:00 [loggers.py:123] Engine 000: Avg generation throughput: 800.1 tokens/s, Running: 3 reqs, "
LOG += "Waiting: 0 reqs, GPU KV cache usage: 31.0%\n"
PAGE = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 3.0\n'


def read(content, name):
    """(ids of problems, rows, paths skipped)."""
    run = read_sources([Source(name, content=content if isinstance(content, bytes) else content.encode())])
    ids = sorted({p.id for _, p in run.problems})
    return ids, sum(i.rows for i in run.inputs), [s.path for s in run.skipped]


def npz():
    out = io.BytesIO()
    np.savez(out, logical_count=np.array(COUNTS), other=np.zeros(900))
    return out.getvalue()


def zipped(**members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return out.getvalue()


def test_zstd_frames_behind_each_other_are_one_file():
    pack = zstandard.ZstdCompressor().compress
    assert read(pack(LOG.encode() * 3) + pack(LOG.encode() * 2), "a.log.zst") == ([], 5, [])
    assert read(pack(LOG.encode()) + b"junk", "a.log.zst")[:2] == (["input.gzip_damaged"], 1)


def test_a_cut_zstd_file_is_truncated_and_not_empty():
    whole = zstandard.ZstdCompressor().compress(LOG.encode() * 50)
    assert read(whole[:-9], "a.log.zst")[0] == ["input.truncated"]


def test_whole_arrays_of_a_cut_npz_are_used():
    ids, rows, _ = read(npz()[:4000], "a.npz")
    assert ids == ["input.truncated"]
    assert rows == 12


def test_a_cut_zip_gives_its_whole_members():
    whole = zipped(a_log=LOG * 4, b_csv=TABLE)
    assert read(whole, "b.zip") == ([], 12, [])
    ids, rows, skipped = read(whole[: whole.rindex(b"PK\x01\x02", 0, -60)], "b.zip")
    assert (ids, rows) == (["input.truncated"], 12)
    assert len(skipped) == 1


def test_one_damaged_member_of_a_zip_costs_only_itself():
    whole = bytearray(zipped(a_log=LOG * 4, b_csv=TABLE))
    whole[45] ^= 255
    assert read(bytes(whole), "b.zip") == (["input.truncated"], 8, ["b.zip/a.log"])


def test_an_array_beside_a_log_in_a_zip():
    array = io.BytesIO()
    np.save(array, np.array(COUNTS))
    assert read(zipped(a_npy=array.getvalue(), b_log=LOG), "b.zip") == ([], 13, [])


@pytest.mark.parametrize(
    ("content", "name"),
    [(TABLE, "x.json"), (json.dumps({"logical_count": COUNTS}), "x.csv"), (LOG, "x.png"), (npz(), "x.log"), (PAGE, "x.csv")],
)
def test_names_that_promise_something_else(content, name):
    ids, rows, _ = read(content, name)
    assert ids == ["input.name_mismatch"]
    assert rows


@pytest.mark.parametrize(
    ("content", "name"), [(TABLE, "x.txt"), (LOG, "x.csv"), (PAGE, "x.txt"), (json.dumps({"logical_count": COUNTS}), "x.log")]
)
def test_endings_that_fit_any_text(content, name):
    assert read(content, name)[0] == []


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_the_encoding_of_a_metrics_page_is_told(encoding):
    assert read(PAGE.encode(encoding), "a.prom") == (["input.encoding"], 1, [])


def test_decimal_commas_agree_in_every_row_but_the_header():
    table = "t_s;itl_ms\n" + "".join(f"0,{i:03d};20,{i % 7}\n" for i in range(60))
    assert read(table, "a.csv") == (["input.dialect"], 60, [])


@pytest.mark.parametrize(
    "content", ['[[package]]\nname = "x"\nversion = "1"\n', '{"a": 1, // why\n "b": 2,}', "caf\xe9, a note".encode("latin-1")]
)
def test_clutter_gives_a_reason_and_no_finding(content):
    ids, rows, skipped = read(content, "clutter")
    assert (ids, rows, len(skipped)) == ([], 0, 1)


def test_labels_too_thin_to_lay_out_are_refused():
    rows = (json.dumps({"step": i, "layer": i, "expert": i % 256, "count": 5}) for i in range(3000))
    assert read("\n".join(rows), "a.jsonl")[0] == ["input.huge"]


def test_bare_words_are_mended_and_words_in_strings_are_left():
    document, repairs = parse('[{"a": inf, "b": "x: nan, y"}, {"a": 1, "b": "[nan]"}, {"a": N/A}]')
    assert document == [{"a": None, "b": "x: nan, y"}, {"a": 1, "b": "[nan]"}, {"a": None}]
    assert repairs.tokens == 2


def test_json_lines_whose_first_line_is_cut():
    document, repairs = parse('{"a": 1, "b\n' + '{"a": 2}\n' * 9)
    assert document == [{"a": 2}] * 9
    assert repairs.dropped == 1


@pytest.mark.parametrize("record", ['{"a":x}', '{"a":1}{"b":x y}', '{"k%d": @@ 1}', '{"a":inf}', '{"a":1,}'])
def test_damage_does_not_cost_the_square_of_the_length(record):
    def read_again(count):
        recovery = Recovery("[" + ",\n".join(record % i if "%d" in record else record for i in range(count)) + "]")
        budget = recovery.budget
        recovery.documents()
        return budget - recovery.budget

    assert read_again(16_000) <= 20 * read_again(1_000) + 100_000


@pytest.mark.parametrize("opening", ["[", '{"traceEvents": [\n'])
def test_a_cut_document_with_a_record_a_line_is_no_json_lines(opening):
    document, repairs = parse(opening + '{"a": 1},\n' * 9 + '{"a": 2, "b')
    assert repairs.end
    if opening == "[":
        assert document == [{"a": 1}] * 9
        assert not repairs.dropped
    elif "trace" in opening:
        assert document == {"traceEvents": [{"a": 1}] * 9}


def test_escapes_of_an_input_become_visible():
    assert visible("a\x1b[31mb\x9b\u202e\udc80\tc\n") == "a\\u001b[31mb\\u009b\\u202e\\udc80\tc\n"
    text = json.dumps({"x": "a\x9bb"}, ensure_ascii=False)
    assert json.loads(visible(text)) == {"x": "a\x9bb"}


@pytest.mark.parametrize("digits", ["9" * 350, "9" * 5000])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "layer,expert_0,expert_1\n0,%s,5\n1,5,5\n%s,4,4\n"),
        ("a.json", '{"logical_count": [[[1, %s]]], "step": %s}'),
        ("a.log", "INFO 03-11 10:00:00 [a.py:1] Running: %s reqs\nCUDA OOMs: %s cudaMalloc retries: 1\n"),
        ("a.xml", "<?xml version='1.0'?><nvidia_smi_log><gpu id='%s'><fb_memory_usage><total>%s MiB</total></fb_memory_usage></gpu></nvidia_smi_log>"),
    ],
)
def test_numbers_of_thousands_of_digits_are_no_fault_of_ours(name, text, digits):
    assert "input.unreadable" not in read(text % (digits, digits), name)[0]

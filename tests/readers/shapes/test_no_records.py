from __future__ import annotations

import json

import pytest

from moexray.core.source import Source
from moexray.readers.read_any import read_sources
from moexray.readers.shapes.no_records import configuration, own_document

VOCABULARY = {f"w{n}": n for n in range(300)}


def skipped(document):
    run = read_sources([Source("x.json", content=json.dumps(document, indent=1).encode())])
    return [s.reason for s in run.skipped]


@pytest.mark.parametrize(("schema", "words"), [
    ("moexray.bundle/1", "the bundle's manifest, needs no reading"),
    ("moexray.bundle/7", "the bundle's manifest, needs no reading"),
    ("moexray.run/1", "the manifest of a saved run; give its folder alone to read the run"),
    ("moexray.diagnosis/1", "moexray's own output (moexray.diagnosis/1), no evidence"),
])
def test_own_documents_are_named(schema, words):
    assert skipped({"schema": schema, "files": ["a.log"]}) == [words]


def test_a_diagnosis_kept_beside_the_logs_is_no_evidence():
    quote = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
    found = read_sources([Source("d.json", content=json.dumps(
        {"schema": "moexray.diagnosis/1", "findings": [{"evidence": [{"text": quote}]}]}).encode())])
    assert not found.inputs


@pytest.mark.parametrize("document", [None, [], [1], "x", {}, {"schema": 1}, {"schema": "other.moexray."}])
def test_other_documents_are_not_ours(document):
    assert own_document(document) == ""
    assert configuration(document) == ""


@pytest.mark.parametrize(("document", "kind"), [
    ({"architectures": ["M"], "model_type": "m", "torch_dtype": "bfloat16"}, "model"),
    ({"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 0.6}, "generation"),
    ({"eos_token_id": 1, "transformers_version": "5.0"}, "generation"),
    ({"tokenizer_class": "T", "model_max_length": 4096}, "tokenizer"),
    ({"version": "1.0", "added_tokens": [], "pre_tokenizer": {}, "model": {}}, "tokenizer"),
    ({"bos_token": "<s>", "additional_special_tokens": []}, "tokenizer"),
    ({"metadata": {"total_size": 1}, "weight_map": {"a": "b"}}, "index of weight files"),
    (VOCABULARY, "vocabulary of a tokenizer"),
])
def test_configuration_is_named(document, kind):
    assert skipped(document) == [f"configuration, no records ({kind})"]


@pytest.mark.parametrize("document", [
    {"hello": 1},
    {"model": "m", "temperature": 0.6},
    {str(n): 299 - n for n in range(300)},
    {f"w{n}": n * 3 for n in range(300)},
    {f"w{n}": float(n) for n in range(300)},
])
def test_near_misses_stay_unknown(document):
    assert configuration(document) == ""

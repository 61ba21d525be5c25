"""Damaged samples: never an exception, never a reader's own fault, always a document of JSON."""

import gzip
import json
import random
from pathlib import Path

import pytest

from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.faces.cli.screen import as_markdown, as_text
from moexray.faces.report import render
from moexray.readers.read_any import read_sources

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "examples" / "incident", ROOT / "tests" / "data")
LARGEST = 200_000


def samples():
    """Small samples of every format of ours, decompressed ones beside compressed ones."""
    found = []
    for folder in FOLDERS:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".py"):
            content = path.read_bytes()
            if len(content) > LARGEST:
                continue
            found.append((path.name, content))
            if content[:2] == b"\x1f\x8b":
                plain = gzip.decompress(content)
                found.append((path.stem, plain[:LARGEST]))
    return found


def mutate(content, dice):
    """One to four random damages."""
    data = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        size = len(data)
        at, length = dice.randrange(size + 1), dice.choice((1, 2, 8, 100, 5000))
        kind = dice.randrange(8)
        if kind == 0:
            del data[at:]
        elif kind == 1 and size:
            data[min(at, size - 1)] ^= 1 << dice.randrange(8)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length]
        elif kind == 4:
            data[at:at] = bytes(dice.randrange(256) for _ in range(min(length, 100)))
        elif kind == 5:
            token = dice.choice((b"NaN", b"-1", b"1e999", b"null", b"99999999999999999999", b"[N/A]", b"\0", b"]"))
            data[at : at + len(token)] = token
        elif kind == 6:
            digits = [i for i in range(max(0, at - 300), min(size, at + 300)) if 48 <= data[i] <= 57]
            if digits:
                data[dice.choice(digits)] = dice.choice(b"0123456789-.eE,")
        else:
            other = dice.randrange(size + 1)
            data[at : at + length], data[other : other + length] = data[other : other + length], data[at : at + length]
    return bytes(data)


def check(name, content):
    run = read_sources([Source(name, content=content)])
    for path, problem in run.problems:
        assert problem.id != "input.unreadable", (path, problem.text)
    result = diagnose(run)
    assert result.failures == ()
    document = result.to_json()
    json.dumps(document, allow_nan=False)
    as_text(document)
    as_markdown(document)
    return document


def run_mutations(count, seed):
    every = samples()
    dice = random.Random(seed)
    for i in range(count):
        name, content = dice.choice(every)
        damaged = mutate(content, dice)
        try:
            document = check(name, damaged)
            if i % 50 == 0:
                render(document)
        except BaseException as why:
            keep = Path("/tmp") / f"moexray-mutation-{seed}-{i}-{name}"
            keep.write_bytes(damaged)
            raise AssertionError(f"mutation {i} of {name} (kept as {keep})") from why


@pytest.mark.parametrize("part", range(4))
def test_mutations(part):
    run_mutations(150, seed=part)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_many_mutations(part):
    run_mutations(1000, seed=1000 + part)

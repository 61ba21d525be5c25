"""Names of modules and functions in strings: import-linter does not see them, a rename breaks them.

Readers, shapes, rules and commands are named as "module" or "module:function" and imported on demand
(docs/decisions/018). Every such name leads somewhere, and to no higher layer than its own.
"""

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest

from moexray.diagnose import EXHIBITS, RULES
from moexray.faces.cli.main import COMMANDS
from moexray.readers.lines import LINE_PARSERS

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
FUNCTION = re.compile(r"moexray(?:\.\w+)+:\w+")
MODULE = re.compile(r"moexray(?:\.\w+)+(?=:|$)")


def _strings():
    """(module that holds it, the string) of every string constant that is nothing but such a name."""
    for path in sorted(SRC.rglob("*.py")):
        holder = ".".join(path.relative_to(SRC).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield holder, node.value


FUNCTIONS = sorted({s for _, s in _strings() if FUNCTION.fullmatch(s)})
LISTED = [
    *(r.function for r in RULES),
    *(e.function for e in EXHIBITS),
    *(f"{p.module}:parse" for p in LINE_PARSERS),
    *(f"{module}:command" for _, module, _ in COMMANDS),
]


def _ranks():
    """Layer -> (height, its siblings on the same height), as pyproject states them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    [layers] = [c["layers"] for c in contracts if c["type"] == "layers"]
    return {name.strip(): height for height, row in enumerate(reversed(layers)) for name in row.split("|")}


def may_name(holder, named, ranks):
    """Whether a module of one layer may name one of another: itself, or a lower layer."""
    own, other = holder.split(".")[1], named.split(".")[1]
    return own == other or ranks[own] > ranks[other]


def test_the_scan_sees_the_shapes():
    assert {s.split(":")[0].rpartition(".")[0] for s in FUNCTIONS} >= {"moexray.readers.shapes"}
    assert {r.function for r in RULES} <= set(FUNCTIONS)


@pytest.mark.parametrize("name", sorted({*FUNCTIONS, *LISTED}))
def test_a_name_leads_to_a_function(name):
    module, _, function = name.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_names_keep_the_order_of_layers():
    ranks = _ranks()
    wrong = [
        (holder, text)
        for holder, text in _strings()
        if (found := MODULE.match(text)) and found[0].split(".")[1] in ranks
        if not may_name(holder, found[0], ranks)
    ]
    assert wrong == []


def test_a_reader_may_not_name_a_rule():
    ranks = _ranks()
    assert not may_name("moexray.readers.json_file", "moexray.diagnose.memory.oom", ranks)
    assert not may_name("moexray.readers.json_file", "moexray.analyse.load", ranks)
    assert may_name("moexray.diagnose.engine", "moexray.readers.json_file", ranks)

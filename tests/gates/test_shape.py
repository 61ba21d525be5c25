"""The shape of the code: sizes, no assert, no print outside faces, no knowledge of the case bank.

An exception to a gate is a line in its table, with the reason; an exception that no longer applies
fails, so the tables stay short.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "moexray"

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8

# path below the root -> reason
LONG_FILES: dict[str, str] = {}
# path below the root::qualified name -> reason
LONG_FUNCTIONS: dict[str, str] = {
    "src/moexray/kernels/pickle_tape.py::parse": "helpers that take the arrays cost six times as much",
}
MANY_PARAMETERS: dict[str, str] = {}
# path below the root -> reason
PRINTS: dict[str, str] = {}
# the word -> reason why it is no case id
NO_CASE_IDS: dict[str, str] = {"H20": "NVIDIA H20, a GPU"}

# Ids of the bank of cases that verdicts are scored on: a rule that names one has learnt it by heart.
CASE_ID = re.compile(r"\b[CRHT][0-9]{2}b?\b")
LINT_COMMENT = re.compile(r"#\s*(?:noqa|ruff|type|pragma)\b.*")
TEXT_SUFFIXES = {".py", ".html", ".j2", ".css", ".js", ".json", ".toml", ".md", ".txt"}


def _python_files(*folders):
    """Ours, without tests/data: samples, and the scripts that made them."""
    data = ROOT / "tests" / "data"
    found = (p for folder in folders for p in (ROOT / folder).rglob("*.py"))
    return sorted(p for p in found if not p.is_relative_to(data))


def _name(path):
    return path.relative_to(ROOT).as_posix()


def _functions(tree, prefix=""):
    """Every function with its qualified name, nested ones included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        else:
            yield from _functions(node, prefix)


def _parameters(node):
    a = node.args
    names = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return [n for i, n in enumerate(names) if not (i == 0 and n in ("self", "cls"))]


def _is_click_command(node):
    """Click fills such a function from the command line, by keyword: options, not parameters."""
    names = (ast.unparse(d).partition("(")[0] for d in node.decorator_list)
    return any(n.rpartition(".")[2] in ("command", "group") for n in names)


def _measure(folders, of):
    """{path::function: of(node)} over all functions."""
    return {
        f"{_name(path)}::{name}": of(node)
        for path in _python_files(*folders)
        for name, node in _functions(ast.parse(path.read_text("utf-8")))
    }


def _judge(sizes, limit, exceptions):
    over = {k: v for k, v in sizes.items() if v > limit}
    stale = exceptions.keys() - over.keys()
    assert {k: v for k, v in over.items() if k not in exceptions} == {}, f"over {limit}"
    assert stale == set(), "no longer needed as exceptions"
    assert all(exceptions.values()), "an exception states its reason"


def test_files_are_short():
    sizes = {
        _name(p): len(p.read_text("utf-8").splitlines())
        for p in _python_files("src", "tests", "benchmarks")
    }
    _judge(sizes, MAX_FILE_LINES, LONG_FILES)


def test_functions_are_short():
    sizes = _measure(
        ("src", "tests", "benchmarks"), lambda node: node.end_lineno - node.lineno + 1
    )
    _judge(sizes, MAX_FUNCTION_LINES, LONG_FUNCTIONS)


def test_functions_take_few_parameters():
    sizes = _measure(
        ("src",), lambda node: 0 if _is_click_command(node) else len(_parameters(node))
    )
    _judge(sizes, MAX_PARAMETERS, MANY_PARAMETERS)


def test_no_assert_in_the_package():
    found = [
        f"{_name(path)}:{node.lineno}"
        for path in _python_files("src")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert found == [], "python -O drops asserts: raise one of core/errors.py"


def test_only_faces_print():
    found = {
        _name(path): node.lineno
        for path in _python_files("src")
        if not path.is_relative_to(SRC / "faces")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("print", "pprint")
    }
    assert {k: v for k, v in found.items() if k not in PRINTS} == {}
    assert PRINTS.keys() - found.keys() == set(), "no longer needed as exceptions"


def test_no_case_ids_in_the_package():
    found = [
        f"{_name(path)}:{number}: {word}"
        for path in sorted(SRC.rglob("*"))
        if path.suffix in TEXT_SUFFIXES and ".min." not in path.name
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for word in CASE_ID.findall(LINT_COMMENT.sub("", line))
        if word not in NO_CASE_IDS
    ]
    assert found == []


def test_layers_are_described():
    """Every package says in its first line what it holds."""
    silent = [
        _name(path)
        for path in SRC.rglob("__init__.py")
        if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert silent == []


def test_no_path_of_one_machine():
    """Home and work folders exist on one machine only. (Samples in tests may quote them.)"""
    found = [
        f"{_name(path)}:{number}"
        for path in _python_files("src", "benchmarks", "examples")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(r"(?<![\w.<])/(?:work|root|Users)/\w", line)
    ]
    assert found == []

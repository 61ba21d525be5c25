"""What is loaded into a serving process: nothing heavy beyond torch, and engines named in one place.

import-linter holds the fence for import statements; this is what really happens. The times are figures of
`make bench`.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUNTIME = Path(__file__).resolve().parents[2] / "src" / "moexray" / "runtime"
FENCED = ("polars", "numba", "jinja2", "moexray.readers", "moexray.analyse", "moexray.diagnose", "moexray.kernels")
MODULES = sorted(
    "moexray." + ".".join(path.relative_to(RUNTIME.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in RUNTIME.rglob("*.py")
)


def loaded(*modules):
    """Modules in a fresh process after these imports."""
    code = f"import json, sys, {', '.join(modules)}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=120, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def behind(names):
    return {n for n in names if any(n == f or n.startswith(f"{f}.") for f in FENCED)}


def test_every_module_of_the_runtime_loads_neither_torch_nor_what_is_fenced():
    assert "moexray.runtime.engines.transformers" in MODULES
    names = loaded(*MODULES)
    assert behind(names) == set()
    assert "torch" not in names
    assert "transformers" not in names


def test_the_front_door_loads_next_to_nothing():
    version = {"moexray.core", "moexray.core.version"}
    assert {n for n in loaded("moexray.runtime") if n.startswith("moexray")} == {"moexray", "moexray.runtime"} | version


def test_putting_a_policy_in_loads_nothing_that_is_fenced():
    """The imports inside functions: a model is made, a policy of each kind put over it, and run."""
    pytest.importorskip("transformers")
    code = """
import json, sys
from tiny_models import tiny, tokens
model = tiny("mixtral")
before = set(sys.modules)
from moexray.runtime.policies import POLICIES
from moexray.runtime.router import attach
for name in (*POLICIES, "capacity:mode=reroute,factor=0.5", "salted:ties_only=true"):
    with attach(model, name) as handle:
        assert handle.attached
        model(tokens())
        assert handle.guard.figures().fallbacks == 0
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    tests = str(Path(__file__).resolve().parents[1])
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{code}"],
                          capture_output=True, encoding="utf-8", timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = set(json.loads(done.stdout.splitlines()[-1]))
    assert "moexray.runtime.router" in names
    assert behind(names) == set()


def test_engines_are_named_in_their_adapters_only():
    word = re.compile(r"vllm|sglang|transformers", re.IGNORECASE)
    found = [
        f"{path.relative_to(RUNTIME)}:{number}"
        for path in sorted(RUNTIME.rglob("*.py"))
        if "engines" not in path.relative_to(RUNTIME).parts
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if word.search(line)
    ]
    assert found == []

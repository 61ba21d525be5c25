"""What the text path loads: the answer to one OOM line must not wait for a data-frame library.

The times themselves are figures of `make bench`; here only the modules count, so a busy machine
cannot fail it.
"""

import json
import subprocess
import sys

import pytest

HEAVY = {"polars", "numba", "numpy", "torch", "jinja2"}

# Runs the command line as the console script does, then writes what was loaded on the last line.
AS_SCRIPT = """
import json, sys
from moexray.faces.cli.main import main
sys.argv = ["moexray", *sys.argv[1:]]
code = 0
try:
    main()
except SystemExit as stop:
    code = stop.code
sys.stdout.flush()
print(json.dumps({"code": code, "modules": sorted(sys.modules)}), file=sys.stderr)
"""

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 546.00 MiB. GPU 0 has a total"
    " capacity of 79.15 GiB of which 312.19 MiB is free. Process 4242 has 78.84 GiB memory in use."
    " Of the allocated memory 74.31 GiB is allocated by PyTorch, and 3.72 GiB is reserved by"
    " PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n"
)


def _python(*args, text=""):
    return subprocess.run(
        [sys.executable, *args], input=text, capture_output=True, encoding="utf-8", timeout=120, check=False
    )


def _moexray(*args, text=""):
    """(what the command printed, exit code, heavy modules it loaded)."""
    done = _python("-c", AS_SCRIPT, *args, text=text)
    assert done.stderr.strip(), f"died: {done.returncode}"
    try:
        last = json.loads(done.stderr.splitlines()[-1])
    except ValueError:
        pytest.fail(done.stderr)
    return done.stdout, last["code"], HEAVY.intersection(last["modules"])


def test_import_is_light():
    done = _python(
        "-c", "import moexray, sys, json; print(json.dumps(sorted(sys.modules)))"
    )
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert HEAVY & loaded == set()
    assert "click" not in loaded


@pytest.mark.parametrize("args", [("--version",), ("--help",)])
def test_first_screens_are_light(args):
    out, code, heavy = _moexray(*args)
    assert code in (0, None)
    assert out.strip()
    assert heavy == set()


@pytest.mark.parametrize("output", ["text", "json"])
def test_an_oom_line_loads_no_data_frames(output):
    out, code, heavy = _moexray("diagnose", "-", "--format", output, text=OOM)
    assert code == 1
    assert "mem." in out
    assert heavy & {"polars", "numba", "torch"} == set()


def test_version_is_the_package_s():
    import moexray

    out, _, _ = _moexray("--version")
    assert moexray.__version__ in out

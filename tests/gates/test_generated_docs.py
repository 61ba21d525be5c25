"""Pages made from the code are fresh. They are made in a process of their own: click keeps the help option
of a command as it was first shown, which another test may have done without its group."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKE = "import runpy, sys; sys.stdout.write(runpy.run_path(sys.argv[1])[sys.argv[2]]())"


@pytest.mark.parametrize("name", ["tables", "verdicts", "metrics", "commands"])
def test_page_is_fresh(name):
    made = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", MAKE, str(ROOT / "docs" / "generate.py"), name],
        capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    page = ROOT / "docs" / f"{name}.md"
    assert page.read_text("utf-8") == made.stdout, "run: python docs/generate.py"

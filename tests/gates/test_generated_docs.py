"""Pages made from the code are fresh."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)


@pytest.mark.parametrize("name", ["tables", "verdicts", "commands"])
def test_page_is_fresh(name):
    page = ROOT / "docs" / f"{name}.md"
    assert page.read_text("utf-8") == getattr(generate, name)(), "run: python docs/generate.py"

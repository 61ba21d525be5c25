"""Runs at the start of each Python of a recorded program: the site's own module of this name, then ours.

It loads nothing of moexray where MOEXRAY_HOME is not set, and whatever fails here fails silently: the
program must start as if we were not there.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

__all__: list[str] = []


class _Home:
    """Finds moexray, and nothing else, in a Python that has it not."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        if name != "moexray":
            return None
        folder = Path(os.environ["MOEXRAY_HOME"], name)
        return importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


def _run_the_sites_own(here: str) -> None:
    """Ours hides a sitecustomize of the site: it runs as if our folder were not on the path."""
    ours, path = sys.modules.pop("sitecustomize", None), list(sys.path)
    sys.path[:] = [p for p in path if os.path.realpath(p or ".") != here]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as why:
        if why.name != "sitecustomize":
            raise
    finally:
        if ours is not None and "sitecustomize" not in sys.modules:
            sys.modules["sitecustomize"] = ours


if __name__ == "sitecustomize" and "MOEXRAY_HOME" in os.environ:
    try:
        _run_the_sites_own(os.path.realpath(os.path.dirname(__file__)))  # noqa: PTH120 - as little as possible
    finally:
        with contextlib.suppress(Exception):
            sys.meta_path.append(_Home())
            importlib.import_module("moexray.runtime.inject").begin()

"""Recording in a program that does not know of us: what `moexray record -- CMD` has in CMD's Python.

`environment` gives the variables: a folder on PYTHONPATH whose sitecustomize module calls `begin` in every
Python of CMD, workers included. `begin` imports nothing of the program's: it waits until an engine is
imported, then has its models recorded (see `engines.ON_IMPORT`). Nothing is written into site-packages, and
CMD without Python, torch or an engine runs as ever. python -I, -E and -S take no part.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moexray.runtime.engines import ON_IMPORT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.machinery import ModuleSpec

__all__ = ["ATTACH", "BUNDLE", "begin", "environment"]

ATTACH, BUNDLE = "MOEXRAY_ATTACH", "MOEXRAY_BUNDLE"
HOME = "MOEXRAY_HOME"  # where our package lies, for a Python that does not have it
INJECTED = Path(__file__).with_name("injected")


def environment(before: Mapping[str, str], *, rings: Path, bundle: Path) -> dict[str, str]:
    """The environment of a program that is to be recorded.

    Args:
        before: What it would have.
        rings: Where its rings shall lie.
        bundle: Where files of its own (allocations) shall lie.
    """
    from moexray.runtime.recorder import FOLDER_VARIABLE

    paths = [str(INJECTED), *filter(None, before.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **before, "PYTHONPATH": os.pathsep.join(paths), ATTACH: "1", FOLDER_VARIABLE: str(rings),
        BUNDLE: str(bundle), HOME: str(Path(__file__).parents[2]),
    }  # fmt: skip


def begin() -> None:
    """Waits for an engine to be imported; safe twice."""
    if not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


class _Watch:
    """A finder that finds nothing itself: it adds a call behind the import of an engine's module."""

    def __init__(self) -> None:
        self._pending = dict(ON_IMPORT)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec that others find, with our call behind its execution."""
        del path, target
        register = self._pending.pop(name, None)
        if register is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def run(module: Any) -> None:
            execute(module)
            with contextlib.suppress(Exception):  # the edge of somebody else's program
                called, _, function = register.partition(":")
                getattr(importlib.import_module(called), function)()

        with contextlib.suppress(AttributeError):  # a loader written in C
            spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec

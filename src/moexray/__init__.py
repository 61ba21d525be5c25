"""An X-ray for Mixture-of-Experts inference: what broke, with evidence, and what to change.

In a notebook: `run = moexray.read("incident/")`, `run.tables["routing"]`, `moexray.diagnose(run)`,
`moexray.whatif(run, "memory")`, `moexray.compare(before, after)`; see docs/api.md.
In a serving process: `moexray.attach(model)`; see docs/attach.md.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from moexray.core.version import __version__

__all__ = [
    "Answer", "Diagnosis", "MoexrayError", "Run", "__version__", "attach", "check", "compare", "diagnose",
    "read", "whatif",
]  # fmt: skip

# These two are packages of moexray, too: as modules that can be called they are both.
_CALLED = ("diagnose", "whatif")


def _notebook() -> Any:
    """Where the names live; loaded on first use (polars alone takes 0.25 s)."""
    return importlib.import_module(".faces.notebook", __name__)


class _Called(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(_notebook(), self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        """The import system hands over each sub-package here, whoever imported it."""
        if name in _CALLED and isinstance(value, ModuleType):
            value.__class__ = _Called
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _CALLED:
        return importlib.import_module(f".{name}", __name__)
    if name == "attach":  # into a serving process: nothing of the rest is loaded
        return importlib.import_module(".runtime.attach", __name__).attach
    if name in __all__:
        return getattr(_notebook(), name)
    raise AttributeError(f"module 'moexray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

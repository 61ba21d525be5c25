"""An unpickler for untrusted files: containers and numbers only, nothing is imported or called."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any, NoReturn

from moexray.core.errors import ReadError, UnsafeError

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["load"]


class _Refusing(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise UnsafeError(f"the pickle asks for {module}.{name}")


def load(source: Source, out: Reading) -> Any:
    """The object of a pickle.

    Raises:
        UnsafeError: an opcode names a global.
        ReadError: the pickle is damaged.
    """
    try:
        return _Refusing(io.BytesIO(source.data())).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError) as why:
        raise ReadError(f"the pickle is damaged ({why})", where=source.path) from why

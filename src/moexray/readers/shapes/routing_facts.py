"""What goes with arrays: numbers and labels of the same file, as facts of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moexray.core.errors import LimitError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Facts", "batch_facts", "check_cells", "labels", "layer_ids", "layer_text", "stray_id",
           "whole_labels"]  # fmt: skip

FAR = 8  # times beyond the other ids, and their number, is far
FEWEST = 4  # other ids that tell how far ids go
MAX_CELLS = 32 << 20  # numbers in one array that is laid out here: 256 MiB


def check_cells(*shape: int) -> None:
    """Refuses labels so thin that their array would not fit into memory.

    Raises:
        LimitError: more than MAX_CELLS numbers.
    """
    if math.prod(shape) > MAX_CELLS:
        sides = " x ".join(map(str, shape))
        raise LimitError(f"its counts would fill an array of {sides}", hint="give fewer steps at once")



@dataclass(slots=True)
class Facts:
    """Numbers and labels that go with arrays.

    Args:
        numbers: Canonical configuration numbers (see routing_words.config_key).
        steps: Labels of steps; None where there are none.
        layers: Labels of layers; None where there are none.
        layout: The layout as noted to the user.
        holes: Rows of nothing but NaN are cells that were not recorded.
        extra: Further facts for the batch: arm, engine, seed, ordered, sum_over_ranks.
    """

    numbers: dict[str, float] = field(default_factory=dict)
    steps: np.ndarray | None = None
    layers: np.ndarray | None = None
    layout: str = "arrays"
    holes: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def whole(self, key: str) -> int | None:
        """A number that is a whole one; None where it is unknown or broken."""
        value = self.numbers.get(key)
        return int(value) if value is not None and float(value).is_integer() else None


def stray_id(known: np.ndarray) -> int | None:
    """An id that is alone and far beyond others that fill the numbers from 0; None if there is none.

    Args:
        known: Distinct ids, ascending.
    """
    others = len(known) - 1
    if others < FEWEST:
        return None
    end, last = int(known[-2]) + 1, int(known[-1])
    return last if last > FAR * max(end, others) and others >= 0.75 * end else None


def layer_text(label: int) -> str:
    """A layer for a message, with a comma behind it; nothing where the file names none (-1)."""
    return f"layer {label}, " if label >= 0 else ""


def batch_facts(facts: Facts) -> dict[str, Any]:
    """The facts that a batch carries as attributes."""
    keys = ("ep_size", "top_k", "tokens", "tokens_per_step", "num_experts", "slots_per_rank", "rank",
            "dp_size", "tp_size", "window_size", "expert_bytes", "bytes_per_token")
    known = {k: facts.numbers[k] for k in keys if k in facts.numbers}
    return {k: int(v) if v.is_integer() else v for k, v in known.items()} | facts.extra


def labels(given: np.ndarray | None, size: int) -> np.ndarray:
    """The labels of the file if they fit, else 0, 1, ..."""
    import numpy as np

    if given is not None and len(given) == size and (known := whole_labels(given)) is not None:
        return known
    return np.arange(size, dtype=np.int64)


def whole_labels(given: np.ndarray) -> np.ndarray | None:
    """Labels as integers; None where one is no whole number, or beyond 2**53 (integers: 2**62)."""
    import numpy as np

    given = np.asarray(given)
    if given.dtype.kind in "iub":
        known = given.size == 0 or -(1 << 62) < int(given.min()) <= int(given.max()) < 1 << 62
    else:
        values = given.astype(float)
        known = bool((np.abs(values) < 1 << 53).all() and (values == np.floor(values)).all())
    return given.astype(np.int64) if known else None


def layer_ids(facts: Facts, size: int) -> np.ndarray:
    """Labels of layers; -1 for a single layer that the file does not name."""
    import numpy as np

    if facts.layers is not None and len(facts.layers) == size:
        return labels(facts.layers, size)
    if size == 1:
        return np.array([-1], np.int64)
    return np.arange(size, dtype=np.int64) + (facts.whole("first_layer") or 0)

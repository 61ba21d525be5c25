"""NAME[:key=value,...]: a router policy with its options, as the command line and `runtime` take it."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

from moexray.algorithms.routers import MODES, PRECISIONS
from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["split_policy"]

FIXED = ("logits", "k", "fill", "hold")  # parameters of a policy that are no options
LARGEST = {int: 2**63 - 1, float: 1e9}  # seeds are 64-bit; noise and margins stay within float32
SMALLEST = 1e-6  # of what must be above 0: scores are divided by it


def split_policy(
    text: str, policies: Mapping[str, Callable[..., Any]], what: str = "--policy"
) -> tuple[str, dict[str, Any]]:
    """The name and the options, each checked against the policy's own keyword parameters.

    Args:
        text: "salted:ties_only=true,seed=7".
        policies: Name -> what takes the options.
        what: The text's name in messages.

    Raises:
        UsageError: unknown name or option, or a value that does not fit; the message lists what does.
    """
    name, _, rest = text.partition(":")
    if name not in policies:
        raise UsageError(f"{what} {text}: no policy {name!r}", hint=f"one of {', '.join(policies)}")
    parameters = inspect.signature(policies[name]).parameters
    known = {key: p.default for key, p in parameters.items() if key not in FIXED}
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in known:
            raise UsageError(
                f"{what} {text}: {name} has no option {key!r}",
                hint=f"its options: {', '.join(known) or 'none'}",
            )
        options[key] = _value(f"{what} {text}: {key}={value!r}", key, value, known[key])
    return name, options


def _value(said: str, key: str, value: str, default: Any) -> Any:
    choices: tuple[str, ...] = ()
    if isinstance(default, bool):
        choices = ("true", "false")
    elif key == "mode":
        choices = MODES
    elif key == "precision":
        choices = ("fp32", "int8", *PRECISIONS)
    if choices:
        if value not in choices:
            raise UsageError(said, hint=f"one of {', '.join(choices)}")
        return value == "true" if isinstance(default, bool) else value
    try:
        number = type(default)(value)
    except ValueError:
        number = math.nan
    above = key in ("value", "factor")
    least = 1 if key == "batch" else 0
    low, high = SMALLEST if above else least, LARGEST[type(default)]
    if not math.isfinite(number) or not low <= number <= high:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise UsageError(said, hint=f"{kind} from {low} to {high:g}")
    return number

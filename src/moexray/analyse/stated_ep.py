"""The EP size as a launch line or the rank lines of a log state it; without numpy, for the text path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moexray.core.run import Run

__all__ = ["launched_ep", "logged_ep", "stated_ep"]

_EP_OPTIONS = ("ep_size", "expert_parallel_size", "moe_ep_size", "ep", "moe_expert_parallel_size")


def stated_ep(run: Run) -> tuple[int | None, str]:
    """The EP size and where it stands."""
    if launched := launched_ep(run):
        return launched, "launch line"
    if logged := logged_ep(run):
        return logged, "EP ranks in the log"
    return None, ""


def launched_ep(run: Run) -> int | None:
    """EP size of a launch line: the option itself, or tensor x data parallel where EP is switched on."""
    options = {row["key"]: row["value"] for row in run.rows("launch")}
    for key in _EP_OPTIONS:
        if str(options.get(key, "")).isdigit() and int(options[key]) > 1:
            return int(options[key])
    deepep = "deepep" in str(options.get("moe_a2a_backend", "")) or "enable_deepep_moe" in options

    def size(*keys: str) -> int:
        return next((int(options[k]) for k in keys if str(options.get(k, "")).isdigit()), 1)

    tp, dp = size("tensor_parallel_size", "tp_size", "tp"), size("data_parallel_size", "dp_size", "dp")
    found = tp * dp if _switched_on(options) else tp if deepep else 1
    return found if found > 1 else None


def _switched_on(options: dict[str, object]) -> bool:
    return str(options.get("enable_expert_parallel", "")).lower() in ("true", "1")


def logged_ep(run: Run) -> int | None:
    """EP ranks that a log numbers (vLLM: "... TP rank 0, EP rank 3"), if none is missing.

    The engine numbers them for tensor-parallel experts, too: they count only where expert parallelism is
    switched on or experts are balanced over ranks.
    """
    fields = [(str(row["kind"]), row["fields"]) for row in run.rows("log") if isinstance(row["fields"], dict)]
    ranks = {int(f["ep"]) for kind, f in fields if kind == "engine.rank" and f.get("ep") is not None}
    if len(ranks) < 2 or ranks != set(range(len(ranks))):
        return None
    options = {row["key"]: row["value"] for row in run.rows("launch")}
    balanced = any(kind.startswith("eplb.") for kind, _ in fields)
    return len(ranks) if balanced or _switched_on(options) else None

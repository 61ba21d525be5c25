"""Writes an incident as a folder, and its truth beside it."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from moexray.verify.incidents import papers
from moexray.verify.incidents.machine import Noise, run
from moexray.verify.incidents.traces import trace
from moexray.verify.incidents.truth import truth

if TYPE_CHECKING:
    from pathlib import Path

    from moexray.verify.incidents.plan import Plan

__all__ = ["make"]

LAUNCH = (
    "vllm serve MODEL --data-parallel-size {ranks} --enable-expert-parallel --gpu-memory-utilization 0.9\n"
)


def make(plan: Plan, folder: Path) -> dict[str, Any]:
    """Writes `folder` and `folder.truth.json`.

    Args:
        plan: What happens.
        folder: Made new; its name says nothing of the cause.

    Returns:
        The truth, as written.
    """
    noise = Noise.of(plan)
    story = run(plan, noise, keep=True)
    hung = any(c.kind == "hang" for c in plan.causes)
    gone = plan.withheld
    lost = plan.guilty[:1] if gone & {"trace", "rank"} else range(plan.ranks if "traces" in gone else 0)
    files: dict[str, Any] = {"logs/server.log": papers.server_log(plan, story)}
    if "launch" not in plan.withheld:
        files["logs/launch.txt"] = LAUNCH.format(ranks=plan.ranks)
    if hung:
        if "dumps" not in plan.withheld:
            files |= {f"flight/{name}": dump for name, dump in papers.dumps(plan, story).items()}
    else:
        if "latency" not in plan.withheld:
            files["latency/itl.csv"] = papers.latency(plan, story)
        for rank in range(plan.ranks):
            if rank not in lost:
                name = f"rank{rank}.pt.trace" if "names" not in gone else f"capture_{chr(97 + rank)}"
                files[f"traces/{name}.json.gz"] = trace(plan, story, rank)
            if not ("rank" in gone and rank in lost):
                files |= {f"memory/{name}": content for name, content in papers.memory(plan, rank).items()}
    if "counts" not in plan.withheld:
        files["routing/expert_counts.npz"] = papers.counts(plan, noise, story)
    if "lines" not in plan.withheld and not hung:
        files["logs/nccl.log"] = papers.nccl_log(plan)
    if "manifest" not in gone:
        files["manifest.json"] = {"schema": "moexray.bundle/1", "made_by": "moexray.verify.incidents",
                                  "ranks": plan.ranks, "files": sorted(files)}  # fmt: skip
    for name, content in files.items():
        _put(folder / name, content)
    answer = truth(plan, noise, story)
    _put(folder.parent / f"{folder.name}.truth.json", answer)
    return answer


def _put(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes):
        text = content if isinstance(content, str) else json.dumps(content)
        content = text.encode()
    path.write_bytes(gzip.compress(content, 1, mtime=0) if path.suffix == ".gz" else content)

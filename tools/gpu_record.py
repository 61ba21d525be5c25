"""Records on one GPU what no public file holds about PyTorch's caching allocator.

    python tools/gpu_record.py OUT              # an idle GPU, under 7 minutes, nothing but torch
    python tools/gpu_record.py OUT --dry-run    # the same flow on CPU tensors

Each step is a process of its own (gpu_steps.py, which must lie beside this file) with its own allocator
setting and time limit. What became of it stands in OUT/record.json; a step that fails does not stop the
others, and a second run does what is missing. README.md beside this file says what each step is for.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

SCHEMA = "moexray.gpu_record/1"
MIB = 1 << 20
SEED = 4  # of those tried, the one whose steps reach most rules
BUDGET_S = 390.0  # for all steps together; the promise is 7 minutes
WORKER = Path(__file__).with_name("gpu_steps.py")
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


class Step(NamedTuple):
    """One process: `work` is a function of gpu_steps.py; `limit_mib` is set as a memory fraction."""

    name: str
    work: str
    conf: str = ""
    limit_mib: int = 0
    seconds: float = 40.0


# Limits are odd, so that they fall between segments, which are multiples of 2 MiB.
STEPS = (
    Step("facts", "facts"),
    Step("default", "scripted"),
    Step("expandable", "scripted", "expandable_segments:True"),
    Step("split", "scripted", "max_split_size_mb:32"),
    Step("rounding", "scripted", "max_split_size_mb:32,max_non_split_rounding_mb:128"),
    Step("roundup", "scripted", "roundup_power2_divisions:4"),
    Step("roundup-list", "scripted", "roundup_power2_divisions:[1:1,4:2,16:8,>:4]"),
    Step("large-segment", "scripted", "large_segment_size_mb:12"),
    Step("large-segment-expandable", "scripted", "large_segment_size_mb:12,expandable_segments:True"),
    Step("limit", "scripted", "", 801),
    Step("limit-expandable", "scripted", "expandable_segments:True", 651),
    Step("limit-split", "scripted", "max_split_size_mb:32", 701),
    Step("collect", "scripted", "garbage_collection_threshold:0.6", 901),
    Step("oom", "running_out", "", 513),
    Step("oom-expandable", "running_out", "expandable_segments:True", 513),
    Step("oom-early", "running_out", "throw_on_cudamalloc_oom:True", 513),
    Step("streams", "streams"),
    Step("streams-expandable", "streams", "expandable_segments:True"),
    Step("graph", "graphs"),
    Step("graph-expandable", "graphs", "expandable_segments:True"),
    Step("pools", "pools"),
    Step("pools-limit", "pools", "", 333),
    Step("oom-device", "running_out"),
    Step("costs", "costs"),
    Step("costs-expandable", "costs", "expandable_segments:True"),
    Step("counters", "counters"),
)


# ---- the scripted sequence: two MoE layers that serve a few requests; bytes only, no arithmetic


class Sequence:
    """Collects (action, key, bytes): "alloc", "free", or "empty_cache"."""

    def __init__(self, seed: int) -> None:
        self.random, self.steps, self.count = random.Random(seed), [], 0

    def alloc(self, size: int) -> int:
        """A new tensor; its key."""
        self.count += 1
        self.steps.append(("alloc", self.count, max(size, 1)))
        return self.count

    def free(self, *keys: int) -> None:
        """The tensors' last references go, in this order."""
        self.steps += [("free", key, 0) for key in keys]

    def layer(self, tokens: int, width: int, experts: int) -> int:
        """Router, permuted tokens, the experts' temporaries; the combined output stays."""
        qkv = self.alloc(tokens * width * 6)
        out = self.alloc(tokens * width * 2)
        self.free(qkv)
        logits, ids = self.alloc(tokens * experts * 4), self.alloc(tokens * 2 * 8)
        permuted = self.alloc(tokens * width * 4)
        self.free(logits)
        shares = [self.random.paretovariate(1.0) for _ in range(experts)]  # few hot experts
        parts = []
        for share in shares:
            mine = round(2 * tokens * share / sum(shares))
            up = self.alloc(mine * width * 11)
            gated = self.alloc(mine * width * 5 + 200)
            self.free(up)
            parts.append(self.alloc(mine * width * 2))
            self.free(gated)
        self.random.shuffle(parts)
        self.free(permuted, *parts, ids)
        return out


def sequence(seed: int = SEED) -> list[tuple[str, int, int]]:
    """The same steps for the same seed, on every machine: 2,000 allocations, about 0.7 GiB in use."""
    s, width, experts = Sequence(seed), 1024, 8
    for _ in range(2 * experts):  # weights: 11 and 5.5 MiB, and a small one
        s.alloc(11 * MIB), s.alloc(11 * MIB // 2), s.alloc(width * 8)
    caches: list[int] = []
    for step in range(32):
        tokens = s.random.choice((s.random.randint(1, 64), s.random.randint(256, 8192)))
        kept = [s.layer(tokens, width, experts) for _ in range(2)]
        caches += [s.alloc(tokens * width * 4) for _ in range(2)]  # keys and values of this request
        words = s.alloc(min(tokens, 512) * 32_000 * 4)
        s.free(*kept, words)
        for _ in range(s.random.choice((0, 1, 4))):  # requests end in any order
            if len(caches) > 6:
                s.free(caches.pop(s.random.randrange(len(caches))))
        if step == 20:
            s.steps.append(("empty_cache", 0, 0))
    return s.steps


# ---- one process per step


def run_step(out: Path, step: Step, *, dry_run: bool, seconds: float) -> dict[str, Any]:
    """Runs a step as a process with its setting; what record.json keeps of it.

    Args:
        out: Folder for its files.
        step: What to do.
        dry_run: On CPU tensors.
        seconds: The process is stopped after so long.

    Returns:
        The step's fields, "status" (done, failed, timeout), "took_s", and its result or "error".
    """
    env = {k: v for k, v in os.environ.items() if k not in ALLOCATOR_VARIABLES}
    env["CUDA_VISIBLE_DEVICES"] = env.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if step.conf:
        env["PYTORCH_CUDA_ALLOC_CONF"] = step.conf
    command = [sys.executable, str(WORKER), str(out), json.dumps(step._asdict()), *["--dry-run"] * dry_run]
    start = time.monotonic()
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode == 0:
            entry = {"status": "done", **json.loads(done.stdout.splitlines()[-1])}
        else:
            entry = {"status": "failed", "error": done.stderr[-2000:] or f"exit {done.returncode}"}
    except subprocess.TimeoutExpired:
        entry = {"status": "timeout", "error": f"stopped after {seconds:.0f} s"}
    return {**step._asdict(), **entry, "took_s": round(time.monotonic() - start, 2)}


def is_done(out: Path, entry: dict[str, Any]) -> bool:
    """Whether an earlier run finished this step and its files are still there."""
    files = entry.get("files", {})
    there = all((out / n).is_file() and (out / n).stat().st_size == f["bytes"] for n, f in files.items())
    return entry["status"] == "done" and there


def begin(out: Path, *, dry_run: bool, force: bool) -> dict[str, Any]:
    """The record to go on with: that of a half-done folder, or a new one.

    Raises:
        ValueError: the folder holds something else; the message says what to do.
    """
    new = {"schema": SCHEMA, "dry_run": dry_run, "steps": {}}
    old = out / "record.json"
    if force or not out.exists() or not any(out.iterdir()):
        out.mkdir(parents=True, exist_ok=True)
        return new
    if not old.is_file():
        raise ValueError(f"{out} holds other files; name a new folder, or --force to write into it")
    record = json.loads(old.read_text("utf-8"))
    if (record.get("schema"), record.get("dry_run")) != (SCHEMA, dry_run):
        raise ValueError(f"{old} is of another kind of run; name a new folder, or --force to begin anew")
    return record


def main(arguments: list[str] | None = None) -> int:
    """The command line. Exit code 0: every step is done, 1: some are not, 2: nothing was begun."""
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("out", type=Path, help="folder to write to; a half-done one is completed")
    p.add_argument("--dry-run", action="store_true", help="on CPU tensors, to try the flow")
    p.add_argument("--force", action="store_true", help="begin anew and write over files")
    p.add_argument("--steps", help="some of: " + ",".join(s.name for s in STEPS))
    p.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all steps (%(default)s)")
    args = p.parse_args(arguments)
    wanted = set(args.steps.split(",")) if args.steps else {s.name for s in STEPS}
    if unknown := wanted - {s.name for s in STEPS}:
        p.error(f"no such step: {', '.join(sorted(unknown))}")
    try:
        record = begin(args.out, dry_run=args.dry_run, force=args.force)
    except (ValueError, OSError) as why:
        print(f"gpu_record: {why}", file=sys.stderr)
        return 2
    end = time.monotonic() + args.budget
    for step in STEPS:
        known = record["steps"].get(step.name)
        if step.name not in wanted | {"facts"} or (known and is_done(args.out, known)):
            continue
        if (left := end - time.monotonic()) < 1:
            print(f"{step.name}: no time left; run again for the rest", file=sys.stderr)
            break
        entry = run_step(args.out, step, dry_run=args.dry_run, seconds=min(step.seconds, left))
        record["steps"][step.name] = entry
        part = args.out / "record.json.part"
        part.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        part.replace(args.out / "record.json")
        last = (entry.get("error") or "").strip().rpartition("\n")[2]
        print(f"{step.name}: {entry['status']}, {entry['took_s']} s {last}", flush=True)
        if step.name == "facts" and entry["status"] != "done":
            print("torch finds no usable CUDA device; --dry-run tries the flow without", file=sys.stderr)
            return 2
    return int(not all(n in record["steps"] and is_done(args.out, record["steps"][n]) for n in wanted))


if __name__ == "__main__":
    sys.exit(main())

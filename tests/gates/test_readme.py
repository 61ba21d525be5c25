"""What README tells you to type works: each command line of its shell blocks is run in a copy.

A block is a shell block if it is fenced as one, or if it is indented and each of its lines starts
with a command. Lines that install, need a GPU, or change the machine are skipped, and say so.
Every line has to work by itself; file names that README invents are stood in for by the bundled incident.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = ("README.md", "README.zh-CN.md", "docs/index.md", "CONTRIBUTING.md")
LIMIT_S = 120  # s for one line, on a busy machine

SHELLS = ("sh", "shell", "bash", "console")
COMMANDS = ("moexray", "make", "pip", "python", "python3", "source", "docker", "torchrun", "vllm", "nvidia-smi")
# What a line holds -> why it is not run here.
LEFT_OUT = {
    r"\bmake (?!help)": "makes ./.venv from a package index",
    r"\bpip\b|\bvenv\b|\buv\b|\bconda\b": "installs",
    r"~/|\bsudo\b": "changes the machine",
    r"(?<!--for )\b(?:vllm|sglang)\b|\btorchrun\b|\bnvidia-smi\b|\bdocker\b|\bcurl\b": "needs an engine or a GPU",
    r"\bmoexray (?:lab run|watch|serve|exporter|record)\b": "runs until stopped, needs an engine, or takes minutes",
}
# A name that README invents -> what stands there in the copy.
STAND_INS = {
    "incident": "examples/incident",
    "snapshots": "examples/incident/memory",
    "traces": "examples/incident/traces",
    "server.log": "examples/incident/logs/server.log",
    "snapshot.pickle": "examples/incident/memory/snapshot_rank0.pickle.gz",
    "before.pickle": "examples/incident/memory/snapshot_rank0.pickle.gz",
    "after.pickle": "examples/incident/memory/snapshot_rank0.pickle.gz",
    "counts.json": "examples/incident/routing/expert_load.json",
}


def _starts_with_a_command(line):
    word = line.split()[0] if line.split() else ""
    return word in COMMANDS or "/bin/" in word or shutil.which(word) is not None


def shell_lines(text):
    """Command lines of the shell blocks of a page: continued lines joined, prompts taken off."""
    fenced = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    blocks = [(kind, body.splitlines()) for kind, body in fenced if kind in SHELLS]
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for found in re.findall(r"(?:^|\n\n)((?: {4}[^\n]*\n)+)", rest):
        lines = [line[4:] for line in found.splitlines()]
        if all(_starts_with_a_command(line) for line in lines):
            blocks.append(("sh", lines))
    for kind, lines in blocks:
        joined = "\n".join(lines).replace("\\\n", " ").splitlines()
        if kind == "console":  # what the command prints stands there, too
            joined = [line[2:] for line in joined if line.startswith("$ ")]
        yield from (line for line in joined if line.strip() and not line.startswith("#"))


def _case(line):
    why = next((reason for what, reason in LEFT_OUT.items() if re.search(what, line)), "")
    return pytest.param(line, marks=pytest.mark.skip(reason=f"{why}: {line}") if why else ())


@pytest.fixture
def copy(tmp_path):
    """A folder with the examples, the invented names, and `moexray` first on the PATH."""
    here = tmp_path / "copy"
    shutil.copytree(ROOT / "examples", here / "examples")
    for name, real in STAND_INS.items():
        (shutil.copytree if (ROOT / real).is_dir() else shutil.copy)(ROOT / real, here / name)
    scores = np.random.default_rng(0).normal(size=(2, 256, 32)).astype(np.float32)
    np.savez(here / "logits.npz", router_logits=scores, top_k=4)
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "moexray").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m moexray "$@"\n')
    (binaries / "moexray").chmod(0o755)
    return here, {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}


def _lines():
    """Every line of all pages, once."""
    return dict.fromkeys(line for page in PAGES for line in shell_lines((ROOT / page).read_text("utf-8")))


@pytest.mark.parametrize("line", [_case(line) for line in _lines()])
def test_a_line_that_a_page_tells_to_type_runs(line, copy):
    folder, environment = copy
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    findings = "moexray diagnose" in line and done.returncode == 1  # 1: it found something
    assert done.returncode == 0 or findings, f"exit {done.returncode}\n{done.stderr}"
    assert "Traceback" not in done.stderr


def test_the_readme_has_commands_that_run():
    assert sum("moexray" in line for line in shell_lines(README)) >= 5


def test_shell_blocks_are_told_from_output():
    page = (
        "text\n\n    moexray explain x   # why\n    tail -n 5 a.log | moexray diagnose -\n\n"
        "    verdict: mem.fragmentation\n\n```sh\nmoexray a \\\n  b\n# a remark\n```\n"
        "```console\n$ moexray c\nverdict: none\n```\n```json\n{}\n```\n"
    )
    assert list(shell_lines(page)) == [
        "moexray a    b",
        "moexray c",
        "moexray explain x   # why",
        "tail -n 5 a.log | moexray diagnose -",
    ]


def test_the_chinese_readme_has_the_same_commands_figures_and_links():
    chinese = (ROOT / "README.zh-CN.md").read_text("utf-8")
    assert list(shell_lines(chinese)) == list(shell_lines(README))
    blocks = [re.findall(r"(?:^|\n\n)((?: {4}[^\n]*\n)+)", page) for page in (README, chinese)]
    assert blocks[0] == blocks[1]
    numbers = [sorted(re.findall(r"(?<![\w./-])\d+(?:\.\d+)?", re.sub(r"^ {4}.*$", "", page, flags=re.MULTILINE))) for page in (README, chinese)]
    assert numbers[0] == numbers[1]
    links = [set(re.findall(r"\]\(([^)]+)\)", page)) - {"README.md", "README.zh-CN.md"} for page in (README, chinese)]
    assert links[0] == links[1]

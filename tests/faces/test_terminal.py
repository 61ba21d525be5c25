"""`diagnose` on a terminal: no wider than it, and the line of progress is gone when the verdict comes."""

import json
import os
import pty
import re
import struct
import subprocess
import sys
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pytest

from moexray.faces.cli.screen import WIDTH, as_text

INCIDENT = Path(__file__).resolve().parents[2] / "examples" / "incident"


def on_terminal(columns, *args):
    """What is left on the screen: each line after its last return and erasure."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    child = subprocess.Popen([sys.executable, "-m", "moexray", *map(str, args)], stdin=theirs, stdout=theirs,
                             stderr=theirs, env=env)  # fmt: skip
    os.close(theirs)
    out = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        out += chunk
    os.close(ours)
    child.wait(60)
    raw = out.decode().replace("\r\n", "\n")
    return raw, [re.split("\r\x1b\\[K", line)[-1] for line in raw.split("\n")]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_lines_fit_the_terminal_and_the_verdict_stands_alone(columns):
    raw, lines = on_terminal(columns, "diagnose", INCIDENT)
    assert "reading " in raw
    assert lines[0].startswith("verdict: ")
    assert max(map(len, lines)) <= min(columns, WIDTH)
    shown = re.findall("reading [^\r\n\x1b]*", raw)
    assert max(map(len, shown)) < columns


@pytest.mark.parametrize("args", [
    ("timeline", INCIDENT / "traces"), ("routing", INCIDENT / "routing"), ("compare", INCIDENT, INCIDENT),
    ("memory", INCIDENT / "memory"), ("inspect", INCIDENT), ("explain", "mem.fragmentation"),
], ids=lambda a: a[0])  # fmt: skip
def test_every_command_breaks_its_lines_between_words(args):
    _, lines = on_terminal(80, *args)
    piped = subprocess.run([sys.executable, "-m", "moexray", *map(str, args)], capture_output=True, text=True, check=False)
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).split() == piped.stdout.split()
    assert "\n".join(lines).count("\n") >= piped.stdout.count("\n")


def test_json_keeps_its_lines():
    raw, _ = on_terminal(60, "routing", INCIDENT / "routing", "--format", "json")
    assert json.loads(raw)["schema"] == "moexray.routing/1"


def test_an_error_stands_alone_too(tmp_path):
    _, lines = on_terminal(80, "diagnose", INCIDENT, "--report", tmp_path / "no" / "r.html")
    assert lines[0].startswith("error: ")


def test_colours_and_other_commands_of_the_terminal_are_not_used():
    raw, _ = on_terminal(80, "diagnose", INCIDENT)
    assert set(re.findall("\x1b[^a-zA-Z]*[a-zA-Z]", raw)) <= {"\x1b[K"}


def test_words_stay_the_same_at_every_width():
    finding = {
        "id": "a.b", "severity": "warn", "confidence": 0.9, "claim": "word " * 60, "subject": {}, "evidence": [],
        "implied_by": [], "settle_with": ["x " * 60], "remedies": [],
    }  # fmt: skip
    document = {"verdict": "a.b", "findings": [finding], "inputs": [], "skipped": []}
    texts = [as_text(document, width=width) for width in (40, 80, WIDTH)]
    assert len({" ".join(t.split()) for t in texts}) == 1
    assert [max(map(len, t.splitlines())) <= w for t, w in zip(texts, (40, 80, WIDTH), strict=True)] == [True] * 3

"""The picture of the report can be made anew, and the one in the README has its size."""

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 300_000


def size(file):
    return struct.unpack(">II", file.read_bytes()[16:24])


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed (apt-get install chromium)")
def test_the_picture_is_made_anew(tmp_path):
    picture = tmp_path / "report.png"
    subprocess.run([sys.executable, str(ROOT / "tools" / "report_picture.py"), str(picture)], check=True, timeout=120)
    kept = ROOT / "docs" / "images" / "report.png"
    assert size(picture) == size(kept)
    assert 50_000 < picture.stat().st_size < MOST_BYTES
    assert kept.stat().st_size < MOST_BYTES

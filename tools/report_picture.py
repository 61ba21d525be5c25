"""The picture of the report in the README: the top of the report of the bundled incident, light, as a PNG.

    python tools/report_picture.py            # writes docs/images/report.png; needs chromium and moexray
    python tools/report_picture.py FILE.png   # ... elsewhere

Make it anew when the upper part of the report changes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "report.png"
SIZE = "1240,1282"  # pixels
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking",
    "--disable-component-update", "--no-first-run", "--blink-settings=preferredColorScheme=1",
    "--virtual-time-budget=4000",
)  # fmt: skip


def main(picture: Path) -> None:
    """Diagnoses the incident, opens the report, takes the picture."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("chromium is needed (apt-get install chromium)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        report = Path(folder) / "report.html"
        diagnose = [sys.executable, "-m", "moexray", "diagnose", "examples/incident", "--fail-on", "never"]
        subprocess.run([*diagnose, "--report", report], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        places = (f"--user-data-dir={folder}/profile", f"--window-size={SIZE}", f"--screenshot={picture}")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([chromium, *FLAGS, *places, report.as_uri()], check=True, **quiet)
    print(f"written: {picture}, {picture.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else PICTURE)

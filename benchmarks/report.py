"""The report in a browser: 200,000 points and 200,000 spans; size, time to the first drawing, time of a zoom.

    python benchmarks/report.py          needs chromium

A zoom is a key on the timeline; its time ends with the second frame after it. Bars: a zoom below 200 ms, the
page below 300 kB beside its data.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from browser import CHROMIUM, page
from moexray.faces.report import render

COUNT = 200_000
BAR_MS, BAR_BYTES = 200, 300_000
ZOOM = """new Promise((done) => {
  const canvas = document.querySelector('#timeline canvas');
  canvas.focus();
  const begin = performance.now();
  canvas.dispatchEvent(new KeyboardEvent('keydown', { key: '%s', bubbles: true }));
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begin)));
})"""


def main() -> None:
    """Renders, opens, zooms and prints."""
    if CHROMIUM is None:
        sys.exit("chromium is not installed")
    spans = [
        {"rank": i % 8, "lane": "comm" if i % 3 else "compute", "start_s": i * 1e-4,
         "dur_s": 5e-5 + i % 7 * 1e-5, "kind": "comm" if i % 3 else "compute", "name": f"kernel {i % 50}"}
        for i in range(COUNT)
    ]  # fmt: skip
    line = {"name": "step time", "unit": "s", "x_unit": "step", "x": list(range(COUNT)),
            "y": [0.01 + i % 97 * 1e-4 for i in range(COUNT)]}  # fmt: skip
    html = render({"findings": [], "series": [line], "spans": spans})
    empty = len(render({}).encode())
    data = len(re.search(r'id="data">(.*?)</script>', html, re.DOTALL).group(1))
    whole = len(html.encode())
    print(f"page {empty / 1e3:.0f} kB without data, {whole / 1e3:.0f} kB with {data / 1e3:.0f} kB of data")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "report.html"
        file.write_text(html, encoding="utf-8")
        with page(f"{folder}/profile") as tab:
            tab.open(file.as_uri())
            tab.wait("document.documentElement.dataset.charts === 'drawn'")
            first = tab.run("performance.now()")
            zooms = [tab.run(ZOOM % key) for key in "++++----+++0" * 2]
    worst, middle = max(zooms), median(zooms)
    print(f"drawn {first:.0f} ms after opening; a zoom {middle:.0f} ms in the median, {worst:.0f} ms at most")
    print(json.dumps({"zoom_ms_median": middle, "zoom_ms_max": worst, "bytes_without_data": empty}))
    sys.exit(middle > BAR_MS or empty > BAR_BYTES)


if __name__ == "__main__":
    main()

"""The report in a real browser: Debian's chromium, headless, without a network."""

import json
import re
import shutil
import struct
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from faces.test_report import SAMPLE, hostile_document
from moexray.faces.numbers import human
from moexray.faces.report import render

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--virtual-time-budget=4000",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"
)


def browse(tmp_path: Path, html: str, *flags: str) -> str:
    page = tmp_path / "report.html"
    page.write_text(html, encoding="utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def drawn(dom: str) -> list[str]:
    assert 'data-errors="0"' in dom, re.search(r'id="errors".{0,500}', dom, re.DOTALL)
    assert 'data-charts="drawn"' in dom
    return re.findall(r'data-chart="(\w+)"[^>]*data-drawn="true"', dom)


def big_document():
    layers, experts, ranks = range(58), range(256), range(300)
    return {
        "findings": [],
        "series": [{"name": "n", "unit": "s", "x_unit": "s", "x": list(range(90_000)), "y": [i % 97 for i in range(90_000)]}],
        "spans": [{"rank": r, "lane": "s", "start_s": i, "dur_s": 0.5, "kind": "comm"} for r in ranks for i in range(20)],
        "balance": [{"layers": list(layers), "axis": "expert", "values": [[i * j % 97 for i in experts] for j in layers]}],
        "waits": [{"rank": rank, "late_s": rank / 100, "waited_s": 1} for rank in ranks],
        "memory_map": [{"kinds": ["live", "stuck"], "segments": [{"bytes": 2**21} for _ in range(2000)],
                        "runs": [[i // 8, 2**18, i % 2, -1] for i in range(16_000)]}],
    }  # fmt: skip


@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_all_charts_are_drawn_without_an_error(tmp_path, scheme):
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    dom = browse(tmp_path, render(sample), "--dump-dom", f"--blink-settings=preferredColorScheme={scheme}")
    assert drawn(dom) == ["chain", "ledger", "map", "timeline", "series", "series", "series", "balance", "waits"]
    assert dom.count("<canvas") == 6
    assert dom.count('class="copy"') == dom.count('aria-label="Copy ') > 3


@pytest.mark.parametrize("make", [hostile_document, big_document, dict])
def test_odd_documents_are_drawn_without_an_error(tmp_path, make):
    document = make()
    dom = browse(tmp_path, render(document), "--dump-dom")
    assert bool(drawn(dom)) is bool(document)


def test_the_policy_stops_a_script_that_is_not_ours(tmp_path):
    html = render({}).replace("</body>", "<script>document.title = 'owned'</script></body>")
    dom = browse(tmp_path, html, "--dump-dom")
    assert "<title>no finding" in dom
    assert 'data-errors="1"' in dom
    assert "blocked by policy: script-src-elem inline" in dom


def test_the_charts_speak_the_same_units_as_the_text(tmp_path):
    values = [
        (value * 10.0**power, unit)
        for power in range(-9, 13)
        for value in (0, 1, 1.37, 9.996, -5)
        for unit in ("bytes", "s", "ratio", "count", "tokens")
        if power >= {"bytes": 1, "s": -9}.get(unit, -3)  # below, exponents are written otherwise
    ]
    tools = resources.files("moexray.faces.report").joinpath("assets/tools.js").read_text(encoding="utf-8")
    script = (
        f"const all = {json.dumps(values)}; document.title = all.map((v) => Tools.human(...v)).join('|');"
    )
    dom = browse(
        tmp_path, f"<meta charset=utf-8><title></title><script>{tools}{script}</script>", "--dump-dom"
    )
    spoken = re.search(r"<title>(.*?)</title>", dom, re.DOTALL).group(1).split("|")
    assert spoken == [human(*value) for value in values]


def without_policy(html: str, script: str) -> str:
    """The page with a script of the test's own at its end."""
    html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    return html.replace("</body>", f"<script>{script}</script></body>")


KEYS = """
  const press = (target, ...keys) => keys.forEach((key) =>
    target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })));
  const at = (name) => document.querySelector(`[data-chart=${name}]`);
  press(at("timeline").querySelector("canvas"), "+", "ArrowRight", "-", "0", "ArrowLeft");
  press(at("balance").querySelector("canvas"), ...Array(18).fill("ArrowDown"), "ArrowRight", "ArrowRight");
  press(at("map").querySelector("canvas"), ...Array(5).fill("ArrowRight"));
  at("map").querySelector("[data-by=site]").click();
  press(at("series").querySelector(".plot"), "ArrowRight", "ArrowRight", "ArrowRight");
  location.hash = "#f3-e1";
  setTimeout(() => { document.title = [
    at("balance").querySelector("[data-readout]").textContent,
    at("series").querySelector("[data-readout]").textContent,
    at("map").querySelector("[data-readout]").textContent + at("map").querySelector("[data-legend]").textContent,
    document.getElementById("f3").open].join(" | "); }, 500);
"""


def test_keys_read_the_charts_and_links_open_what_is_folded(tmp_path):
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    dom = browse(tmp_path, without_policy(render(sample), KEYS), "--dump-dom")
    drawn(dom)
    balance, series, memory, opened = re.search(r"<title>(.*?)</title>", dom, re.DOTALL).group(1).split(" | ")
    assert balance == "layer 17, rank 2: 271,544 tokens, 2.31 of the row's mean, balancedness 0.43"
    assert series.startswith("step 2: 1")
    assert series.endswith(" ms")
    assert memory.startswith("segment 5: 0x7f0100000000, 512.0 MiB large / default, 76.0 MiB live in 2 blocks, 436.0 MiB stuck")
    assert memory.endswith("loader.py:311 load_weights 2.00 GiBlayers/moe.py:88 dispatch 457.0 MiBfree")
    assert opened == "true"


def test_verdict_and_next_step_fit_the_first_screen(tmp_path):
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    probe = "document.documentElement.dataset.bottom = document.getElementById('verdict').getBoundingClientRect().bottom"
    dom = browse(tmp_path, without_policy(render(sample), probe), "--dump-dom", "--window-size=1280,800")
    assert float(re.search(r'data-bottom="([\d.]+)"', dom).group(1)) < 700


def test_a_screenshot_can_be_taken(tmp_path):
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    shot = tmp_path / "shot.png"
    browse(tmp_path, render(sample), f"--screenshot={shot}", "--window-size=1280,800")
    assert struct.unpack(">II", shot.read_bytes()[16:24]) == (1280, 800)
    assert shot.stat().st_size > 50_000


def test_the_memory_map_zooms_by_key_and_click(tmp_path):
    from browser import page

    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    file = tmp_path / "report.html"
    file.write_text(render(sample), encoding="utf-8")
    shot = "document.querySelector('#memory-map canvas').toDataURL()"
    key = "document.querySelector('#memory-map canvas').dispatchEvent(new KeyboardEvent('keydown', {{key: '{}'}}))"
    with page(tmp_path / "profile") as tab:
        tab.open(file.as_uri())
        tab.wait("document.documentElement.dataset.charts === 'drawn'")
        whole = tab.run(shot)
        tab.run(key.format("+"))
        near = tab.run(shot)
        assert near != whole
        tab.run(key.format("-"))
        tab.run(key.format("0"))
        assert tab.run(shot) == whole
        tab.run("document.querySelector('#memory-map canvas').scrollIntoView({block: 'start'})")
        at = "clientX: canvas.getBoundingClientRect().left + 9, clientY: canvas.getBoundingClientRect().top + 5"
        double = "canvas = document.querySelector('#memory-map canvas');"
        double += "canvas.dispatchEvent(new MouseEvent('dblclick', {shiftKey: %s, " + at + "}))"
        tab.run(double % "false")
        assert tab.run(shot) != whole
        tab.run(double % "true")
        assert tab.run(shot) == whole
        assert tab.errors == []
        assert [r for r in tab.requests if not r.startswith("data:")] == [file.as_uri()]


OVER = """[...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll > *') && !e.closest('svg') &&
    e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map((e) => e.tagName + '.' + e.className)"""
SQUEEZED = """[...document.querySelectorAll('main td:not(.n)')].filter((e) => e.getBoundingClientRect().width &&
    e.getBoundingClientRect().width < 40 && e.textContent.length > 12).map((e) => e.textContent)"""


@pytest.mark.parametrize(("width", "media"), [(360, ""), (420, ""), (800, ""), (1300, ""), (720, "print")])
def test_nothing_runs_over_the_edge_or_is_squeezed_to_a_letter_a_line(tmp_path, width, media):
    import moexray
    from browser import page

    incident = Path(__file__).resolve().parents[2] / "examples" / "incident"
    file = moexray.diagnose(incident).report(tmp_path / "report.html")
    with page(tmp_path / "profile") as tab:
        tab.open(file.as_uri(), width=width)
        tab.wait("document.documentElement.dataset.charts === 'drawn'")
        tab.call("Emulation.setEmulatedMedia", media=media)
        assert tab.run(OVER) == []
        assert tab.run("document.documentElement.scrollWidth") <= width
        assert tab.run(SQUEEZED) == []
        assert tab.errors == []


AXES = [
    ("ratio", [0.1625, 0.1626, 0.1627]), ("ratio", [0.5, 0.525, 0.55]), ("s", [0.0113, 0.01132, 0.01134]),
    ("s", [1.001, 1.002, 1.003]), ("bytes", [2.0**30, 2.0**30 + 2**20, 2.0**30 + 2**21]), ("count", [1, 1.001, 1.002]),
    ("ratio", [-0.001, 0, 0.001]), ("MHz", [1700.125, 1700.25]), ("s", [0, 3600, 7200]), ("s", [0]), ("ratio", []),
]  # fmt: skip


def test_labels_of_an_axis_are_told_apart(tmp_path):
    tools = resources.files("moexray.faces.report").joinpath("assets/tools.js").read_text(encoding="utf-8")
    script = f"document.title = JSON.stringify({json.dumps(AXES)}.map(([unit, all]) => Tools.labels(all, unit)));"
    dom = browse(tmp_path, f"<meta charset=utf-8><title></title><script>{tools}{script}</script>", "--dump-dom")
    labels = json.loads(re.search(r"<title>(.*?)</title>", dom, re.DOTALL).group(1))
    assert all(len(set(one)) == len(values) for one, (_, values) in zip(labels, AXES, strict=True))
    assert labels[1] == ["0.500", "0.525", "0.550"]
    assert labels[2] == ["11.30 ms", "11.32 ms", "11.34 ms"]
    assert labels[8] == ["0 s", "1 h 00 min", "2 h 00 min"]


def test_a_hundredth_of_a_value_is_drawn_as_no_cliff(tmp_path):
    parts = "".join(
        resources.files("moexray.faces.report").joinpath(f"assets/{name}.js").read_text(encoding="utf-8")
        for name in ("tools", "series")
    )
    lines = [(0.1625, 0.1641), (0.99, 1), (1700, 1710), (5, 5), (-5.05, -5), (0, 0), (0, 10), (1, 10), (-3, 9), (7e9, 7e9)]
    script = f"document.title = JSON.stringify({json.dumps(lines)}.map((one) => Series.range(...one)));"
    dom = browse(tmp_path, f"<meta charset=utf-8><title></title><script>{parts}{script}</script>", "--dump-dom")
    for (low, high), (bottom, top) in zip(lines, json.loads(re.search(r"<title>(.*?)</title>", dom, re.DOTALL).group(1)), strict=True):
        assert bottom <= low <= high < top
        drawn_high = (high - low) / (top - bottom)
        assert drawn_high > 0.6 if high - low > 0.5 * abs(high) else drawn_high < 0.1


USE = """(() => {
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  document.querySelectorAll("button").forEach((one) => one.click());
  document.querySelectorAll("[data-chart] canvas, .plot").forEach((one) => {
    one.scrollIntoView();
    for (const key of ["ArrowRight", "ArrowDown", "+", "0"]) one.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    for (const kind of ["mousemove", "dblclick"]) one.dispatchEvent(new MouseEvent(kind, { clientX: 300, clientY: 20, bubbles: true }));
  });
  dispatchEvent(new Event("beforeprint"));
  dispatchEvent(new Event("afterprint"));
  const click = () => new MouseEvent("click", { bubbles: true, cancelable: true });
  document.querySelectorAll("a[href^='#']").forEach((one) => one.dispatchEvent(click()));
})()"""


def of_the_incident(file):
    import moexray

    moexray.diagnose(Path(__file__).resolve().parents[2] / "examples" / "incident").report(file)


def of_the_sample(file):
    file.write_text(render(json.loads(SAMPLE.read_text(encoding="utf-8"))), encoding="utf-8")


def of_hostile_texts(file):
    file.write_text(render(hostile_document()), encoding="utf-8")


@pytest.mark.parametrize("make", [of_the_incident, of_the_sample, of_hostile_texts])
def test_a_report_asks_for_nothing_but_its_file_however_it_is_used(tmp_path, make):
    from browser import page

    file = tmp_path / "report.html"
    make(file)
    with page(tmp_path / "profile") as tab:
        for dark in (False, True):
            tab.open(file.as_uri(), dark=dark)
            tab.wait("document.documentElement.dataset.charts === 'drawn'")
            tab.run(USE)
            tab.call("Emulation.setEmulatedMedia", media="print")
            assert tab.elsewhere(file.as_uri()) == []
        assert file.as_uri() in tab.requests
        assert tab.errors == []


def test_a_page_that_asks_elsewhere_is_seen_to(tmp_path):
    from browser import page

    file = tmp_path / "page.html"
    script = "fetch('http://b.invalid/').catch(() => 0); navigator.sendBeacon('http://c.invalid/', 'x'); new WebSocket('ws://d.invalid/')"
    file.write_text(f'<link rel="preconnect" href="http://e.invalid/"><img src="http://a.invalid/"><script>{script}</script>')
    with page(tmp_path / "profile") as tab:
        tab.open(file.as_uri())
        hosts = {url.split("/")[2][0] for url in tab.elsewhere(file.as_uri())}
        assert hosts == set("abcde")

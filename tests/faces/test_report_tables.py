"""Each table under a chart, read back from the page in a browser, says the numbers of the JSON of the same run."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from browser import CHROMIUM, page
from faces.displayed import Number, differences
from faces.test_report import SAMPLE
from moexray.faces.report import render

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")

INCIDENT = Path(__file__).resolve().parents[2] / "examples" / "incident"
READ = """(() => {
  const text = (node) => node.textContent.replace(/\\s+/g, ' ').trim();
  const all = (node, what) => [...node.querySelectorAll(what)];
  const seen = (cell) => cell.getAttribute('aria-hidden') !== 'true';
  return {
    data: JSON.parse(document.getElementById('data').textContent),
    charts: all(document, '[data-chart]').map((f) => ({
      chart: f.dataset.chart, index: Number(f.dataset.index || 0), titles: all(f, 'h3').map(text),
      legends: all(f, '.legend').map((one) => all(one, 'li').map(text)), notes: all(f, 'p.meta').map(text),
      tables: all(f, 'table').map((t) => [...t.rows].map((r) => [...r.cells].filter(seen).map(text))),
    })),
    findings: [document.querySelector('.verdict'), ...all(document, '#findings details.finding')].map((f) => ({
      id: text(f.querySelector('code')), badge: text(f.querySelector('.badge')), meta: all(f, 'p.meta').map(text).join(' '),
      measure: all(f, 'dl.measure > div').map((d) => [text(d.querySelector('dt')), text(d.querySelector('dd'))]),
    })),
  };
})()"""


def read_back(file, profile):
    with page(profile) as tab:
        tab.open(file.as_uri())
        tab.wait("document.documentElement.dataset.charts === 'drawn'")
        assert tab.errors == []
        return tab.run(READ)


def of_the_incident(folder):
    """The bundled incident through the command: what it prints and the page it writes in one run."""
    file = folder / "report.html"
    command = [sys.executable, "-m", "moexray", "diagnose", str(INCIDENT), "--format", "json", "--report", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout), file


def of_the_double_fault(folder):
    """The sample with what else a document may hold: unknowns, long times, a matrix of ranks, heat of experts."""
    document = json.loads(SAMPLE.read_text(encoding="utf-8"))
    for n, finding in enumerate(document["findings"][:3]):
        text = (f"p50_s=0.01{n}25 p99_s=0.3151 p50_without_s=0.010{n}4 p99_without_s=0.1{n}55 p99_without_low_s=0.1{n}44 "
                f"p99_without_high_s=0.1{n}66 excess_share_ratio=0.{n + 1}13")  # fmt: skip
        finding["evidence"].append({"source": "steps.csv", "where": "600 steps", "text": text})
    heat = [[(layer * 7919 + expert * 104_729) % 9973 for expert in range(64)] for layer in range(5)]
    sent = [[None if a == b == 2 else (a + 1) * 1_234_567.5 * (b + 2) for b in range(4)] for a in range(4)]
    document["balance"] += [
        {"axis": "expert", "source": "c.csv", "unit": "tokens", "columns": list(range(64)), "layers": list(range(5)),
         "values": heat, "balancedness": [sum(row) / 64 / max(row) for row in heat]},
        {"axis": "receiver", "line": "sender", "title": "All-to-all, bytes from rank to rank", "source": "m.csv", "unit": "bytes",
         "columns": list(range(4)), "layers": list(range(4)), "values": sent, "balancedness": []},
    ]  # fmt: skip
    document["gaps"] = [
        {"rank": n, "stream": 7 + n, "step": 1200 + n, "dur_ns": 10 ** (4 + n) + 51, "before": f"gemm_{n}", "unexplained_ns": 5 * n,
         "host": {"allocator": 1_500_000, "python_code": 4_567, "launch": 99, "io": 98}, "device": {"released_by_comm": 3_723 * 10**9}}
        for n in range(4)
    ]  # fmt: skip
    document["whatif"] = {"recommendation": {"conf": "a:1", "line": "X=a:1", "reason": "."}, "settings": [
        {"conf": conf, "recorded": n == 0, "peak_reserved_bytes": 3**(20 + n), "stuck_bytes": 7**(3 + n), "retries": n,
         "ooms": 1000 * n, "min_capacity_bytes": None if n else 2**31 - 1} for n, conf in enumerate(["", "a:1", "b:2"])]}  # fmt: skip
    file = folder / "report.html"
    file.write_text(render(document), encoding="utf-8")
    return document, file


@pytest.fixture(scope="module", params=[of_the_incident, of_the_double_fault], ids=["incident", "double_fault"])
def read(request, tmp_path_factory):
    """(document, what the browser shows of it)."""
    folder = tmp_path_factory.mktemp("report")
    document, file = request.param(folder)
    return document, read_back(file, folder / "profile")


def charts(read, name):
    found = [one for one in read[1]["charts"] if one["chart"] == name]
    assert [one["index"] for one in found] == list(range(len(found)))
    assert found
    return found


def rows_of(chart):
    [rows] = chart["tables"]
    return rows[0], rows[1:]


def since(times, ends=None):
    """What a long time axis is counted from."""
    first, last = min(times), max(ends or times)
    return first if first > 2 * (last - first) else 0.0


def place(fields):
    return ", ".join(f"{name} {fields[name]}" for name in ("device", "rank") if fields.get(name) is not None)


def test_no_table_under_a_chart_is_left_out_here(read):
    document, shown = read
    expected = {"chain": "chain", "effects": "findings", "ledger": "ledger", "map": "memory_map", "trials": "whatif", "timeline": "spans",
                "gaps": "gaps", "series": "series", "balance": "balance", "waits": "waits"}  # fmt: skip
    assert {one["chart"] for one in shown["charts"]} == set(expected)
    assert all(one["tables"] for one in shown["charts"])
    assert all(document[key] for key in expected.values())


def test_findings(read):
    document, shown = read
    assert [f["id"] for f in shown["findings"]] == [f["id"] for f in document["findings"]]
    assert document["verdict"] == shown["findings"][0]["id"]
    for one, finding in zip(shown["findings"], document["findings"], strict=True):
        assert one["badge"].split()[1] == finding["severity"]
        confidence = one["meta"].lower().partition("confidence ")[2].split()[0].rstrip(":")
        assert Number(finding["confidence"], "ratio").is_said_by(confidence)
        said = {"s": "s", "ms": "s", "us": "s", "ns": "s"}.get(finding["unit"], finding["unit"])
        size = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}.get(finding["unit"], 1)
        known = [(name, finding[key]) for name, key in (("measured", "value"), ("limit", "limit")) if finding[key] is not None]
        wanted = [] if said in ("count", "", None) else [(name, Number(value * size, said)) for name, value in known]
        assert differences(one["measure"], wanted) == []


def test_chain(read):
    document, _ = read
    edges = {(step["from"], step["to"]) for step in document["chain"]}
    [chart] = charts(read, "chain")
    drawn = {tuple(row) for row in rows_of(chart)[1]}
    assert drawn <= edges
    reach = set(drawn)
    while more := {(a, d) for a, b in reach for c, d in reach if b == c} - reach:
        reach |= more
    assert edges <= reach  # a step that only cuts a longer way short is not drawn


def retimed(document):
    """(finding, numbers) of the findings with a counterfactual, those without a cause among them first."""
    found = []
    for finding in document["findings"]:
        texts = [e["text"] for e in finding["evidence"] if "p99_without_s=" in e["text"]]
        if texts:
            found.append((finding, {k: float(v) for k, _, v in (pair.partition("=") for pair in texts[-1].split())}))
    ids = {finding["id"] for finding, _ in found}
    return sorted(found, key=lambda pair: bool(ids & set(pair[0]["implied_by"]))), ids


def test_p99_without_each_cause_and_the_shares_of_the_excess(read):
    found, ids = retimed(read[0])
    [chart] = charts(read, "effects")
    bars, table = chart["tables"]
    first = found[0][1]
    names = [f["id"] + ("" if (rank := f["subject"]["rank"]) is None else f" (rank {rank})") for f, _ in found]
    wanted = [["as measured", Number(first["p99_s"], "s")]]
    wanted += [[f"without {f['id']}", Number(n["p99_without_s"], "s")] for f, n in found]
    assert differences(bars[1:], wanted) == []
    keys = ("p50_without_s", "p99_without_s", "p99_without_low_s", "p99_without_high_s")
    wanted = [["nothing (as measured)", Number(first["p50_s"], "s"), Number(first["p99_s"], "s"), "", "", ""]]
    wanted += [
        [name, *(Number(n[key], "s") for key in keys), Number(n["excess_share_ratio"], "share")]
        for name, (_, n) in zip(names, found, strict=True)
    ]
    assert differences(table[1:], wanted) == []
    parts = [(name, n["excess_share_ratio"]) for name, (f, n) in zip(names, found, strict=True) if not ids & set(f["implied_by"])]
    rest = 1 - sum(share for _, share in parts)
    parts += [("unexplained", rest)] if rest > 0.005 else []
    shown = [entry.rsplit(" ", 1) for entry in chart["legends"][0]]
    assert differences(shown, [[name, Number(share, "share")] for name, share in parts]) == []


def test_ledger(read):
    document, _ = read
    [chart] = charts(read, "ledger")
    wanted = [[place(e), e["owner"], Number(e["bytes"], "bytes")] for e in document["ledger"]]
    assert differences([row[:3] for row in rows_of(chart)[1]], wanted) == []
    bills = defaultdict(list)
    for entry in document["ledger"]:
        bills[place(entry) + (f": {entry['of']}" if entry.get("of") else "")].append(entry)
    sums = {name: sum(e["bytes"] for e in entries) for name, entries in bills.items()}
    shown = [title.removesuffix(" accounted for").rsplit(" ", 2) for title in chart["titles"]]
    assert differences([[name, f"{n} {unit}"] for name, n, unit in shown], [[k, Number(v, "bytes")] for k, v in sums.items()]) == []
    for (name, entries), legend in zip(bills.items(), chart["legends"], strict=True):
        cells = [(owner, f"{n} {unit}", f"{share} %") for owner, n, unit, share, _ in (line.rsplit(" ", 4) for line in legend)]
        wanted = [(e["owner"], Number(e["bytes"], "bytes"), Number(e["bytes"] / sums[name], "share")) for e in entries]
        assert differences(cells, wanted) == []


SIZES = ("bytes", "active_bytes", "free_bytes", "stuck_bytes", "largest_free_bytes")
WORDS = {"live": "live", "pending": "live, waits for a stream", "stuck": "stuck: free beside live blocks",
         "cached": "cached: can go back"}  # fmt: skip


def test_memory_map(read):
    document, shown = read
    for chart, device in zip(charts(read, "map"), document["memory_map"], strict=True):
        assert chart["titles"] == [device["name"]]
        segments = sorted(device["segments"], key=lambda s: (-s["stuck_bytes"], -s["bytes"]))
        head, rows = rows_of(chart)
        assert head[2:8] == ["Size", "Live", "Free", "Stuck", "Largest free", "Live blocks"]
        wanted = [
            [f"{s['address']:#x}", *(Number(s[key], "bytes") for key in SIZES), Number(s["live_blocks"], "count"), s["held_by"]]
            for s in segments
        ]
        assert differences([[row[0], *row[2:]] for row in rows], wanted) == []
        total = sum(s["bytes"] for s in segments)
        if len(segments) < device["segments_total"]:
            said = chart["notes"][-1].partition(" segments, ")[2].partition(";")[0].rstrip(".").split(" of ")
            assert differences([said], [[Number(total, "bytes"), Number(device["total_bytes"], "bytes")]]) == []
        else:
            assert total == device["total_bytes"]
        sums = {kind: sum(run[1] for run in device["runs"] if device["kinds"][run[2]] == kind) for kind in WORDS}
        assert sum(sums.values()) == total
        wanted = [[WORDS[kind], Number(size, "bytes")] for kind, size in sums.items() if size]
        legend = [line.rsplit(" ", 2) for line in chart["legends"][0]]
        assert differences([[words, f"{n} {unit}"] for words, n, unit in legend], wanted) == []
        assert [run[:2] for run in shown["data"]["maps"][chart["index"]]["runs"]] == [run[:2] for run in device["runs"]]


def test_settings_that_were_tried(read):
    whatif = read[0]["whatif"]
    [chart] = charts(read, "trials")
    names = []
    for one in whatif["settings"]:
        words = one["conf"] or "PyTorch's defaults"
        best = "► " if one["conf"] == whatif["recommendation"]["conf"] else ""
        names.append(f"as recorded ({words})" if one["recorded"] else best + words)
    wanted = [
        [name, *(Number(s[key], "bytes") for key in ("peak_reserved_bytes", "stuck_bytes", "min_capacity_bytes")),
         Number(s["ooms"], "count"), Number(s["retries"], "count")]
        for name, s in zip(names, whatif["settings"], strict=True)
    ]  # fmt: skip
    assert differences(rows_of(chart)[1], wanted[:15]) == []


def test_timeline(read):
    spans = read[0]["spans"]
    [chart] = charts(read, "timeline")
    start = since([s["start_s"] for s in spans], [s["start_s"] + s["dur_s"] for s in spans])
    wanted = [
        [f"{s.get('who') or 'rank ' + str(s['rank'])} · {s['lane']}", s["name"], s["kind"], Number(s["start_s"] - start, "s"),
         Number(s["dur_s"], "s")]
        for s in spans
    ]  # fmt: skip
    assert differences(rows_of(chart)[1], wanted) == []
    drawn = read[1]["data"]["timelines"][0]["spans"]
    assert [(s[1], s[2], s[4]) for s in drawn] == [(s["start_s"] - start, s["dur_s"], s["name"]) for s in spans]


def test_gaps(read):
    [chart] = charts(read, "gaps")
    rows = rows_of(chart)[1]
    gaps = read[0]["gaps"]
    wanted = [[*(Number(g[key], "count") for key in ("rank", "stream", "step")), Number(g["dur_ns"] / 1e9, "s"),
               Number(g["unexplained_ns"] / 1e9, "s"), g["before"][:56]] for g in gaps]  # fmt: skip
    assert differences([[*row[:4], *row[6:]] for row in rows], wanted) == []
    for row, gap in zip(rows, gaps, strict=True):
        for cell, parts in ((row[4], gap["host"]), (row[5], gap["device"])):
            longest = sorted(((-ns, name) for name, ns in parts.items() if ns), key=lambda part: part[0])[:3]
            for said, (ns, name) in zip(cell.split(", ") if cell else [], longest, strict=True):
                assert said.startswith(name.replace("_", " ") + " ")
                assert Number(-ns / 1e9, "s").is_said_by(said[len(name) + 1 :])


def lines_of(document):
    """Title or "title, label" -> label, unit, x, y, for each line of the document."""
    for s in document["series"]:
        yield s["name"], s.get("label") or "value", s, s["y"]
        for also in s.get("also", []):
            yield s["name"], also["label"], s, also["y"]


def test_series(read):
    document, shown = read
    lines, seen = list(lines_of(document)), 0
    for chart in charts(read, "series"):
        head, rows = rows_of(chart)
        [title], data = chart["titles"], shown["data"]["series"][chart["index"]]
        for column, label in enumerate(head[1:], start=1):
            [(s, y)] = [(s, y) for name, known, s, y in lines
                        if (name, known.lower()) == (title, label.lower()) or name.lower() == f"{title}, {label}".lower()]  # fmt: skip
            origin = 0.0 if s["x_unit"] == "step" else since(s["x"])
            x = [at - origin for at in s["x"]]
            assert (data["x"], data["lines"][column - 1]["y"], data["unit"]) == (x, y, s["unit"])
            step = "step " if s["x_unit"] == "step" else ""
            wanted = [[Number(at, "count" if step else s["x_unit"]), Number(value, s["unit"])] for at, value in zip(x, y, strict=True)]
            assert all(row[0].startswith(step) for row in rows)
            assert differences([[row[0].removeprefix(step), row[column]] for row in rows], wanted) == []
            seen += 1
    assert seen == len(lines)


def test_heat_maps_and_matrices(read):
    document, shown = read
    for chart, matrix in zip(charts(read, "balance"), document["balance"], strict=True):
        head, rows = rows_of(chart)
        scores = [[Number(score, "ratio")] for score in matrix["balancedness"]] or [[] for _ in matrix["layers"]]
        line = matrix.get("line", "layer").capitalize()
        assert head == [line, *["Balancedness"][: len(scores[0])], *(f"{matrix['axis']} {name}" for name in matrix["columns"])]
        wanted = [
            [str(layer), *score, *(Number(cell, "count") for cell in cells)]
            for layer, score, cells in zip(matrix["layers"], scores, matrix["values"], strict=True)
        ]
        assert differences(rows, wanted) == []
        assert shown["data"]["balances"][chart["index"]]["values"] == matrix["values"]


def test_waits(read):
    [chart] = charts(read, "waits")
    waits = sorted(read[0]["waits"], key=lambda w: -w["late_s"])
    wanted = [
        [str(w["rank"]), Number(w["late_s"], "s"), Number(w["waited_s"], "s"), Number(w["collectives"], "count"), w["source"]]
        for w in waits
    ]
    assert differences(rows_of(chart)[1], wanted) == []

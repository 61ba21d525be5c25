"""Charts over time in the report: lines that belong together, captures that do not, what is left out."""

import json
import re

from moexray.faces.report import render
from moexray.faces.report.together import LINES, joined


def data_of(html):
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL).group(1))


def line(name, x=(0, 1, 2), **over):
    return {"name": name, "unit": "s", "x_unit": "step", "x": list(x), "y": [1.0, 2.0, 3.0], "source": f"{name[-1]}.json", "marks": [], **over}


def names(*series):
    return [(s["name"], [s.get("label"), *(a["label"] for a in s.get("also", []))]) for s in joined({"series": list(series)})["series"]]


def test_the_same_quantity_of_several_ranks_is_one_chart():
    got = names(line("step time, rank 0"), line("clock, device 0", unit="MHz"), line("step time, rank 1"), line("clock, device 1", unit="MHz"))
    assert got == [("step time", ["rank 0", "rank 1"]), ("clock", ["device 0", "device 1"])]


def test_what_differs_in_more_than_the_owner_stays_alone():
    base = line("step time, rank 0")
    for other in (
        line("step time, rank 1", x=(0, 1, 3)), line("step time, rank 1", unit="ratio"), line("steps, rank 1"),
        line("step time, rank 1", marks=[{"x": 1, "text": "m"}]), line("step time, rank 1", also=[{"label": "a", "y": [1]}]),
        line("step time"), line("step time, rank 1", label="P99"), line(", rank 1"),
    ):  # fmt: skip
        assert len(names(base, other)) == 2


def test_a_chart_has_no_more_lines_than_colours_and_loses_none():
    got = names(*(line(f"step time, rank {n}") for n in range(2 * LINES + 1)))
    assert [len(labels) for _, labels in got] == [LINES, LINES, 1]
    html = render({"series": [line(f"step time, rank {n}") for n in range(LINES)]})
    [chart] = data_of(html)["series"]
    assert [one["label"] for one in chart["lines"]] == [f"rank {n}" for n in range(LINES)]
    assert f"From 0.json and {LINES - 1} more files." in html


def test_marks_are_numbered_from_left_to_right():
    marks = [{"x": 2, "text": "late"}, {"text": "nowhere"}, {"x": 0, "text": "early"}]
    html = render({"series": [line("n", marks=marks)]})
    assert [(number, x) for x, number in data_of(html)["series"][0]["marks"]] == [(1, 0), (2, 2)]
    told = re.findall(r'class="pin">(\d)</b> ([^:]+): (\w+)', html)
    assert told == [("1", "step 0", "early"), ("2", "step 2", "late"), ("3", "position unknown", "nowhere")]


def span(start, capture=0, **over):
    return {"rank": 0, "lane": "compute", "start_s": start, "dur_s": 0.1, "capture": capture, "source": f"c{capture}/0.json", **over}


def test_each_capture_has_a_timeline_of_its_own():
    html = render({"spans": [span(1e9), span(1e9 + 1), span(1.7e9, 1), span(1.7e9, 1, rank=1, source="c1/1.json")]})
    charts = data_of(html)["timelines"]
    assert [len(c["spans"]) for c in charts] == [2, 2]
    assert [max(s[1] for s in c["spans"]) for c in charts] == [1, 0]
    assert "<h3>c0/0.json</h3>" in html
    assert "<h3>c1/0.json and 1 more file</h3>" in html


def test_many_captures_are_cut_and_the_page_says_so():
    html = render({"spans": [span(n, n) for n in range(20)]})
    assert len(data_of(html)["timelines"]) == 8
    assert "Not drawn: 12 further captures." in html


def test_what_a_timeline_leaves_out_is_said_above_it():
    cut = [{"capture": 0, "ranks": 3, "closed_s": 8e-6}]
    html = render({"spans": [span(0, step=7), span(1, step=9)], "spans_cut": cut})
    assert "Only the slowest steps are drawn, 7 and 9; others are left blank; not drawn: 3 further ranks; gaps up to 8.0 µs are drawn closed." in html
    assert "Only the slowest step is drawn, 7." in render({"spans": [span(0, step=7)]})
    assert "slowest" not in render({"spans": [span(0)]})


def test_a_bare_count_stands_in_the_claim_only():
    told = {"id": "comm.missing_rank", "severity": "error", "confidence": 0.7, "claim": "c", "value": 3, "limit": 4}
    assert "<dt>measured</dt>" not in render({"findings": [told | {"unit": "count"}]})
    assert "<dd>3 tokens</dd>" in render({"findings": [told | {"unit": "tokens"}]})

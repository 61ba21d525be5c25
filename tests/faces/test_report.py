import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from moexray.faces.report import render

SAMPLE = Path(__file__).parent.parent / "data" / "report" / "double_fault.json"
BUDGET_BYTES = 300_000
EVIL = "</script><!-- <img src=x onerror=alert(1)> \"' \u2028 \u2029 \x1b[31m \u202e \ud800 {{ 7 * 7 }}"
SECTIONS = {
    "ledger": "ledger",
    "waits": "waits",
    "balance": "balance",
    "series": "series",
    "spans": "timeline",
    "memory_map": "memory-map",
    "chain": "chain",
    "ruled_out": "ruled-out",
    "seen": "seen",
}


class Page(HTMLParser):
    """What a browser would make of the page: tags in order, ids, links, text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self.depth, self.charts = [], [], [], {}
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        fields = dict(attrs)
        self.tags.append((tag, fields))
        if tag == "div":
            self.depth.append(fields.get("data-chart"))
            if "data-chart" in fields:
                self.charts[len(self.charts)] = [fields["data-chart"], False]
        if tag == "table" and any(self.depth):
            self.charts[len(self.charts) - 1][1] = True

    def handle_endtag(self, tag):
        if tag == "div":
            self.depth.pop()

    def handle_data(self, data):
        self.text.append(data)

    def all(self, name):
        return [fields[name] for _, fields in self.tags if name in fields]

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


@pytest.fixture
def sample():
    return json.loads(SAMPLE.read_text(encoding="utf-8"))


def finding(**fields):
    base = {"id": "mem.fragmentation", "severity": "error", "confidence": 0.95, "claim": "a claim"}
    return base | fields


def test_the_verdict_comes_first_in_words_and_units(sample):
    page = Page(render(sample))
    start = page.words[page.words.index("moexray", 40) :][:1600]
    for part in (
        "On rank 2 PyTorch holds 5.11 GiB in pieces",
        "Error: a request, a rank or the server failed",
        "Confidence 0.95: arithmetic that leaves no other reading.",
        "measured 5.11 GiB limit 3.80 GiB",
        "What to do",
        "PYTORCH_ALLOC_CONF=expandable_segments:True",
        "Undo: Unset the variable and restart.",
        "Not explained by it: ep.skew",
    ):
        assert part in page.words
    assert start.index("What to do") < start.index("How one leads to the other")


def test_a_statement_about_a_file_has_severity_words_of_its_own():
    refused = finding(id="input.unreadable")
    assert "Error: a file was refused." in Page(render({"findings": [refused]})).words


def test_every_link_inside_the_page_has_its_target_once(sample):
    page = Page(render(sample))
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    targets = [href[1:] for href in page.all("href") if href.startswith("#")]
    assert len(targets) > 20
    assert set(targets) <= set(ids)


def test_each_evidence_has_an_id_and_a_link_to_its_file(sample):
    html = render(sample, link_base="../run 1")
    assert 'id="f1-e1"' in html
    assert 'href="../run%201/logs/rank2.log">logs/rank2.log:18841</a>' in html
    assert 'href="./logs/rank2.log">logs/rank2.log:18841</a>' in render(sample)
    assert "request_bytes=4080218931<b" in re.sub(r"\s+<", "<", html)


@pytest.mark.parametrize(
    "source", ["/etc/passwd", "javascript:alert(1)", "C:\\a.log", "-", "<stdin>", "https://a.b/c", "//a.b/c"]
)
def test_a_source_that_is_no_relative_path_is_no_link(source):
    evidence = [{"source": source, "where": "line 3", "text": "t"}]
    page = Page(render({"findings": [finding(evidence=evidence)]}))
    assert [href for href in page.all("href") if not href.startswith("#")] == []
    assert f"{source}:3" in page.words


@pytest.mark.parametrize("key", SECTIONS)
def test_a_missing_key_leaves_no_section_behind(sample, key):
    assert SECTIONS[key] in Page(render(sample)).all("id")
    del sample[key]
    page = Page(render(sample))
    assert SECTIONS[key] not in page.all("id")
    assert f"#{SECTIONS[key]}" not in page.all("href")


def test_empty_documents_say_what_is_known():
    assert "Nothing could be read" in render({})
    healthy = {"verdict": "none", "findings": [], "inputs": [{"path": "a.log", "reader": "log", "rows": 3}]}
    assert "No fault found in what was read." in render(healthy)
    unsure = finding(confidence=0.4, severity="info", settle_with=["a trace of rank 3"])
    assert "What would settle it: a trace of rank 3" in Page(render({"findings": [unsure]})).words


def test_what_was_seen_and_not_judged_stands_with_its_evidence():
    evidence = [{"source": "a.log", "where": "line 7", "text": "kv_connector=NixlConnector"}]
    seen = [{"what": EVIL, "text": "this server is its kv_consumer", "evidence": evidence}, "x", None]
    page = Page(render({"seen": seen}))
    assert "this server is its kv_consumer a.log:7 # kv_connector=NixlConnector" in page.words
    assert page.all("href").count("#s1-e1") == page.all("id").count("s1-e1") == 1


def test_every_chart_has_a_table(sample):
    charts = list(Page(render(sample)).charts.values())
    assert sorted({kind for kind, _ in charts}) == ["balance", "chain", "ledger", "map", "series", "timeline", "waits"]
    assert all(has_table for _, has_table in charts)


def test_the_page_loads_nothing(sample):
    html = render(sample)
    page = Page(html)
    assert page.all("src") == []
    assert not any(tag in ("link", "img", "iframe", "object", "base", "form") for tag, _ in page.tags)
    assert all(not re.match(r"(?i)[a-z]+:|//", href) for href in page.all("href"))
    assert not re.search(r"url\(|@import", html)
    policy = next(fields["content"] for _, fields in page.tags if "http-equiv" in fields)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_the_page_keeps_its_size_budget(sample):
    assert len(render({}).encode()) < BUDGET_BYTES / 2
    assert len(render(sample).encode()) < BUDGET_BYTES + len(json.dumps(sample))


def hostile_document():
    odd = finding(
        id=EVIL, severity=EVIL, confidence=math.nan, claim=EVIL, value=math.inf, limit=10**400, unit=EVIL,
        subject={"rank": EVIL, "t_from_ns": 1.76e18, "t_to_ns": math.inf, "step_from": 5},
        evidence=[{"source": EVIL, "where": EVIL, "text": EVIL}, {"source": f"a/{EVIL}"}, "x", None],
        implied_by=[EVIL, None], settle_with=[EVIL], remedies=[{"id": EVIL, "action": EVIL, "undo": EVIL}],
    )  # fmt: skip
    return {
        "schema": EVIL, "verdict": EVIL, "findings": [odd, "x", None], "ruled_out": [odd],
        "inputs": [{"path": EVIL, "reader": None, "rows": math.nan, "notes": [EVIL]}, 3],
        "skipped": [{"path": EVIL, "reason": EVIL}],
        "ledger": [{"device": math.nan, "owner": EVIL, "bytes": math.nan}, {"bytes": -5, "owner": "free"}, {}],
        "waits": [{"rank": EVIL, "late_s": math.inf, "waited_s": -1, "source": EVIL}, {}],
        "balance": [
            {"source": EVIL, "unit": EVIL, "layers": [EVIL], "columns": [EVIL], "axis": EVIL,
             "values": [[1, None, math.nan], "x", [0, 0]], "balancedness": [math.nan, 0.5]},
            {"values": []}, {},
        ],
        "series": [
            {"name": EVIL, "unit": EVIL, "x_unit": EVIL, "x": [3, 1, math.nan, 2], "y": [None, math.nan, 1, 4, 9],
             "source": EVIL, "marks": [{"x": math.nan, "text": EVIL, "finding": EVIL}, {"x": 2, "text": EVIL}]},
            {"name": "one", "unit": "bytes", "x_unit": "s", "x": [1.7e9], "y": [5]},
            {"name": "gaps", "unit": "s", "x_unit": "s", "x": [0, 1], "y": [None, None]},
            {"name": "flat", "unit": "ratio", "x_unit": "step", "x": [0, 1], "y": [0, 0]}, {},
            {"name": "two", "unit": "bytes", "x_unit": "s", "x": [0, 1], "y": [1, 2], "label": EVIL,
             "also": [{"label": EVIL, "y": [math.nan]}, {"y": "x"}, {}, 3, *[{"y": [1, 2, 3]}] * 9]},
        ],
        "memory_map": [
            {"name": EVIL, "source": EVIL, "kinds": ["live", EVIL, None, []], "sites": [{"site": EVIL, "bytes": math.nan}, {}],
             "segments": [{"address": EVIL, "pool": EVIL, "held_by": EVIL, "bytes": -1}, {}, 3, {"address": 10**400}],
             "segments_total": 10**400, "merged_below_bytes": EVIL,
             "runs": [[0, 5, 0, 0], [1, 2, 1, 9], [0, 3, 3, -5], [2, math.inf, 0, 0], [9, 1, 0, 0], [0, 1, 9, 0], [0], "x", None]},
            {"segments": [{}], "runs": []}, {},
        ],
        "spans": [
            {"rank": EVIL, "lane": EVIL, "start_s": 1, "dur_s": 0, "name": EVIL, "kind": EVIL},
            {"rank": 1, "start_s": math.nan, "dur_s": 1}, {"rank": 1, "start_s": 2e9, "dur_s": -1},
        ],
        "chain": [{"from": EVIL, "to": "b", "text": EVIL}, {"from": "b", "to": EVIL}, {"from": "a", "to": "a"}, {}],
        "gaps": [{"rank": EVIL, "dur_ns": math.nan, "host": {EVIL: 10**400}, "device": [EVIL], "before": EVIL}, {}, 3],
        "whatif": {"settings": [{"conf": EVIL, "peak_reserved_bytes": EVIL}, {}], "self_check": {EVIL: {"matched": EVIL}, "applicable": 1},
                   "recommendation": {"line": EVIL, "reason": EVIL, "caveats": [EVIL, None], "conf": EVIL}},
    }  # fmt: skip


def test_hostile_and_missing_values_stay_text():
    html = render(hostile_document())
    html.encode("utf-8")
    page = Page(html)
    plain = Page(render({}))
    assert sum(tag == "script" for tag, _ in page.tags) == sum(tag == "script" for tag, _ in plain.tags)
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any(name.startswith("on") for _, fields in page.tags for name in fields)
    assert "{{ 7 * 7 }}" in page.words
    assert not re.search("[\x00-\x08\x0b-\x1f\u2028\u2029\u202e\ud800-\udfff]", html)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL).group(1)
    assert not re.search("[<>&']", data)
    assert "</script><!--" in json.loads(data)["balances"][0]["columns"][0]


@pytest.mark.parametrize(
    "broken", [None, 3, "x", {}, [None], [[]], [{}], [{"x": "y", "values": 3, "id": []}]]
)
@pytest.mark.parametrize("key", [*SECTIONS, "gaps", "whatif", "findings", "inputs", "skipped"])
def test_a_value_of_the_wrong_kind_breaks_nothing(sample, key, broken):
    assert "</html>" in render(sample | {key: broken})


def test_long_texts_are_folded_and_the_page_says_so():
    evidence = [{"source": "a.log", "where": "line 1", "text": "A" * 100_000}]
    html = render({"findings": [finding(claim="B" * 2_000, evidence=evidence)]})
    assert "99,520 more characters; the report keeps the first 20,000 of 100,000" in html
    assert "1,520 more characters" in html
    assert html.count("A" * 481) == 40


def test_long_series_keep_their_extremes_and_the_page_says_so():
    y = [0.0] * 50_000
    y[31_234], y[31_235], y[40_000] = 9.0, -9.0, None
    line = {"name": "n", "unit": "count", "x_unit": "step", "x": list(range(50_000)), "y": y}
    html = render({"series": [line]})
    drawn = data_of(html)["series"][0]
    assert len(drawn["x"]) <= 4_000
    points = dict(zip(drawn["x"], drawn["lines"][0]["y"], strict=True))
    assert (points[31_234], points[31_235], points[40_000]) == (9, -9, None)
    assert {0, 49_999} <= set(points)
    assert f"Thinned: {len(points):,} of 50,000 points drawn, extremes kept." in html


def test_lines_of_one_chart_share_its_points_and_its_table():
    y, more = [0.0] * 50_000, [1.0] * 50_000
    y[31_234], more[20_001] = 9.0, -5.0
    line = {"name": "n", "unit": "bytes", "x_unit": "step", "x": list(range(50_000)), "y": y, "label": "reserved",
            "also": [{"label": "stuck", "y": more}, {"label": "short", "y": [3]}]}  # fmt: skip
    html = render({"series": [line]})
    drawn = data_of(html)["series"][0]
    assert len(drawn["x"]) <= 4_000
    assert [one["label"] for one in drawn["lines"]] == ["reserved", "stuck", "short"]
    at = {x: [one["y"][i] for one in drawn["lines"]] for i, x in enumerate(drawn["x"])}
    assert (at[31_234], at[20_001], at[0]) == ([9, 1, None], [0, -5, None], [0, 1, 3])
    assert '<th scope="col" class="n">Reserved</th><th scope="col" class="n">Stuck</th>' in html


def test_the_memory_map_has_a_row_for_each_segment_and_says_what_it_leaves_out(sample):
    html = render({"memory_map": sample["memory_map"]})
    [drawn] = data_of(html)["maps"]
    assert len(drawn["runs"]) == len(sample["memory_map"][0]["runs"])
    words = Page(html).words
    assert "thinned: the 12 largest of 611 segments, 5.25 GiB of 72.30 GiB" in words
    assert "thinned: of 4,021 blocks, those below 64.0 KiB are drawn sorted by state within as many bytes" in words
    assert "0x7f0100000000 large / default 512.0 MiB 76.0 MiB 436.0 MiB 436.0 MiB 256.0 MiB 2 layers/moe.py:88 dispatch" in words


def test_many_spans_keep_the_longest_and_the_page_says_so():
    spans = [
        {"rank": 0, "lane": "s", "start_s": i, "dur_s": i / 10, "name": "n", "kind": "comm"}
        for i in range(6_000)
    ]
    html = render({"spans": spans})
    drawn = data_of(html)["timelines"][0]["spans"]
    assert len(drawn) == 5_000
    assert min(span[2] for span in drawn) == 100
    assert "5,000 longest of 6,000 spans" in html


def test_clock_times_are_taken_off_long_axes():
    line = {"name": "n", "unit": "s", "x_unit": "s", "x": [1.76e9, 1.76e9 + 60], "y": [1, 2]}
    html = render({"series": [line], "spans": [{"rank": 0, "start_s": 4411.9, "dur_s": 0.5}]})
    assert data_of(html)["series"][0]["x"] == [0, 60]
    assert "Time counts from 2025-10-09 08:53:20.000 UTC." in html
    assert "Time counts from 4,411.90 s of the source&#39;s clock." in html


def drawing(edges, **over):
    return render({"chain": [{"from": cause, "to": effect, "text": ""} for cause, effect in edges], **over})


def test_a_chain_is_drawn_from_left_to_right_and_a_circle_ends():
    html = drawing([("b", "c"), ("a", "b"), ("d", "c"), ("x", "y"), ("y", "x")])
    column = {name: int(x) for x, name in re.findall(r'translate\((\d+) \d+\)"><rect[^>]*/><text[^>]*>(\w)<', html)}
    assert column["a"] < column["b"] < column["c"]
    assert column["a"] == column["d"] == column["x"]
    assert re.findall(r"<title>(\w) leads to (\w)</title>", html) == [
        ("a", "b"), ("b", "c"), ("d", "c"), ("x", "y"), ("y", "x"),
    ]  # fmt: skip
    places = re.findall(r"translate\((\d+ \d+)\)", html)
    assert len(places) == len(set(places)) == 6


def test_a_step_that_only_cuts_a_longer_way_short_is_not_drawn():
    html = drawing([("a", "b"), ("b", "c"), ("a", "c")])
    assert re.findall(r"<title>(\w) leads to (\w)</title>", html) == [("a", "b"), ("b", "c")]


def test_a_box_tells_rank_and_share():
    quote = {"source": "t", "where": "", "text": "p99_s=0.2 excess_share_ratio=0.35"}
    story = [finding(id="a", subject={"rank": 3}, evidence=[quote]), finding(id="b")]
    words = Page(drawing([("a", "b")], findings=story)).words
    assert "rank 3, 35% of the excess" in words


def retimed(id, share, without, causes=(), **over):
    text = (f"p50_s=0.01 p99_s=0.2 p50_without_s=0.01 p99_without_s={without} p99_without_low_s={without / 2} "
            f"p99_without_high_s={without * 2} excess_share_ratio={share}")
    quote = {"source": "t", "where": "60 steps", "text": text}
    return finding(id=id, implied_by=list(causes), evidence=[quote], **over)


def test_p99_without_each_cause_is_drawn_and_the_excess_divided_among_the_roots():
    html = render({"findings": [retimed("mem.f", 0.6, 0.08), retimed("mem.s", 0.6, 0.08, ["mem.f"]), retimed("ep.s", 0.25, 0.15)]})
    words = Page(html).words
    assert "as measured 200.0 ms" in words
    assert "without mem.f 80.0 ms" in words
    section = html[html.index('id="effects"') :]
    assert section.index("ep.s") < section.index("mem.s")  # roots first
    assert "mem.f 60% ep.s 25% unexplained 15%" in words
    assert "ep.s 10.0 ms 150.0 ms 75.0 ms 300.0 ms 25%" in words


def test_shares_above_the_whole_leave_nothing_unexplained():
    words = Page(render({"findings": [retimed("a.b", 0.7, 0.1), retimed("c.d", 0.6, 0.1)]})).words
    assert "unexplained" not in words[words.index("Where the excess comes from") : words.index("Steps re-timed")]


def whatif():
    def row(conf, **more):
        return {"conf": conf, "recorded": False, "peak_reserved_bytes": 3 << 30, "stuck_bytes": 0, "retries": 7, "ooms": 1,
                "min_capacity_bytes": None, **more}

    check = {"placements": {"matched": 9, "total": 9}, "applicable": True, "exact": True}
    advice = {"conf": "a:1", "line": "PYTORCH_ALLOC_CONF=a:1", "reason": "It ends retries.", "caveats": ["Mind this."]}
    return {"settings": [row("", recorded=True), row("a:1")], "recommendation": advice, "self_check": check}


def test_settings_that_were_tried_stand_beside_the_line_to_set():
    page = Page(render({"whatif": whatif()}))
    for part in ("PYTORCH_ALLOC_CONF=a:1", "It ends retries. Mind this.", "as recorded (PyTorch's defaults) 3.00 GiB 0 B unknown 1 7",
                 "► a:1 3.00 GiB", "agrees with the recording in 9 of 9 placements."):
        assert part in page.words
    nothing = whatif() | {"recommendation": {"conf": None, "line": None, "reason": "Nothing helps."}}
    assert "Set nothing. Nothing helps." in Page(render({"whatif": nothing})).words


def test_the_longest_gaps_tell_what_they_waited_for():
    gap = {"rank": 0, "stream": 7, "step": 12, "dur_ns": 2_000_000, "before": "gemm", "unexplained_ns": 5,
           "host": {"allocator": 1_500_000, "python": 400}, "device": {"released_by_comm": 99_000}}
    words = Page(render({"gaps": [gap]})).words
    assert "0 7 12 2.0 ms allocator 1.5 ms, python 400.0 ns released by comm 99.0 µs 5.0 ns gemm" in words


def test_the_bytes_of_a_snapshot_and_of_nvidia_smi_are_not_added_up():
    smi = {"device": 0, "rank": 1, "owner": "torch reserved", "bytes": 3 << 30}
    pools = {"device": 0, "rank": 1, "owner": "live", "bytes": 2 << 30, "of": "PyTorch's pools in its snapshot"}
    html = render({"ledger": [smi, pools]})
    assert "3.00 GiB accounted for" in html
    assert "2.00 GiB accounted for" in html
    assert "device 0, rank 1: PyTorch&#39;s pools in its snapshot" in html


def test_a_clock_time_in_evidence_is_a_date():
    quote = {"source": "t.json", "where": "step 3", "text": "gap_ms=115.4 from_s=1793324141.832"}
    assert ">2026-10-30 01:35:41.832 UTC<" in render({"findings": [finding(evidence=[quote])]})


def test_lines_to_paste_are_found_in_prose():
    action = "Set export NCCL_IB_HCA=mlx5_0, add --max-num-seqs=64, call gc.freeze() or `a b`; keep --enforce-eager."
    html = render({"findings": [finding(remedies=[{"action": action}])]})
    copied = re.findall(r'class="line"><code>(.*?)</code>', html)
    assert copied == ["export NCCL_IB_HCA=mlx5_0", "--max-num-seqs=64", "gc.freeze()", "a b"]
    assert "<code>--enforce-eager</code>" in html


def data_of(html):
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL).group(1))

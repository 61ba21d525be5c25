"""Cleaning of lines: each dialect of prefix gives time, rank, worker, level and the bare message."""

import json

import pytest

from moexray.readers.lines.line import clean_lines

DAY = 1_768_176_000.0  # 2026-01-12 00:00:00 UTC
T = DAY + 9 * 3600 + 40 * 60 + 11  # 09:40:11
YEARLESS = 11 * 86_400 + 9 * 3600 + 40 * 60 + 11.0  # Jan 12 09:40:11 of 1970
DOCKER = json.dumps({"log": "INFO 01-12 09:40:11 [core.py:710] m\n", "stream": "stdout", "time": "2026-01-12T09:40:11.5Z"})

# line -> (t_s, rank, worker, level, message)
FORMS = {
    "(EngineCore_DP0 pid=1) ERROR 01-12 09:40:11 [core.py:710] m": (YEARLESS, None, "EngineCore_DP0", "error", "m"),
    "INFO 01-12 09:40:11.532 [file.py:12] m": (YEARLESS + 0.532, None, None, "info", "m"),
    "WARNING 01-12 09:40:11 scheduler.py:1141] m": (YEARLESS, None, None, "warning", "m"),
    "INFO [+   33.032s] [eplb.py:5] m": (33.032, None, None, "info", "m"),
    "(W pid=6) INFO [  -40.000s] [jit.py:71] m": (-40.0, None, "W", "info", "m"),
    "[2026-01-12 09:40:11 TP0] m": (T, 0, "TP0", None, "m"),
    "[2026-01-12 09:40:11 DP1 TP3 EP3] WARNING m": (T, 3, "DP1 TP3 EP3", "warning", "m"),
    "[01/12/2026-09:40:11] [TRT-LLM] [RANK 2] [I] m": (T, 2, None, "info", "m"),
    "[TensorRT-LLM][WARNING] m": (None, None, None, "warning", "m"),
    "[rank13]:[E112 09:40:11.5 ProcessGroupNCCL.cpp:616] [Rank 1] m": (YEARLESS + 0.5, 13, None, "error", "[Rank 1] m"),
    "W0112 09:40:11.5 99 file.cpp:1] m": (YEARLESS + 0.5, None, None, "warning", "m"),
    "2026-01-12 09:40:11,250 - my.mod - WARNING - m": (T + 0.25, None, None, "warning", "m"),
    "2026-01-12 09:40:11,250 INFO mod: m": (T + 0.25, None, None, "info", "m"),
    "2026-01-12 09:40:11.250 | DEBUG    | a.b:f:12 - m": (T + 0.25, None, None, "debug", "m"),
    "[2026-01-12 09:40:11,250][mod][INFO] - m": (T + 0.25, None, None, "info", "m"),
    "INFO:root:m": (None, None, None, "info", "m"),
    "INFO:     Application startup complete.": (None, None, None, "info", "Application startup complete."),
    "2026-01-12T09:40:11.5Z stderr F m": (T + 0.5, None, None, None, "m"),
    "2026-01-12T17:40:11+08:00 [rank3]: m": (T, 3, None, None, "m"),
    "Jan 12 09:40:11 node-0 serve[77]: INFO m": (YEARLESS, None, None, "info", "m"),
    "<165>1 2026-01-12T09:40:11.5Z host app 12 ID4 - m": (T + 0.5, None, None, None, "m"),
    "2026-01-12T09:40:11+0000 host app[12]: m": (T, None, None, None, "m"),
    "vllm-1  | INFO 01-12 09:40:11 [a.py:1] m": (YEARLESS, None, None, "info", "m"),
    "[pod/x-0/main] INFO 01-12 09:40:11 [a.py:1] m": (YEARLESS, None, None, "info", "m"),
    DOCKER: (T + 0.5, None, None, "info", "m"),
    '{"message": "m", "level": "ERROR", "ts": 1768210811.5, "rank": 3}': (T + 0.5, 3, None, "error", "m"),
    '{"msg": "m", "time": 1768210811500}': (T + 0.5, None, None, None, "m"),
    "(VllmWorker rank=5 pid=77) INFO 01-12 09:40:11 [x.py:1] m": (YEARLESS, 5, "VllmWorker rank=5 pid=77", "info", "m"),
    "(Worker_DP1_TP0_EP4 pid=77) m": (None, 4, "Worker_DP1_TP0_EP4", None, "m"),
    "(Worker_DP1_TP0 pid=77) m": (None, None, "Worker_DP1_TP0", None, "m"),
    "[1,3]<stderr>: m": (None, 3, None, None, "m"),
    "09:40:11 INFO m": (9 * 3600 + 40 * 60 + 11.0, None, None, "info", "m"),
    "[  991.100201] m": (991.100201, None, None, None, "m"),
    "    INFO 01-12 09:40:11 [a.py:1] m": (YEARLESS, None, None, "info", "m"),
    "\x1b[0;36m(RayWorkerWrapper pid=4, ip=10.0.0.1)\x1b[0m m": (None, None, "RayWorkerWrapper pid=4 ip=10.0.0.1", None, "m"),
    "[36m(RayWorkerWrapper pid=4)[0m m": (None, None, "RayWorkerWrapper pid=4", None, "m"),
}


@pytest.mark.parametrize("text", FORMS, ids=range(len(FORMS)))
def test_forms(text):
    (line,) = clean_lines(text)
    t_s, rank, worker, level, message = FORMS[text]
    assert (line.rank, line.worker, line.level, line.text) == (rank, worker, level, message)
    assert line.known
    assert line.t_s == (None if t_s is None else pytest.approx(t_s, abs=1e-6))


@pytest.mark.parametrize(
    "text",
    [
        "79.15 GiB of which 3 GiB is free",
        "ERROR = 3",
        "[10:02] user_a: it died",
        "- raised `gpu_memory_utilization` to 0.92",
        "def f(x): return x",
        "| N/A   41C    P0    88W / 700W |",
        '{"a": 1, "b": [2]}',
        "Thu Nov  5 10:00:00 2026",
    ],
)
def test_other_text_stays_whole(text):
    (line,) = clean_lines(text)
    assert (line.text, line.known, line.t_s, line.rank) == (text, False, None, None)


def test_the_whole_line_is_kept_for_evidence():
    (line,) = clean_lines("2026-01-12T09:40:11Z stdout F (Worker_TP3 pid=7) INFO 01-12 17:40:11 [a.py:1] m")
    assert line.full == "(Worker_TP3 pid=7) INFO 01-12 17:40:11 [a.py:1] m"
    assert line.t_s == pytest.approx(T)  # the container's clock has a year and a zone


def test_parts_of_a_record_are_joined():
    cri = "2026-01-12T09:40:11Z stdout P one \n2026-01-12T09:40:11Z stdout F two\n2026-01-12T09:40:12Z stdout F three"
    assert [(x.number, x.text) for x in clean_lines(cri)] == [(1, "one two"), (3, "three")]
    halves = [json.dumps({"log": t, "stream": "stdout", "time": "2026-01-12T09:40:11Z"}) for t in ("a", "b\n", "c")]
    assert [x.text for x in clean_lines("\n".join(halves))] == ["ab", "c"]
    assert [x.text for x in clean_lines(cri[: cri.index("\n")] + "\nplain")] == ["one ", "plain"]


def test_progress_bars_keep_their_last_state():
    text = "\r 10%|# | 1/10 [00:01<00:09]\r100%|##| 10/10 [00:10<00:00]\r\nINFO 01-12 09:40:11 [a.py:1] m\r\n"
    assert [x.text for x in clean_lines(text)][:2] == ["100%|##| 10/10 [00:10<00:00]", "m"]
    assert [x.text for x in clean_lines("one\rtwo\rthree")] == ["one", "two", "three"]


def test_quotes_titles_and_repeats():
    assert [(x.text, x.quoted) for x in clean_lines("> > a\n>b\nc > d")] == [("a", True), ("b", True), ("c > d", False)]
    assert clean_lines("\x1b]0;title\x07a")[0].text == "a"
    assert clean_lines("(raylet pid=3) a [repeated 7x across cluster]")[0].repeats == 7


def test_a_worker_keeps_the_rank_that_it_named():
    said = "INFO 01-12 09:40:11 [p.py:1] rank {} in world size 4 is assigned as DP rank 0, PP rank 0, TP rank 0"
    lines = clean_lines(f"(EngineCore_DP2 pid=1) {said.format(2)}\n(EngineCore_DP2 pid=1) later")
    assert [x.rank for x in lines] == [2, 2]
    both = [f"(EngineCore_DP0 pid=1) {said.format(r)}" for r in (0, 1)]
    assert [x.rank for x in clean_lines("\n".join([*both, "(EngineCore_DP0 pid=1) later"]))] == [0, 1, None]


def test_stamps_without_year_take_the_year_of_the_others():
    text = "[2026-10-07 18:29:27 TP0] a\n[rank0]:[E1007 18:29:23.5 P.cpp:1] b"
    a, b = clean_lines(text)
    assert a.t_s - b.t_s == pytest.approx(3.5)


def test_plain_seconds_only_where_most_lines_have_them():
    assert [x.t_s for x in clean_lines("7.688 snapshot written\n16.125 snapshot written")] == [7.688, 16.125]
    assert clean_lines("7.688 snapshot written\nno time\nno time")[0].text == "7.688 snapshot written"
    assert clean_lines("1793324141832 memory snapshot")[0].t_s == pytest.approx(1793324141.832)

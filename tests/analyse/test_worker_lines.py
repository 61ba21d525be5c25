from moexray.analyse.worker_lines import WorkerLine, lines_in, worker_lines
from moexray.core.run import Reading, build_run

END = 1_794_096_982.0  # 2026-11-08 00:16:22 UTC


def line(end_s, seconds=0.1, rank=1, source="s.log"):
    return WorkerLine(rank, end_s, seconds, source, "line 1", "GC")


def hits(lines, windows=((END - 0.11, END),)):
    return [x is not None for x in lines_in(lines, windows, 0.5)]


def test_a_line_at_the_end_of_the_silence_counts():
    assert hits([line(END + 0.02)]) == [True]


def test_another_time_does_not():
    assert hits([line(END + 30)]) == [False]
    assert hits([line(END - 1200)]) == [False]


def test_a_short_collection_does_not_explain_a_long_silence():
    assert hits([line(END, seconds=0.002)]) == [False]


def test_time_zones_are_whole_quarters_of_an_hour():
    assert hits([line(END + 8 * 3600)]) == [True]
    assert hits([line(END - 5.5 * 3600)]) == [True]
    assert hits([line(END + 15 * 3600)]) == [False]


def test_a_log_without_years_is_compared_by_date():
    start_of_year, days = 1_767_225_600.0, 0  # 2026-01-01
    assert hits([line(END - start_of_year + days)]) == [True]
    assert hits([line(END - start_of_year + 86_400 * 3)]) == [False]


def test_all_lines_of_a_file_share_one_zone():
    windows = [(END - 0.1, END), (END + 9.9, END + 10), (END + 3619.9, END + 3620)]
    found = lines_in([line(END), line(END + 10), line(END + 20)], windows, 0.5)
    assert [x is not None for x in found] == [True, True, False]


def test_ranks_come_from_the_line_the_start_lines_or_the_worker():
    out = Reading("text")
    out.add("log", where="line 1", kind="engine.rank", worker="w7", fields={"rank": 7})
    out.add("log", where="line 2", kind="host.gc", t_s=5.0, worker="w7", fields={"seconds": 0.2}, text="x")
    out.add("log", where="line 3", kind="host.gc", t_s=5.0, worker="DP1 TP1 EP1", fields={"seconds": 0.2}, text="x")
    out.add("log", where="line 4", kind="host.gc", t_s=5.0, rank=4, fields={"seconds": "?"}, text="x")
    out.add("log", where="line 5", kind="host.gc", t_s=None, rank=4, fields={}, text="x")
    out.add("log", where="line 6", kind="host.gc", t_s=1.0, worker="DP1 TP0", fields=None, text="x")
    found = worker_lines(build_run([("a.log", out)], []), "host.gc")
    assert [(x.rank, x.seconds) for x in found] == [(7, 0.2), (1, 0.2), (4, None), (None, None)]

"""Status reports: the laggards have the low count, whoever is listed; two polls decide."""


import pytest

from comm_samples import finding, ids, said


def report(low, high, at_low, at_high, listed, status="MISMATCH"):
    """A report in which the smaller set is listed below its count."""
    head = (
        "Job summary\n===========\n\nCommunicators... (0.00s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    #  in group  per comm  per node  per comm  in group\n"
        f"    0         1         2         4         {at_low + at_high}         {at_low + at_high}   RUNNING  {status}\n\n"
    )
    if status == "OK":
        return head
    sets = [(at_low, low), (at_high, high)]
    sets.sort(reverse=True)
    names = "".join(f"  Rank {r} -- GPU 0 managed by process 1 on node n1\n" for r in listed)
    body = "".join(f"  {n} ranks have launched up to operation {c}\n" for n, c in sets)
    return f"{head}Warnings\n========\n\n#0-0 (fa93) MISMATCH\n  Communicator ranks have different AllGather operation counts\n{body}{names}\n"


def test_unlisted_ranks_are_the_laggards_where_the_leaders_are_listed():
    f = finding(said({"r.txt": report(640, 641, 6, 2, [4, 5])}), "comm.lagging_ranks")
    assert (f.severity, f.value, f.limit, f.subject.rank) == ("warn", 640, 641, None)
    assert f.claim.startswith("ranks 0-3, 6 and 7 have launched up to AllGather 640 only")
    assert f.settle_with


def test_listed_ranks_are_the_laggards_where_they_have_the_low_count():
    f = finding(said({"r.txt": report(63, 64, 2, 6, [1, 7])}), "comm.lagging_ranks")
    assert f.claim.startswith("ranks 1 and 7 have launched up to AllGather 63 only")


def test_the_one_line_form_of_a_single_rank():
    text = report(63, 64, 2, 6, []).replace("  2 ranks have launched up to operation 63\n", "  Rank 5 has launched up to operation 63 -- GPU 1\n")
    text = text.replace("6 ranks", "7 ranks")
    assert finding(said({"r.txt": text}), "comm.lagging_ranks").subject.rank == 5


def test_two_equal_reports_prove_that_nothing_moves():
    two = report(640, 641, 6, 2, [4, 5]) * 2
    f = finding(said({"r.txt": two}), "comm.lagging_ranks")
    assert f.confidence > 0.9
    assert f.settle_with == ()
    split = {"a.txt": report(640, 641, 6, 2, [4, 5]), "b.txt": report(640, 641, 6, 2, [4, 5])}
    assert finding(said(split), "comm.lagging_ranks").confidence > 0.9


@pytest.mark.parametrize("second", [report(650, 651, 6, 2, [4, 5]), report(0, 0, 6, 2, [], status="OK")])
def test_two_reports_that_show_progress_are_no_finding(second):
    d = said({"r.txt": report(640, 641, 6, 2, [4, 5]) + second})
    assert ids(d) == []
    assert [f.id for f in d.ruled_out] == ["comm.lagging_ranks"]


def test_unreachable_ranks_are_missing():
    text = report(0, 0, 4, 4, [], status="OK") + "#0-0 (27a0) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 3\n"
    assert finding(said({"r.txt": text}), "comm.missing_rank").subject.rank == 3


def test_a_healthy_report_is_silent():
    assert said({"r.txt": report(0, 0, 4, 4, [], status="OK")}).verdict == "none"

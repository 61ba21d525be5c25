"""Exchanges against alpha-beta, by hand."""

import pytest

from moexray.analyse.exchange_cost import exchanges, nodes
from moexray.analyse.timeline_comm import survey
from moexray.core.limits.comm import CommLimits
from moexray.core.run import Reading, build_run
from moexray.core.source import Source
from moexray.readers.read_any import read_sources
from trace_samples import Trace

ROW = 1_000_000  # elements of a row; bf16
LIMITS = CommLimits(node_bytes_per_s=100e9, net_bytes_per_s=10e9, exchange_alpha_s=1e-6)


def collectives(sent, took_us=1_000.0):
    """One all-to-all of `sent[i][j]` rows per step, three steps; every rank arrives at the same time."""
    count = len(sent)
    traces = [Trace(r, count) for r in range(count)]
    for step in range(3):
        for rank, trace in enumerate(traces):
            now = step * 5_000.0
            out, come = sent[rank], [sent[other][rank] for other in range(count)]
            more = {"In split size": str(out), "Out split size": str(come),
                    "In msg nelems": sum(out) * ROW, "Out msg nelems": sum(come) * ROW}
            trace.step(step, now, 4_900).kernel(now + 50, 1_000)
            trace.collective(step, now + 1_100, took_us, op="all_to_allv", **more)
    run = read_sources([Source(f"t{i}.json", content=t.text().encode()) for i, t in enumerate(traces)])
    return survey(run)[0].collectives


def test_a_hot_receiver_in_one_node():
    sent = [[9, 2, 2, 2], [6, 9, 2, 2], [6, 2, 9, 2], [6, 2, 2, 9]]
    (x,) = exchanges(collectives(sent), {}, LIMITS)
    assert (x.hot_rank, x.ranks, x.count, x.op) == (0, 4, 3, "all_to_allv")
    assert x.hot_bytes == 18 * ROW * 2  # what stays on the rank does not travel
    assert x.mean_bytes == (18 + 10 + 10 + 10) * ROW * 2 / 4
    assert x.between_bytes == 0
    assert x.cost_s == pytest.approx(3e-6 + 36e6 / 100e9)
    assert x.transfer_s == pytest.approx(1e-3)
    assert x.utilisation == pytest.approx(x.cost_s / 1e-3)


def test_between_nodes_the_network_sets_the_time():
    sent = [[0, 5, 1, 1], [5, 0, 1, 1], [1, 1, 0, 5], [1, 1, 5, 0]]
    (x,) = exchanges(collectives(sent), {0: "a", 1: "a", 2: "b", 3: "b"}, LIMITS)
    assert x.between_bytes == 2 * ROW * 2
    assert x.cost_s == pytest.approx(3e-6 + max(10e6 / 100e9, 4e6 / 10e9))


def test_even_splits_are_shared_out():
    (x,) = exchanges(collectives([[1, 1], [1, 1]]), {}, LIMITS)
    assert x.hot_bytes == x.mean_bytes == ROW * 2


def test_a_cut_list_of_splits_counts_as_even_and_no_metadata_as_nothing():
    found = collectives([[1, 3], [3, 1]])
    for profile in found.profiles:
        profile.comm["in_splits"][:] = ["[1, ..."] * 3
    (x,) = exchanges(found, {}, LIMITS)
    assert x.hot_bytes == 3 * ROW * 2  # received rows are still exact
    for profile in found.profiles:
        profile.comm["dtype"][:] = [""] * 3
    assert exchanges(found, {}, LIMITS) == []


def test_hosts_are_those_of_the_largest_communicator():
    out = Reading("text")
    for rank, host in enumerate(("n0", "n0", "n1", "n1")):
        out.add("comm_link", where="", kind="init", rank=rank, ranks=4, process=f"{host}:22")
    out.add("comm_link", where="", kind="init", rank=0, ranks=2, process="n7:22")
    out.add("comm_link", where="", kind="channel", rank=None, ranks=None, process="n8:22")
    assert nodes(build_run([("nccl.log", out)], [])) == {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
    assert nodes(build_run([], [])) == {}

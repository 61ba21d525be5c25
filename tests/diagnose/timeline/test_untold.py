"""What traces leave open: the rank that is not there, and work that looks like tokens."""

import time

from moexray.core.limits import Limits
from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources
from trace_samples import BASE_NS, Trace, pair_of_ranks


def say(traces, log=""):
    sources = [Source(f"t{i}.json", content=t.text().encode()) for i, t in enumerate(traces)]
    sources += [Source("server.log", content=log.encode())] if log else []
    return diagnose(read_sources(sources), Limits())


def of(result, id):
    return [f for f in result.findings if f.id == id]


def line(at_us, text, rank):
    seconds = BASE_NS / 1e9 + at_us / 1e6
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}"
    return f"[{stamp} DP{rank} TP{rank} EP{rank}] {text}\n"


def test_the_one_rank_without_a_trace_is_the_one_in_question():
    traces = pair_of_ranks(steps=20, ranks=3, gap=(6, 11))
    (found,) = of(say([traces[0], traces[2]]), "comm.straggler_wait")
    assert found.cannot_tell
    assert found.subject.rank == 1
    assert found.settle_with == ("trace of rank 1",)


def test_equal_waits_of_usual_length_raise_no_question():
    traces = pair_of_ranks(steps=20, ranks=3)
    assert of(say([traces[0], traces[2]]), "comm.straggler_wait") == []


def test_the_log_of_the_rank_without_a_trace_gives_a_guess():
    traces = pair_of_ranks(steps=20, gap=(6, 11))
    ends = [6 * 12_250 + 100_000, 11 * 12_250 + 200_000]
    text = "WARNING LONG GARBAGE COLLECTION DETECTED | Generation 2 | Duration: 0.0990s | # Objects: 9"
    log = line(-5e6, "Application startup complete.", 0)
    result = say(traces[:1], log + "".join(line(e, text, 1) for e in ends))
    (guess,) = of(result, "host.gc_pause")
    assert guess.cannot_tell
    assert guess.subject.rank == 1
    assert "2 of 2 long waits of rank 0" in guess.claim
    assert of(say(traces[:1], log + line(900_000, text, 1)), "host.gc_pause") == []


def uneven(factor, *, everything=False, op="deep_ep::internode_ll::combine<false, 7168>(void*)"):
    """Two ranks whose steps hold attention, experts and a combine; rank 1 computes longer."""
    traces, now = [Trace(r, 2) for r in range(2)], 0.0
    for step in range(20):
        work = [(4_000.0, 5_000.0)] * 2
        work[1] = (4_000.0 * (factor if everything else 1), 5_000.0 * factor)
        end = now + 100 + sum(work[1]) + 1_000
        for trace, (attention, experts) in zip(traces, work, strict=True):
            trace.step(step, now, end + 50 - now).kernel(now + 50, attention, name="flash_attention")
            trace.kernel(now + 50 + attention, experts, name="grouped_gemm")
            begin = now + 60 + attention + experts
            trace.kernel(begin, end - begin, name=op, stream=9)
            trace.call("cudaStreamSynchronize", now + 60, end - now - 80)
        now = end + 100
    return traces


def test_experts_that_take_longer_raise_the_question_of_their_tokens():
    result = say(uneven(1.6))
    assert result.verdict == "comm.straggler_wait"
    (found,) = of(result, "ep.skew")
    assert found.cannot_tell
    assert found.subject.rank == 1
    assert "1 of its 2 larger kernels (grouped_gemm first, 1.60x the others)" in found.claim


def test_a_rank_that_is_slower_throughout_has_no_more_tokens():
    result = say(uneven(1.6, everything=True))
    assert result.verdict == "comm.straggler_wait"
    assert of(result, "ep.skew") == []


def test_only_an_exchange_of_tokens_makes_it_a_question_of_experts():
    assert of(say(uneven(1.6, op="ncclDevKernel_AllReduce_Sum_bf16(int)")), "ep.skew") == []


def test_a_little_lateness_at_many_places_adds_up():
    traces, now = [Trace(r, 2) for r in range(2)], 0.0
    for step in range(16):
        begin = now
        for layer in range(8):
            for trace, late in zip(traces, (0, 60.0), strict=True):
                trace.kernel(now + 10, 900.0 + late)
                start = now + 20 + 900.0 + late
                trace.collective(step * 8 + layer, start, now + 1_180 - start)
            now += 1_190
        for trace in traces:
            trace.step(step, begin, now - begin - 5)
    (found,) = of(say(traces), "comm.straggler_wait")
    assert found.subject.rank == 1
    assert "the others wait 0.48 ms in the median step (5% of a step of 9.52 ms)" in found.claim

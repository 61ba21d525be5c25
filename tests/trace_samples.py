"""Makes small Kineto traces for the tests: steps, kernels with their launches, collectives, host events."""

import json

BASE_NS = 1_790_000_000_000_000_000  # epoch of the samples
COMPUTE = "void sample::matmul_kernel<float>(float*)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Trace:
    """One rank's trace; times in microseconds, relative to the base."""

    def __init__(self, rank=None, world=None, shift_us=0.0):
        self.rank, self.world, self.shift = rank, world, shift_us
        self.events = []
        self.calls = 0

    def slice(self, cat, name, ts, dur, pid=100, tid=100, **args):
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": round(ts + self.shift, 3),
             "dur": dur, "args": args}
        )
        return self

    def step(self, number, ts, dur):
        return self.slice("user_annotation", f"ProfilerStep#{number}", ts, dur)

    def call(self, name, ts, dur, **args):
        return self.slice("cuda_runtime", name, ts, dur, **args)

    def kernel(self, ts, dur, name=COMPUTE, stream=7, launch=None, **args):
        self.calls += 1
        at = ts - 10 if launch is None else launch
        self.slice("cuda_runtime", "cudaLaunchKernel", at, 4, correlation=self.calls)
        return self.slice("kernel", name, ts, dur, pid=0, tid=stream, device=0, stream=stream,
                          correlation=self.calls, **args)

    def collective(self, seq, ts, dur, name=NCCL, group="0", size=4096, op="allreduce", **args):
        more = {"Collective name": op, "In msg nelems": size, "Out msg nelems": size, "Process Group Name": group,
                "Seq": seq, "Group size": self.world or 2, "dtype": "BFloat16"}
        return self.kernel(ts, dur, name, 20, **{**more, **args})

    def document(self):
        out = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "deviceProperties": [{"id": 0, "name": "Sample"}]}
        if self.rank is not None:
            out["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": self.world}
        return {**out, "traceEvents": self.events, "traceName": "sample.json"}

    def text(self):
        return json.dumps(self.document())

    def write(self, path):
        path.write_text(self.text())
        return path


def pair_of_ranks(
    steps=12, *, late_us=0.0, gap=(), slow=(), record=None, shift_us=0.0, ranks=2, late_rank=1, large=()
):
    """Ranks that compute for 10 ms and then meet in a collective of 2 ms, step after step.

    Args:
        steps: How many.
        late_us: Rank 1 computes that much longer in every step.
        gap: Steps in which the host of rank 1 stands still for 100 ms.
        slow: Steps in which the transfer takes 6 ms on all ranks.
        record: (category, name) laid over each gap on rank 1.
        shift_us: Clock of rank 1 against rank 0.
        ranks: Number of ranks.
        late_rank: Which one is late.
        large: Steps in which every rank computes for 20 ms more.
    """
    traces = [Trace(r, ranks, shift_us if r == 1 else 0.0) for r in range(ranks)]
    now = 0.0
    for step in range(steps):
        pause = 100_000.0 if step in gap else 0.0
        transfer = 6_000.0 if step in slow else 2_000.0
        batch = 30_000.0 if step in large else 10_000.0
        arrive = now + 100 + batch + late_us + pause
        end = arrive + transfer
        for rank, trace in enumerate(traces):
            late = rank == late_rank
            work = batch + (late_us if late else 0)
            start = now + 100 + (pause if late else 0)
            mine = arrive if late or not (late_us or pause) else now + 100 + batch
            trace.step(step, now, end + 50 - now)
            trace.kernel(start, work)
            trace.collective(step, mine, end - mine)
            trace.call("cudaStreamSynchronize", start + 50, end - start - 60)
            if late and pause and record:
                trace.slice(record[0], record[1], now + 60, pause - 70)
        now = end + 100
    return traces


class Machine:
    """Ranks that work and meet in collectives of any groups; exact times, clocks that differ and drift."""

    def __init__(self, ranks, *, noted=True, shift_us=None, drift_ppm=None):
        self.traces = [Trace(r, ranks) for r in range(ranks)]
        self.now, self.noted = [0.0] * ranks, noted
        self.shift, self.drift = shift_us or [0.0] * ranks, drift_ppm or [0.0] * ranks
        self.numbers, self.begun = {}, None

    def clock(self, rank, us):
        return us * (1 + self.drift[rank] * 1e-6) + self.shift[rank]

    def step(self, number):
        """Ends the step before and begins this one on every rank."""
        if self.begun is not None:
            for r, trace in enumerate(self.traces):
                trace.step(number - 1, self.clock(r, self.begun[r]), self.now[r] - self.begun[r])
        self.begun = list(self.now)

    def work(self, us, *, late=None, by=0.0, pause=0.0):
        """Every rank computes; one of them longer, or after a pause of its host."""
        for r, trace in enumerate(self.traces):
            self.now[r] += 20 + (pause if r == late else 0.0)
            length = us + (by if r == late else 0.0)
            trace.kernel(self.clock(r, self.now[r]), length)
            self.now[r] += length

    def meet(self, group, us, *, op="allreduce", name=NCCL, size=4096):
        """A collective of a group: it ends `us` after the last has come."""
        number = self.numbers[tuple(group)] = self.numbers.get(tuple(group), -1) + 1
        end = max(self.now[r] for r in group) + us
        for r in group:
            at, trace = self.clock(r, self.now[r]), self.traces[r]
            if self.noted:
                noted = {"Group size": len(group), "Process Group Ranks": str(list(group))}
                trace.collective(number, at, end - self.now[r], name, str(group), size, op, **noted)
            else:
                trace.kernel(at, end - self.now[r], name, 20)
            self.now[r] = end

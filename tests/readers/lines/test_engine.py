"""Engine log lines: kinds, fields, phases; and the same words where they mean nothing."""

import pytest

from moexray.readers.lines import words
from text_runs import run_of

P = "INFO 01-12 09:40:11 [a.py:1] "
DAY = "[2026-01-12 09:{}:00 TP0] "

# message -> (kind, fields that must be there)
EVENTS = {
    "EPLB step: 20 for model M: avg_tokens=10.00, max_tokens=12, balancedness=0.8300, steps until the next "
    "rearrangement: -40": ("eplb.balance", {"step": 20, "balancedness": 0.83, "countdown": -40, "max_tokens": 12}),
    "EPLB step: avg_tokens=4096.00, max_tokens=4448, balancedness=0.9209": ("eplb.balance", {"balancedness": 0.9209}),
    "EPLB step: 0 for model M: avg_tokens=2.0, max_tokens=5, balancedness=0.4, steps until the next rearrangement: 9 "
    "(dummy batch)": ("eplb.balance", {"dummy": True, "countdown": 9}),
    "[Expert Balancedness] forward_pass_id=50 current_pass_balancedness=0.908 last_10_average_balancedness=0.9 "
    "gpu_physical_count_sum=7": ("eplb.balance", {"step": 50, "balancedness": 0.908, "last_10": 0.9}),
    "Rearranging experts (profile)...": ("eplb.start", {"mode": "profile"}),
    "Rearranging experts (async mode)...": ("eplb.start", {"mode": "async"}),
    "Rearranged experts (profile) in 0.41 seconds.": ("eplb.done", {"mode": "profile", "seconds": 0.41}),
    "Rearranged experts in 0.51 seconds (async).": ("eplb.done", {"mode": "async", "seconds": 0.51}),
    "[EPLBManager] rebalance start": ("eplb.start", {}),
    "[EPLBManager] rebalance end time=1.812s": ("eplb.done", {"seconds": 1.812}),
    "[EPLBManager] rebalance end total=2.5s stat_collect=0.1s": ("eplb.done", {"seconds": 2.5}),
    "[EPLBManager] rebalance end": ("eplb.done", {}),
    "[eplb/worker] Expert hotness imbalance, current: mean=1.2 max=2.4, updated: mean=1.1 max=1.5": (
        "eplb.hotness", {"before_max": 2.4, "after_max": 1.5}),
    "finish async transfer for model M rank 0 layer 3": ("eplb.transfer", {}),
    "Triton kernel JIT compilation during inference: _k (M=5, n=4). This causes a latency spike.": (
        "jit.compile", {"during": "inference", "shape": "M=5, n=4", "what": "Triton"}),
    "Triton kernel JIT compilation during warm-up: _k (M=5)": ("jit.compile", {"during": "warm-up"}),
    "DeepGEMM JIT code generation <gemm>: M=7, N=5, K=1. Please wait.": ("jit.compile", {"shape": "M=7, N=5, K=1"}),
    "Entering DeepGEMM JIT Pre-Compile session. It may take a long time": ("jit.session", {"what": "DeepGEMM"}),
    "DeepGEMM warmup: 84%": ("jit.progress", {"percent": 84.0}),
    "Finished loading JIT ops: norm": ("jit.done", {"kernel": "norm"}),
    "torch.compile takes 22.33 s in total": ("jit.compile", {"seconds": 22.33}),
    "Dynamo bytecode transform time: 4.91 s": ("jit.compile", {"seconds": 4.91}),
    "Compiling a graph for dynamic shape takes 17.42 s": ("jit.compile", {"seconds": 17.42}),
    "Compiling CUDA kernel for batch 77 took 812 ms": ("jit.compile", {"seconds": 0.812}),
    "Using DEEPGEMM Fp8 MoE backend out of potential backends: ['A', 'B']": ("backend", {"scope": "moe", "backend": "DEEPGEMM"}),
    "Using FLASH_ATTN attention backend out of potential backends: ['A']": ("backend", {"scope": "attention"}),
    "Attention backend not explicitly specified. Use fa3 backend by default.": ("backend", {"scope": "attention", "backend": "fa3"}),
    "MoE runner backend: deep_gemm": ("backend", {"scope": "moe", "backend": "deep_gemm"}),
    "Using CutlassBlockScaledGroupedGemm kernels for Fp8MoEMethod.": ("backend", {"scope": "moe"}),
    "Auto-disabled DeepGemm for model_type=x on Blackwell.": ("backend.off", {"backend": "DeepGemm"}),
    "Sequence group 147 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. "
    "total_num_cumulative_preemption=51": ("sched.preempt", {"total": 51}),
    "KV cache pool is full. Retract requests. #retracted_reqs: 2": ("sched.preempt", {"count": 2}),
    "Prefill batch. #new-seq: 1, #new-token: 8192, token usage: 0.10, #running-req: 3, #queue-req: 2,": (
        "batch", {"what": "prefill", "new_tokens": 8192, "running": 3, "queued": 2}),
    "Decode batch, #running-req: 512, #token: 4, token usage: 0.41, gen throughput (token/s): 99.78, #queue-req: 0": (
        "batch", {"what": "decode", "throughput": 99.78}),
    "Engine 000: Avg prompt throughput: 2110.0 tokens/s, Avg generation throughput: 1470.5 tokens/s, Running: 32 reqs, "
    "Waiting: 1 reqs, GPU KV cache usage: 38.0%, Prefix cache hit rate: 11.0%": (
        "stats", {"running": 32, "waiting": 1, "output_tok_s": 1470.5, "kv_pct": 38.0}),
    "LONG GARBAGE COLLECTION DETECTED | Generation 2 | Duration: 0.1149s | # Objects: 4100000": (
        "host.gc", {"seconds": 0.1149, "generation": 2, "objects": 4100000}),
    "GC took 12.5 ms (gen 2)": ("host.gc", {"seconds": 0.0125}),
    "memory snapshot written entries=100000 include_traces=True file=s.pickle": (
        "mem.snapshot", {"state": "end", "entries": 100000, "traces": True}),
    "Dumping memory snapshot to s.pickle": ("mem.snapshot", {"state": "begin"}),
    "Saved CUDA memory snapshot (200,000 entries) in 730 ms": ("mem.snapshot", {"entries": 200000, "seconds": 0.73}),
    "Loading weights took 30.10 seconds": ("weights.loaded", {"seconds": 30.1}),
    "rank 3 in world size 4 is assigned as DP rank 3, PP rank 0, TP rank 0, EP rank 3": ("engine.rank", {"rank": 3, "ep": 3}),
    "Application startup complete.": ("engine.ready", {}),
    "The server is fired up and ready to roll!": ("engine.ready", {"warm": "fired up and ready to roll"}),
    "Server restarted by the supervisor, version 1": ("engine.start", {}),
}  # fmt: skip


@pytest.mark.parametrize("message", EVENTS, ids=range(len(EVENTS)))
def test_events(message):
    kind, fields = EVENTS[message]
    (row,) = [r for r in run_of(x=P + message + "\n").rows("log") if r["kind"] == kind]
    assert {k: row["fields"].get(k) for k in fields} == fields
    assert row["text"] == P + message


@pytest.mark.parametrize("message", EVENTS, ids=range(len(EVENTS)))
def test_each_event_holds_a_word_of_the_parser(message):
    assert any(word in message.lower() for word in words.ENGINE)


@pytest.mark.parametrize(
    "message",
    [
        "JIT cache hit for kernel foo",
        "JIT compilation is disabled",
        "No JIT compilation was needed",
        "JIT monitor enabled",
        "Using default MoE config. Performance might be sub-optimal!",
        "memory snapshot disabled",
        "memory snapshot not written: no history",
        "failed 0, oom 0, preempted 0",
        "POST /v1/completions HTTP/1.1 200 OK",
        "Prefill batch size is limited",
    ],
)
def test_words_that_are_no_event(message):
    assert run_of(x=P + message + "\n").rows("log") == ()


def test_prose_is_no_event():
    prose = "- MoE backend line differs between runs\n- 22 stalls line up with Rearranging experts lines\n"
    assert run_of(x=prose).rows("log") == ()


def phases(*messages):
    text = "".join(DAY.format(f"{i:02d}") + m + "\n" for i, m in enumerate(messages))
    return {r["kind"]: r["phase"] for r in run_of(x=text).rows("log") if r["kind"].startswith("jit")}, run_of(x=text)


COMPILE = "DeepGEMM JIT code generation <g>: M=7. Please wait."
TRAFFIC = "Decode batch. #running-req: 5, #token: 4,"
UP, WARM = "Application startup complete.", "The server is fired up and ready to roll!"


@pytest.mark.parametrize(
    ("messages", "phase"),
    [
        ((COMPILE, UP), "startup"),
        ((UP, COMPILE), "serving"),
        ((UP, COMPILE, WARM), "startup"),
        ((UP, WARM, COMPILE), "serving"),
        ((TRAFFIC, COMPILE), "serving"),
        ((COMPILE,), None),
        ((UP, TRAFFIC, "Server restarted by the supervisor", COMPILE), "startup"),
        ((UP, "Server restarted by the supervisor", UP, COMPILE), "serving"),
        ((TRAFFIC, COMPILE, "Load weight begin. avail mem=7 GB", UP), "serving"),
    ],
)
def test_phases(messages, phase):
    assert phases(*messages)[0]["jit.compile"] == phase


def test_phase_follows_time_not_the_order_of_workers():
    text = (
        f"(Worker_TP0 pid=1) INFO [  -20.0s] [a.py:1] {COMPILE}\n(Worker_TP0 pid=1) INFO [  +20.0s] [a.py:1] {COMPILE}\n"
        f"(APIServer pid=2) INFO [   -2.0s] {UP}\n"
    )
    assert [r["phase"] for r in run_of(x=text).rows("log")] == ["startup", "serving", "serving"]


def test_a_quoted_countdown_is_no_event():
    told = "steps until the next rearrangement: -40\n"
    balance = "EPLB step: avg_tokens=4096.00, max_tokens=4448, balancedness=0.9209\n"
    assert run_of(x=told + "> " + told + "> " + balance).rows("log") == ()
    assert len(run_of(x=P + told + "> " + P + told + balance).rows("log")) == 3

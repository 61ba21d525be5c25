"""Log lines about memory that are no error."""

import pytest

from moexray.core.run import Reading
from moexray.readers.lines import clean_lines, memory_events

GIB, MIB = 1 << 30, 1 << 20


def events(text):
    out = Reading("text")
    memory_events.parse(clean_lines(text), out)
    return [(r["kind"], r["fields"]) for r in out.tables.get("log", [])]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("Requested memory budget: 29.81 GiB (gpu_memory_utilization=0.95 of 31.38 GiB)", {"budget": 29.81, "total": 31.38, "utilisation": 0.95}),
        ("Model weights: 9.98 GiB, estimated KV cache budget: 19.0 GiB", {"weights": 9.98, "kv": 19.0}),
        ("the current vLLM instance can use total_gpu_memory (79.11GiB) x gpu_memory_utilization (0.97) = 76.74GiB", {"total": 79.11, "utilisation": 0.97, "budget": 76.74}),
        (
            "model weights take 40.10GiB; non_torch_memory takes 1.10GiB; PyTorch activation peak memory takes 2.34GiB; the rest of the memory reserved for KV Cache is 33.20GiB.",
            {"weights": 40.10, "non_torch": 1.10, "activation": 2.34, "kv": 33.20},
        ),
        (
            "Memory profiling takes 8.16 seconds. Total non KV cache memory: 15.60GiB; torch peak memory increase: 1.20GiB; non-torch forward increase memory: 0.10GiB; weights memory: 14.30GiB.",
            {"activation": 1.20, "non_torch": 0.10, "weights": 14.30},
        ),
        (
            "Desired GPU memory utilization is (0.9, 71.23 GiB). Actual usage is 14.99 GiB for weight, 1.2 GiB for peak activation, 0.13 GiB for non-torch memory, and 0.6 GiB for CUDAGraph memory.",
            {"utilisation": 0.9, "budget": 71.23, "weights": 14.99, "activation": 1.2, "non_torch": 0.13, "graphs": 0.6},
        ),
        ("Available KV cache memory: 21.43 GiB", {"kv": 21.43}),
        ("Model loading took 29.11 GiB and 9.512837 seconds", {"weights": 29.11}),
        ("KV Cache is allocated. #tokens: 231448, KV size: 14.01 GB", {"kv": 14.01}),
        ("KV Cache is allocated. #tokens: 5, K size: 7.00 GB, V size: 7.50 GB", {"kv": 14.50}),
        ("Load weight end. type=X, dtype=torch.bfloat16, avail mem=24.11 GB, mem usage=53.51 GB.", {"weights": 53.51}),
    ],
)
def test_budget_lines(line, fields):
    ((kind, found),) = events("INFO 01-12 09:30:04 [a.py:1] " + line)
    assert kind == "mem.budget"
    for name, value in fields.items():
        if name == "utilisation":
            assert found["utilisation"] == value
        else:
            assert found[f"{name}_bytes"] == pytest.approx(value * GIB, rel=1e-6)


def test_capture_lines():
    text = (
        "[2025-07-29 18:14:23 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=11.43 GB\n"
        "[2025-07-29 18:14:43 TP0] Capture cuda graph end. Time elapsed: 19.50 s. mem usage=6.19 GB. avail mem=5.24 GB.\n"
        "INFO 07-29 11:31:40 [gpu_model_runner.py:2306] Graph capturing finished in 21 secs, took 1.40 GiB\n"
    )
    (one, begin), (two, end), (three, vllm) = events(text)
    assert (one, two, three) == ("mem.capture_begin", "mem.capture_end", "mem.capture_end")
    assert begin["avail_bytes"] == pytest.approx(11.43 * GIB, rel=1e-6)
    assert end == {
        "avail_bytes": round(5.24 * GIB), "cost_bytes": round(6.19 * GIB), "elapsed_s": 19.5,
    }
    assert vllm == {"cost_bytes": round(1.4 * GIB), "elapsed_s": 21.0}


@pytest.mark.parametrize(
    ("line", "tokens", "size"),
    [
        ("prefill chunk 3: new tokens=8192, accumulated_tokens=24576, logits buffer 864.00 MiB", 24576, 864 * MIB),
        ("indexer logits [8192 x 24576] fp32: 768.00 MiB (context length 24576)", 24576, 768 * MIB),
        ("allocating 2.00 GiB workspace for 65,536 tokens", 65536, 2 * GIB),
        ("attention workspace: seq_len=4096 workspace_bytes=805306368", 4096, 805306368),
        ("chunk max_tokens=8192 ctx_len: 16384 temporary tensor 1.00 GiB", 16384, GIB),
    ],
)
def test_buffers_in_other_words(line, tokens, size):
    ((kind, fields),) = events("INFO 05-13 17:02:09 [f.py:88] " + line)
    assert kind == "mem.activation"
    assert (fields["tokens"], fields["bytes"]) == (tokens, size)


def test_buffers_with_tokens():
    ((kind, fields),) = events("INFO 05-13 17:02:09 [f.py:88] moe chunk: tokens=8120, intermediate buffer 285.47 MiB (36864 bytes per token)")
    assert kind == "mem.activation"
    assert (fields["tokens"], fields["per_token_bytes"]) == (8120, 36864)
    assert fields["bytes"] == round(285.47 * MIB)
    assert events("INFO: GPU KV cache size: 468,128 tokens, 21.43 GiB") != [("mem.activation", {})]
    assert events("INFO: Avg prompt throughput: 3966.1 tokens/s, buffer 2 GiB/s") == []


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("[ 8123.4] Memory cgroup out of memory: Killed process 4242 (python3) total-vm:912345678kB, anon-rss:498216448kB, file-rss:1kB", {"pid": 4242, "name": "python3", "anon_rss_bytes": 498216448 * 1024}),
        ("[ 8123.4] Out of memory: Killed process 77 (ray::Worker) total-vm:9kB, anon-rss:8kB", {"pid": 77, "name": "ray::Worker"}),
        ("[ 8123.4] Out of memory: Kill process 77 (python) score 905 or sacrifice child", {"pid": 77, "name": "python"}),
        ("[ 8123.4] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/a,task_memcg=/a/b,task=python3,pid=4242,uid=0", {"pid": 4242, "name": "python3", "memcg": True}),
        ("[ 8123.4] memory: usage 536870912kB, limit 536870912kB, failcnt 91021", {"by": "limit", "limit_bytes": 512 * GIB}),
        ("systemd[1]: serve.service: A process of this unit has been killed by the OOM killer.", {"by": "service"}),
        ("systemd[1]: serve.service: Failed with result 'oom-kill'.", {"by": "service"}),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.", {"by": "service"}),
        ("    Reason:       OOMKilled", {"by": "container"}),
        ('            "OOMKilled": true,', {"by": "container"}),
        ("pod-a   0/1   OOMKilled   3   5m", {"by": "container"}),
        ("(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM)", {"by": "ray"}),
        ("oom_kill 3", {"by": "counter", "count": 3}),
    ],
)
def test_kills_by_the_hosts_memory(line, fields):
    ((kind, found),) = events(line)
    assert kind == "host.oom_kill"
    assert fields.items() <= found.items()


@pytest.mark.parametrize(
    "line",
    [
        "systemd[1]: serve.service: oom_score_adj set to -500, OOMPolicy=continue.",
        "oom_kill 0",
        "INFO health ok; oom_events=0 retries=0 restarts=0",
        "INFO oom guard enabled: threshold 0.97",
        "slurmstepd: Detected 0 oom-kill event(s) in StepId=1.0",
        "INFO engine stopped on request (exit code 137)",
    ],
)
def test_words_near_it(line):
    assert events(line) == []


def test_deaths_by_signal_9_and_what_clears_them():
    assert events("ERROR [m.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)")[0][0] == "host.killed"
    assert events("        exitCode: 137")[0][0] == "host.killed"
    assert events('    "OOMKilled": false,')[0][0] == "host.not_oom"


def test_driver_faults():
    ((kind, fields),) = events("[ 12.1] NVRM: Xid (PCI:0000:19:00): 79, pid=4242, name=python3, GPU has fallen off the bus.")
    assert kind == "gpu.xid"
    assert (fields["xid"], fields["pid"], fields["name"]) == (79, 4242, "python3")


def test_custom_all_reduce():
    assert events("Failed: Cuda error csrc/custom_all_reduce.cuh:455 'invalid argument'") == [("mem.custom_all_reduce", {"state": "failed"})]
    assert events("WARNING [a.py:1] Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.") == [
        ("mem.custom_all_reduce", {"state": "off"})
    ]

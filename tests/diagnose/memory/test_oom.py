"""Rules on out-of-memory records: a positive and a near miss of each, with arithmetic by hand."""

import json

import pytest

from moexray.diagnose.memory.oom_ledger import ledger
from text_runs import actions, ruled_out, run_of, said

GIB, MIB = 1 << 30, 1 << 20


def record(request, free, total="79.11 GiB", process="78.79 GiB", allocated="77.52 GiB", fragments="402.11 MiB", **more):
    who = f"Including non-PyTorch memory, this process has {process} memory in use. " if process else ""
    other = f"Process 811 has {more['other']} memory in use. " if "other" in more else ""
    allowed = f"{more['allowed']} allowed; " if "allowed" in more else ""
    device = more.get("device", 0)
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {request}. GPU {device} has a total capacity of "
        f"{total} of which {free} is free. {other}{who}{allowed}Of the allocated memory {allocated} is allocated by PyTorch, "
        f"with 62.00 MiB allocated in private pools (e.g., CUDA Graphs), and {fragments} is reserved by PyTorch but "
        "unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )


CASES = {
    # 310 + 402.11 = 712.11 MiB < 1536 MiB; outside PyTorch 0.88 GiB; other 0.02 GiB
    "mem.true_exhaustion": record("1.50 GiB", "310.00 MiB"),
    # 2.11 GiB >= 500 MiB > 310 MiB
    "mem.fragmentation": record("500.00 MiB", "310.00 MiB", allocated="75.52 GiB", fragments="2.11 GiB"),
    # 400 + 310 = 710 >= 600 MiB, neither alone
    "mem.fragmentation_contributes": record("600.00 MiB", "310.00 MiB", fragments="400.00 MiB"),
    # 60 GiB free against 2 GiB
    "mem.limit_below_free": record("2.00 GiB", "60.00 GiB", process="16.00 GiB", allocated="15.00 GiB", fragments="200.00 MiB"),
    # other = 79.11 - 76.00 - 0.30 = 2.81 GiB > 512 MiB and > what is missing
    "mem.other_process": record("900.00 MiB", "310.00 MiB", process="76.00 GiB", allocated="75.20 GiB", fragments="100.00 MiB"),
    # 17.12 GiB on a card of 11.99 GiB
    "mem.oversubscription": record("2.00 GiB", "0 bytes", total="11.99 GiB", process="", allocated="17.12 GiB"),
    # 78.79 - 71.50 - 0.10 = 7.19 GiB; less 1.5 GiB still above the request
    "mem.non_torch": record("138.00 MiB", "2.19 MiB", allocated="71.50 GiB", fragments="100.00 MiB"),
    "mem.oom_unexplained": "RuntimeError: CUDA error: out of memory",
}


@pytest.mark.parametrize("id", sorted(CASES))
def test_each_verdict_has_its_record(id):
    found = said(a=CASES[id])
    assert next(iter(found)) == id
    assert found[id].severity == "error"
    assert found[id].evidence
    wrong = set(CASES) - {id}
    assert not wrong & set(found)


def test_exhaustion_says_why_it_is_no_fragmentation_and_offers_no_allocator_setting():
    found = said(a=CASES["mem.true_exhaustion"])["mem.true_exhaustion"]
    assert "712.11 MiB" in found.claim
    assert found.value == pytest.approx(712.11 * MIB, rel=1e-4)
    assert found.limit == 1.5 * GIB
    assert "expandable_segments" not in actions(found)
    # short without fragments: 1536 - 712.11 = 823.89 MiB of 79.11 GiB = 1.02 % -> 0.02
    assert "by 0.02" in actions(found)
    out = ruled_out(a=CASES["mem.true_exhaustion"])["mem.fragmentation"]
    assert "0.50 % of PyTorch's pool" in out.claim


def test_identical_numbers_in_several_runs():
    text = CASES["mem.true_exhaustion"]
    found = said(a=text, b=text.replace("this process", "this process"), c=text)["mem.true_exhaustion"]
    assert "identical in 3 runs" in found.claim
    assert "utilization" not in actions(found)


def test_the_setting_that_differs_is_named():
    text = CASES["mem.true_exhaustion"]
    launch = "vllm serve MODEL --gpu-memory-utilization {} --max-num-seqs 8\n{}\n"
    found = said(a=launch.format("0.8", text), b=launch.format("0.6", text))["mem.true_exhaustion"]
    assert "gpu_memory_utilization" in found.claim
    assert "max_num_seqs" not in found.claim


def test_fragmentation_offers_the_setting_only_after_the_check():
    text = CASES["mem.fragmentation"]
    unknown = said(a=text)["mem.fragmentation"]
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True" in actions(unknown)
    assert "no launch settings were given" in unknown.remedies[0].caveats
    clear = said(a=text, b="vllm serve M --tensor-parallel-size 1")["mem.fragmentation"]
    assert "expandable_segments:True" in actions(clear)
    blocked = said(a=text, b="vllm serve M -tp 4")
    assert "expandable_segments:True" not in actions(blocked["mem.fragmentation"])
    assert "max_split_size_mb" in actions(blocked["mem.fragmentation"])
    assert blocked["advice.expandable_segments_unsafe"].severity == "info"
    assert "advice.expandable_segments_unsafe" not in said(a=text, b="vllm serve M -tp 4 --disable-custom-all-reduce")


def test_old_releases_get_no_setting_that_they_do_not_know():
    text = (
        "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 23.69 GiB total capacity; 21.10 GiB already "
        "allocated; 30.00 MiB free; 21.98 GiB reserved in total by PyTorch)"
    )
    found = said(a=text)["mem.fragmentation"]
    assert "expandable" not in actions(found)
    assert "max_split_size_mb" in actions(found)


def test_memory_outside_pytorch_leads_and_fragmentation_stands_below():
    # outside: 79.12 - 71.57 - 0.60 = 6.95 GiB; fragments 611.6 MiB >= 138 MiB
    text = record("138.00 MiB", "2.19 MiB", total="79.15 GiB", process="79.12 GiB", allocated="71.57 GiB", fragments="611.60 MiB")
    found = said(a=text)
    assert list(found) == ["mem.non_torch", "mem.fragmentation"]
    assert found["mem.non_torch"].value == pytest.approx(6.95 * GIB, rel=1e-2)
    assert "second, real cause" in found["mem.non_torch"].claim


def test_the_engines_own_budget_decides():
    budget = "INFO 01-01 10:00:00 [gpu_worker.py:1] Requested memory budget: 29.81 GiB (gpu_memory_utilization=0.95 of 31.38 GiB)\n"
    text = record(
        "128.00 MiB", "26.00 MiB", total="31.38 GiB", process="31.18 GiB", allocated="29.34 GiB", fragments="61.00 MiB"
    )
    found = said(a=budget + text)["mem.non_torch"]
    assert "1.37 GiB over the engine's own budget" in found.claim
    assert "4.4 %" in found.claim
    assert "by 0.05" in actions(found)  # 1.37 / 31.38 = 4.4 %
    normal = text.replace("29.34 GiB", "29.54 GiB")  # 1.58 GiB outside PyTorch: an ordinary context
    assert list(said(a=normal)) == ["mem.true_exhaustion"]
    assert "mem.non_torch" in said(a=budget + normal)
    covered = normal.replace("61.00 MiB is reserved", "161.00 MiB is reserved")
    assert "mem.non_torch" not in said(a=budget + covered)


def test_within_the_rounding_the_neighbour_is_named():
    # 1 GiB of fragments against 1.00 GiB requested: closer than the printed digits
    text = record("1.00 GiB", "310.00 MiB", allocated="76.00 GiB", fragments="1.00 GiB")
    found = said(a=text)["mem.fragmentation"]
    assert found.confidence <= 0.6
    assert "at the margin" in found.claim
    assert "mem.fragmentation_contributes" in found.claim


def test_a_hair_more_than_requested_is_no_limit():
    near = record("1.30 GiB", "1.31 GiB", process="77.79 GiB", allocated="73.20 GiB", fragments="3.22 GiB")
    assert list(said(a=near)) == ["mem.fragmentation"]
    clear = record("1.30 GiB", "2.60 GiB", process="76.50 GiB", allocated="73.20 GiB", fragments="1.90 GiB")
    assert list(said(a=clear)) == ["mem.limit_below_free"]


def test_a_limit_that_the_message_names():
    text = record("2.00 GiB", "60.00 GiB", process="", allocated="15.00 GiB", fragments="200.00 MiB", allowed="16.00 GiB")
    found = said(a=text)["mem.limit_below_free"]
    assert "16.00 GiB are allowed" in found.claim
    assert found.settle_with == ()
    assert said(a=CASES["mem.limit_below_free"])["mem.limit_below_free"].settle_with


def test_a_listed_process_is_named():
    text = record("900.00 MiB", "200.00 MiB", process="76.90 GiB", allocated="75.60 GiB", fragments="100.00 MiB", other="2.00 GiB")
    found = said(a=text)["mem.other_process"]
    assert "process 811 with 2.00 GiB" in found.claim
    assert "by 0.03" in actions(found)  # other = 79.11 - 76.90 - 0.20 = 2.01 GiB = 2.6 %
    small = record("4.00 GiB", "307.20 MiB", process="78.40 GiB", allocated="77.00 GiB", fragments="204.80 MiB")
    assert list(said(a=small)) == ["mem.true_exhaustion"]  # 420 MiB are no other process


def test_a_value_that_no_device_can_have_is_unknown():
    text = record("2.00 GiB", "1.00 GiB", process="17179869184.00 GiB", allocated="77.00 GiB")
    found = said(a=text)
    assert list(found) == ["mem.true_exhaustion"]
    assert "process_bytes" not in found["mem.true_exhaustion"].evidence[1].text


def test_a_cut_message_lowers_the_confidence():
    text = CASES["mem.true_exhaustion"].partition(", with")[0] + "..."
    found = said(a=text)["mem.true_exhaustion"]
    assert found.confidence < 0.6
    assert found.settle_with


CAPTURE = (
    "INFO 01-12 09:30:46 [w.py:1] the current vLLM instance can use total_gpu_memory (79.11GiB) x gpu_memory_utilization (0.97)"
    " = 76.74GiB\n"
    "INFO 01-12 09:30:46 [w.py:2] model weights take 40.10GiB; non_torch_memory takes 1.10GiB; PyTorch activation peak memory "
    "takes 2.34GiB; the rest of the memory reserved for KV Cache is 33.20GiB.\n"
    "INFO 01-12 09:30:47 [w.py:3] Available KV cache memory: 33.20 GiB\n"
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|| 0/67 [00:00<00:00, 17.20it/s]\n"
)
READY = "INFO:     Application startup complete.\n"


def test_capture_headroom_and_its_sum():
    found = said(a=CAPTURE + CASES["mem.true_exhaustion"])["mem.capture_headroom"]
    assert "while capturing graphs" in found.claim
    # 40.10 + 1.10 + 2.34 + 33.20 = 76.74 = 0.97 x 79.11
    assert "= 76.74 GiB, as the engine's own budget is 76.74 GiB" in found.claim
    assert found.limit == pytest.approx(0.03 * 79.11 * GIB, rel=1e-3)
    assert "by 0.02" in actions(found)


def test_after_ready_it_is_no_capture():
    # 78.79 - 76.74 = 2.05 GiB over its budget, more than the request
    assert list(said(a=CAPTURE + READY + CASES["mem.true_exhaustion"])) == ["mem.non_torch"]
    # fragments cover the request: not the headroom
    assert "mem.fragmentation" in said(a=CAPTURE + CASES["mem.fragmentation"])


def test_frames_of_the_traceback_say_capture_as_well():
    frames = 'Traceback (most recent call last):\n  File "x/cuda_graph_runner.py", line 3, in capture\n    run()\n'
    assert "mem.capture_headroom" in said(a=frames + CASES["mem.true_exhaustion"])
    loading = 'Traceback (most recent call last):\n  File "x.py", line 3, in load_model\n    run()\n'
    found = said(a=loading + CASES["mem.true_exhaustion"])["mem.true_exhaustion"]
    assert "while loading the weights" in found.claim
    assert "utilization" not in actions(found)


def buffers(growth, ranks=2, points=6):
    lines = []
    for i in range(1, points + 1):
        for r in range(ranks):
            tokens = 8192 * i
            size = tokens * 32768 * growth(r)
            lines.append(f"[2026-02-03 08:10:{i:02d} TP{r}] logits buffer: context tokens={tokens}, allocating {size / MIB:.2f} MiB")
    return "\n".join(lines) + "\n"


def test_a_buffer_that_grows_alike_on_all_ranks():
    # next size 1.75 GiB = 7 x 8192 x 32768 bytes; free + fragments = 712.11 MiB
    text = buffers(lambda r: 1) + record("1.75 GiB", "310.00 MiB")
    found = said(a=text)["mem.unbudgeted_activation"]
    assert found.value == pytest.approx(32768, rel=1e-3)
    assert "32,768 bytes per token" in found.claim
    # 712.11 MiB / 32768 = 22,788 tokens
    assert "22,7" in found.claim


@pytest.mark.parametrize("text", [buffers(lambda r: 1 + r), buffers(lambda r: 1, points=2)])
def test_ranks_that_differ_or_one_sample_are_no_series(text):
    assert list(said(a=text + record("1.75 GiB", "310.00 MiB"))) == ["mem.true_exhaustion"]


SHAPE = '{"hidden_size": 7168, "n_routed_experts": 256}\n'
DEEPEP = (
    "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK={} python -m sglang.launch_server --model M --tp 8 "
    "--moe-a2a-backend {} --deepep-mode low_latency\n"
)
OUTSIDE = record("1.50 GiB", "310.00 MiB", allocated="68.52 GiB")


def test_buffers_of_the_all_to_all_are_the_owner():
    # 256 x 512 x (2 x 7168 x 2) x 2 = 7.0 GiB of 9.88 GiB outside PyTorch
    found = said(launch=DEEPEP.format(512, "deepep"), config="model config: " + SHAPE, log=OUTSIDE)
    assert next(iter(found)) == "mem.non_torch_buffers"
    assert found["mem.non_torch_buffers"].value == 256 * 512 * 4 * 7168 * 2
    assert "DISPATCH_TOKENS" in actions(found["mem.non_torch_buffers"])


@pytest.mark.parametrize(
    ("launch", "shape"),
    [
        (DEEPEP.format(512, "none"), SHAPE),  # backend not in use
        (DEEPEP.format(64, "deepep"), SHAPE),  # 0.9 GiB explain too little
        (DEEPEP.format(512, "deepep"), ""),  # shape unknown
    ],
)
def test_otherwise_the_owner_is_not_named(launch, shape):
    assert next(iter(said(launch=launch, config="model config: " + shape, log=OUTSIDE))) == "mem.non_torch"


def test_many_devices_are_summed_up():
    text = "\n".join(record("1.50 GiB", "310.00 MiB", device=i) for i in range(8))
    found = said(a=text)["mem.true_exhaustion"]
    assert "8 ranks or devices fail alike" in found.claim
    assert found.subject.device is None


def test_a_record_of_an_earlier_process_is_only_listed():
    start = "INFO 01-12 09:30:04 [core.py:93] Initializing a V1 LLM engine (v0.17.0) with config: model='M'\n"
    text = CASES["mem.true_exhaustion"] + "\n" + start + READY
    assert said(a=text) == {}
    assert "earlier process" in ruled_out(a=text)["mem.oom_unexplained"].claim
    assert list(said(a=text + CASES["mem.true_exhaustion"])) == ["mem.true_exhaustion"]


def test_the_ledger_adds_up_to_the_device():
    rows = ledger(run_of(a=CASES["mem.other_process"]))
    owners = {r["owner"]: r["bytes"] for r in rows}
    assert {"torch allocated", "graph pools", "torch cached", "non-torch", "other processes", "free"} <= set(owners)
    assert sum(owners.values()) == pytest.approx(79.11 * GIB, rel=1e-4)
    old = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 6.00 GiB already allocated; 1.00 GiB free; 6.50 GiB reserved in total by PyTorch)"
    owners = {r["owner"]: r["bytes"] for r in ledger(run_of(a=old))}
    assert owners["unknown"] == pytest.approx(0.5 * GIB, rel=1e-6)


FRAMES = 'Traceback (most recent call last):\n  File "/x/core.py", line 7, in run\n    f()\n'


@pytest.mark.parametrize(
    "record_of",
    [
        lambda m: {"ts": 1768212000.5, "severity": "error", "msg": "worker failed", "exc_info": FRAMES + m},
        lambda m: {"time": 1768212000500, "level": 50, "msg": "failed", "err": {"message": m, "stack": FRAMES + m}},
        lambda m: {"@timestamp": "2026-01-12T10:00:00Z", "message": "died", "error": {"stack_trace": FRAMES + m}},
        lambda m: {"severity": "ERROR", "timestamp": "2026-01-12T10:00:00Z", "jsonPayload": {"message": m}},
        lambda m: {"text": "2026-01-12 10:00:00 | ERROR | x:y:1 - boom\n" + m, "record": {"message": "boom"}},
    ],
)
@pytest.mark.parametrize("shape", [lambda r: r, lambda r: [r, r], lambda r: {"total": 1, "logs": [r]}])
@pytest.mark.parametrize("indent", [None, 2])
def test_structured_logs(record_of, shape, indent):
    found = said(log=json.dumps(shape(record_of(CASES["mem.fragmentation"])), indent=indent))
    assert list(found) == ["mem.fragmentation"]


def test_a_deep_json_document_is_no_program():
    found = said(pod=json.dumps({"a": {"b": {"c": {"terminated": {"message": CASES["mem.true_exhaustion"]}}}}}, indent=2))
    assert list(found) == ["mem.true_exhaustion"]


def test_a_record_before_a_restart_is_of_an_earlier_process():
    start = "INFO 01-12 09:0{}:00 [api.py:1] vLLM API server version 0.11.0\n"
    failed = "ERROR 01-12 09:02:00 [core.py:1] " + CASES["mem.true_exhaustion"] + "\n"
    served = "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n"
    assert said(log=start.format(1) + failed + start.format(3) + served) == {}
    assert "mem.true_exhaustion" in said(log=start.format(1) + failed + start.format(3))


ERROR = "ERROR 01-12 09:02:00 [core.py:1] "


@pytest.mark.parametrize(
    "text",
    [
        ERROR + "Caught exception in busy loop: {}\n",
        ERROR + "{}\nINFO 01-12 09:02:01 [core.py:1] caught signal 15, shutting down\n",
        ERROR + "{}\n[rank1]: Watchdog caught a timeout of a collective\n",
        ERROR + "{}\nINFO 01-12 09:02:01 [core.py:1] HINT: try a smaller batch size\n",
    ],
)
def test_words_of_those_who_log_it_do_not_make_a_record_expected(text):
    assert "mem.true_exhaustion" in said(log=text.format(CASES["mem.true_exhaustion"]))


@pytest.mark.parametrize(
    "text",
    [
        "bs=64 -> OOM ({})\nbs=32 -> ok\nBest batch size: 32\n",
        "{}\nDecreasing batch size to: 32.\n",
        "INFO 01-12 09:02:00 [t.py:1] {}\nINFO 01-12 09:02:01 [t.py:2] caught it, going on\n",
    ],
)
def test_a_search_is_no_failure(text):
    assert said(log=text.format(CASES["mem.true_exhaustion"])) == {}


def test_the_launch_line_gives_the_share_of_the_device():
    log = "Capturing CUDA graph shapes:  23%\n" + ERROR + CASES["mem.true_exhaustion"]
    found = said(launch="vllm serve M --gpu-memory-utilization 0.95", log=log)
    assert "Utilisation 0.95 leaves" in found["mem.capture_headroom"].claim


# 256 experts x 512 tokens x (2 directions x 7168 x 2 bytes) x 2 copies = 7 GiB
MODEL = {"hidden_size": 7168, "n_routed_experts": 256, "num_experts_per_tok": 8}
LOW_LATENCY = (
    "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK={} python -m sglang.launch_server --model-path M --tp 8 "
    "--moe-a2a-backend {} --deepep-mode {}"
)


@pytest.mark.parametrize(
    ("tokens", "backend", "mode", "model", "id"),
    [
        (512, "deepep", "low_latency", MODEL, "mem.non_torch_buffers"),
        (512, "deepep", "low_latency", {"text_config": MODEL, "model_type": "x"}, "mem.non_torch_buffers"),
        (512, "none", "low_latency", MODEL, "mem.non_torch"),
        (512, "deepep", "normal", MODEL, "mem.non_torch"),
        (128, "deepep", "low_latency", MODEL, "mem.non_torch"),  # 1.75 of 10.4 GiB
        (512, "deepep", "low_latency", {}, "mem.non_torch"),
    ],
)
def test_buffers_follow_from_a_model_configuration(tokens, backend, mode, model, id):
    # outside PyTorch 139.40 - 127.00 - 0.49 = 11.91 GiB, less 1.5 GiB
    log = record("2.00 GiB", "300.00 MiB", "139.80 GiB", "139.40 GiB", "127.00 GiB", "500.00 MiB")
    files = {"launch": LOW_LATENCY.format(tokens, backend, mode), "config": json.dumps(model), "log": log}
    found = said(**files)
    assert list(found) == [id]
    stats = {"allocated_bytes": 120 << 30, "reserved_bytes": 125 << 30, "num_alloc_retries": 0, "num_ooms": 0}
    smi = "index, memory.used [MiB], memory.total [MiB]\n0, 140000 MiB, 143771 MiB\n"  # 11.7 GiB outside
    found = said(**{**files, "log": json.dumps(stats), "smi": smi})
    assert list(found) == [id]


def test_a_comment_in_settings_is_no_record():
    text = "model: m\n# we had {} with 0.95\ngpu_memory_utilization: 0.90\n"
    assert said(settings=text.format(CASES["mem.true_exhaustion"].partition(": ")[2])) == {}

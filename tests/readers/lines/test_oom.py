"""What is a record of an out-of-memory error and what only speaks of one."""

import pytest

from moexray.core.run import Reading
from moexray.readers.lines import clean_lines, oom

MESSAGE = (
    "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 310.00 MiB is free. "
    "Including non-PyTorch memory, this process has 78.79 GiB memory in use. Of the allocated memory 77.52 GiB is allocated "
    "by PyTorch, with 62.00 MiB allocated in private pools (e.g., CUDA Graphs), and 402.11 MiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation."
)
ERROR = "torch.OutOfMemoryError: " + MESSAGE
PYTEST = "============================= test session starts ==============================\n{}\n{}\n"


def rows(text):
    out = Reading("text")
    oom.parse(clean_lines(text), out)
    return out.tables.get("oom", [])


def kinds(text):
    return [r["kind"] for r in rows(text)]


RECORDS = {
    "plain": ERROR,
    "chat": f"[10:02] user_a: the server died again\n[10:02] user_a: > {ERROR}\n[10:03] user_b: try expandable_segments",
    "issue": f"### Describe the bug\n\nThe server crashes with:\n\n```text\n{ERROR}\n```\n\nWhat should I do?",
    "mail": f"Hello,\n\nwe get this error every night:\n\n> {ERROR}\n\nRegards",
    "repr": f"ERROR 10-11 12:27:29 engine.py:157] OutOfMemoryError('Error in model execution (input dumped to x.pkl): {MESSAGE}')",
    "logfmt": f'level=error msg="{MESSAGE}"',
    "traceback": f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    return model(x)\n{ERROR}',
    "failing test": PYTEST.format("E   " + ERROR, "========================= 1 failed, 1 passed in 4.12s =========="),
    "crash of the last try": f"INFO batch 8 of 16\n{ERROR}\nINFO shutting down",
    "rich": "│ " + ERROR[:100] + " │\n│ " + ERROR[100:200] + " │\n│ " + ERROR[200:300] + " │\n│ " + ERROR[300:420] + " │\n",
    "split repr": "('" + MESSAGE[:80] + "'\n '" + MESSAGE[80:160] + "'\n '" + MESSAGE[160:300] + "'\n '" + MESSAGE[300:460] + "')",
    "head cut off": "...memory. " + MESSAGE.partition("memory. ")[2],
    "mail with soft breaks": "\n".join(ERROR[i : i + 60] + "=" for i in range(0, len(ERROR), 60)),
}


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_message_with_numbers_counts(name):
    (row,) = rows(RECORDS[name])
    assert row["kind"] == "record"
    assert row["request_bytes"] == 3 << 29
    assert row["fragments_bytes"] == round(402.11 * (1 << 20))


NONE = {
    "comment in source": f'import torch\n\n# Messages look like: "{MESSAGE}"\n\ndef f(x):\n    return x\n',
    "string in source": f'import torch\n\nMESSAGE = "{MESSAGE}"\n\ndef f(x):\n    raise RuntimeError("CUDA error: out of memory")\n',
    "raise in source": f'def f(x):\n    raise RuntimeError("{MESSAGE}")\n',
    "c++": f'#include <c10.h>\n// {MESSAGE}\nTORCH_CHECK(false, "{MESSAGE}");\n',
    "template": "`CUDA out of memory. Tried to allocate <size>. GPU <n> has a total capacity of <total> of which <free> is free.`",
    "x.xx": "RuntimeError: CUDA out of memory. Tried to allocate X.XX GiB (GPU 0; X.XX GiB total capacity; X.XX GiB free)",
    "format": "RuntimeError: CUDA out of memory. Tried to allocate {size}. GPU {n} has a total capacity of {total}.",
    "ellipsis": "RuntimeError: CUDA out of memory. Tried to allocate ...",
    "documentation": f"# Memory\n\nIf a job needs too much you will see an error like this:\n\n    {ERROR}\n\nReduce the batch.",
    "for example": f"Errors of this kind read, for example: {ERROR}",
    "passing test": PYTEST.format(ERROR, "============================== 2 passed in 4.12s ==============================="),
    "caught": f"-- captured log: {ERROR} caught in test, as expected; batch halved",
    "search": f"WARNING batch 512 failed: {MESSAGE}; trying smaller batch 384\nINFO largest batch that fits: 384",
    "search told later": f"INFO probing batch 512\nWARNING {MESSAGE}\nINFO retrying with smaller batch 384",
    "info": f"INFO 01-12 09:40:11 [tune.py:1] batch 512 -> {MESSAGE}",
    "earlier process": f"INFO note from the previous run: {ERROR}",
    "sentence": "INFO 01-12 09:40:11 [a.py:1] CUDA out of memory errors can be avoided by a smaller batch",
    "setting": "INFO PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8 (helps to avoid 'CUDA out of memory')",
    "release notes": "# Release notes\n\n- fixed an out of memory error at start (thanks to all)",
    "counter": "INFO 01-12 09:37:10 [stats.py:61] preempted 0, failed 0, oom 0, retries 0",
    "test names": "tests/test_oom_guard.py::test_message_of_out_of_memory_error PASSED      [ 50%]",
    "guard": "INFO oom guard enabled: threshold 0.97",
    "other language": "[2026-02-03 08:10:05] 未发现内存不足（out of memory）的历史记录",  # noqa: RUF001
    "what does it mean": "What is `torch.OutOfMemoryError`?\n  The exception class since torch 2.5.",
}


@pytest.mark.parametrize("name", sorted(NONE))
def test_words_about_it_do_not(name):
    assert rows(NONE[name]) == []


BARE = {
    "cuda": "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "accelerator": "torch.AcceleratorError: CUDA error: out of memory",
    "driver": "RuntimeError: CUDA driver error: out of memory",
    "name": "RuntimeError: cudaErrorMemoryAllocation: out of memory",
    "old": "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
    "thc": "THCudaCheck FAIL file=/pytorch/aten/src/THC/THCStorage.cu line=58 error=2 : out of memory",
    "hip": "RuntimeError: HIP error: out of memory",
    "hip name": "ERROR 01-12 09:40:11 [a.py:1] hipErrorOutOfMemory",
    "xpu": "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "triton": "RuntimeError: Triton Error [CUDA]: out of memory",
    "terminate": "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: out of memory",
    "trtllm": "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, pool, stream): out of memory (buffers.h:125)",
    "class only": 'Traceback (most recent call last):\n  File "a.py", line 1\ntorch.OutOfMemoryError:',
    "request only": "torch.OutOfMemoryError: CUDA out of memory.",
}


@pytest.mark.parametrize("name", sorted(BARE))
def test_bare_errors_count_at_error_lines(name):
    assert kinds(BARE[name]) == ["bare"]


def test_a_bare_message_near_a_record_is_the_same_failure():
    text = f"ERROR 01-12 09:40:11 [a.py:1] {ERROR}\nERROR 01-12 09:40:12 [b.py:1] RuntimeError: CUDA error: out of memory"
    assert kinds(text) == ["record"]
    late = text.replace("09:40:12", "11:40:12")
    assert kinds(late) == ["record", "bare"]


def test_several_records_in_one_file_stay_apart():
    other = ERROR.replace("1.50 GiB", "2.00 GiB").replace("GPU 0", "GPU 1")
    found = rows(f"[rank0]: {ERROR}\n[rank1]: {other}\n[rank0]: {ERROR}\n")
    assert [(r["rank"], r["device"], r["repeats"]) for r in found] == [(0, 0, 2), (1, 1, 1)]


def test_equal_numbers_of_two_ranks_are_two_records():
    assert len(rows(f"[rank0]: {ERROR}\n[rank1]: {ERROR}\n")) == 2


def test_equal_numbers_much_later_are_another_failure():
    text = f"ERROR 01-12 09:40:11 [a.py:1] {ERROR}\nERROR 01-12 12:40:11 [a.py:1] {ERROR}\n"
    assert len(rows(text)) == 2


def test_ray_says_how_often():
    (row,) = rows(f"(RayWorkerWrapper pid=4242, ip=10.0.0.3) {ERROR} [repeated 3x across cluster]")
    assert row["repeats"] == 3


def test_the_end_of_a_traceback_has_the_rank_of_its_start():
    text = f'[2026-02-03 09:00:11 TP3] Scheduler hit an exception: Traceback (most recent call last):\n  File "a.py", line 1, in f\n{ERROR}'
    (row,) = rows(text)
    assert (row["rank"], row["worker"]) == (3, "TP3")
    assert row["t_s"] is not None


WARN = "[rank{r}]:[W812 16:00:{s:02d}.643448{n:03d} CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device {r} while trying to allocate {b} bytes (free: {f}, total: 150111977472)."


def test_up_to_three_warnings_are_one_allocation():
    lines = [WARN.format(r=0, s=1, n=i, b=20971520, f=15794176 + i) for i in range(3)]
    lines += [WARN.format(r=0, s=1, n=9, b=20971520, f=15794176)]  # the fourth is another one
    lines += [WARN.format(r=1, s=1, n=9, b=20971520, f=15794176)]
    lines += [WARN.format(r=1, s=9, n=9, b=20971520, f=15794176)]  # eight seconds later
    found = rows("\n".join(lines))
    assert [(r["device"], r["repeats"]) for r in found] == [(0, 3), (0, 1), (1, 1), (1, 1)]
    assert {r["kind"] for r in found} == {"warning"}


@pytest.mark.parametrize(
    ("before", "phase"),
    [
        ("[2026-02-03 08:10:43 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=1.71 GB", "capture"),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|| 0/67 [00:00<00:00, 17.20it/s]", "capture"),
        ("INFO 01-12 09:30:47 [a.py:1] Available KV cache memory: 21.43 GiB", "kv_sizing"),
        ("INFO 01-12 09:30:47 [a.py:1] Available KV cache memory: 21.43 GiB\nINFO:     Application startup complete.", "serving"),
        ("INFO 01-12 09:30:07 [a.py:1] Starting to load model MODEL...", "loading"),
        ('Traceback (most recent call last):\n  File "a.py", line 1, in profile_run', "profiling"),
        ('Traceback (most recent call last):\n  File "a.py", line 1, in initialize_kv_caches', "kv_sizing"),
        ("hello", None),
    ],
)
def test_the_phase_comes_from_the_log(before, phase):
    (row,) = rows(f"{before}\n{ERROR}")
    assert row["phase"] == phase


def test_several_processes_without_a_this_process_clause():
    text = MESSAGE.replace("Including non-PyTorch memory, this process has 78.79 GiB memory in use.",
                           "Process 811 has 1.00 GiB memory in use. Process 812 has 77.99 GiB memory in use.")
    (row,) = rows("torch.OutOfMemoryError: " + text)
    assert row["process_bytes"] == round(77.99 * (1 << 30))
    assert row["others"] == [{"pid": 811, "bytes": 1 << 30}]


def test_old_messages_that_count_what_is_allocated_in():
    text = "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 16.00 GiB total capacity; 12.00 GiB already allocated; 0.50 GiB free; {} cached)"
    assert rows(text.format("15.00 GiB"))[0]["fragments_bytes"] == 3 << 30  # 12 + 15 + 0.5 cannot fit into 16
    assert rows(text.format("3.00 GiB"))[0]["fragments_bytes"] == 3 << 30


def test_a_healthy_text_costs_nothing():
    assert rows("INFO 01-12 09:40:11 [a.py:1] Avg prompt throughput: 1 tokens/s\n" * 5000) == []

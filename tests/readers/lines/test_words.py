"""Each line that gives a row holds a word of its parser: else the parser stays silent, or a large log loses it.

The lines are one sample per form of each parser; a form that is added needs its line here.
"""

import pytest

from moexray.core.run import Reading
from moexray.readers.lines import LINE_PARSERS, WORDS, clean_lines

L = "INFO 01-12 09:40:11 [a.py:1] "
H = "node1:7:9 [0] NCCL "
TABLE = (
    "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |\n"
    "| N/A   34C    P0            120W /  700W |   {}  /  81559MiB |     12%      Default |\n"
)
SAMPLES = {
    "out of memory": (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.11 GiB total capacity)",
        L + "memory allocation failed with OOM on device 0 while trying to allocate 77 bytes (free: 5, total: 99)",
        "RuntimeError: CUDA error: out of memory",
    ),
    "memory": (
        L + "Capturing batches: Capture cuda graph begin. avail mem=7.00 GB",
        L + "Graph capturing finished in 21 secs, took 0.63 GiB",
        L + "Model loading took 27.30 GiB and 30 seconds",
        L + "non_torch memory takes 1.25 GiB",
        L + "KV size: 40.00 GB",
        L + "KV Cache is allocated. #tokens: 100, K size: 17.0 GB, V size: 17.0 GB",
        L + "intermediate tensor of 1.50 GiB at context 4096",
        L + "attention scratch 1.50 GiB, seq_len=4096",
        L + "custom all-reduce is disabled on this platform",
        L + "cudaIpcGetMemHandle failed: invalid argument",
        "Out of memory: Killed process 12 (python) anon-rss:400kB",
        "worker 3 exited with status 137",
        "child terminated by signal 9",
        "    Exit Code:    137",
        "NVRM: Xid (PCI:0000:1b:00): 79, pid=12, GPU has fallen off the bus",
    ),
    "launch": (
        "vllm serve m --tensor-parallel-size 2",
        "TORCH_FR_BUFFER_SIZE=2000",
        "CUDA_VISIBLE_DEVICES=0,1",
        "SGL_X_Y=1",
        "ENV OMP_NUM_THREADS=4",
        "- name: MC_TCP\n  value: '1'",
        "server_args=ServerArgs(tp_size=8)",
        L + "non-default args: {'model': 'x'}",
        '"n_routed_experts": 256,',
        "command:\n- python3\n- -m\n- sglang.launch_server\n- --tp=8",
    ),
    "collectives": (
        "[rank5]: ValueError: boom",
        "[rank5]: Segmentation fault (core dumped)",
        "group ep: [0, 1, 2, 3]",
        "PG 3 members [0, 1, 2, 3]",
        "2 nodes x 8 processes",
        "world_size=16",
        "torchrun --nproc-per-node=8 x.py",
        "[rank1]:[E1 07:12:30 P.cpp:1] [PG ID 0 PG GUID 0(d) Rank 1] Timeout at NCCL work: 12, last enqueued: 13",
        "[rank1]: torch.distributed.DistBackendError: NCCL: connection reset by peer",
        "Ranks 1, 2 failed to pass monitoredBarrier in 300 ms",
    ),
    "nccl debug": (
        H + "INFO comm 0x1 rank 0 nranks 8 cudaDev 0 commId 0x2 - Init COMPLETE",
        H + "WARN NET/IB : Got completion with status=12",
    ),
    "all-to-all": (
        "HybridEP dispatch timeout, src_rank: 3, rank: 1",
        "DeepEP timeout check failed: rank = 3, receiver timeout src_rank 2",
        "RuntimeError: EP error: timeout (dispatch CPU)",
        "RuntimeError: Failed: Assertion error d.cpp:1 'num_tokens <= max_tokens_per_rank'",
        "NUM_MAX_DISPATCH_TOKENS_PER_RANK=256",
    ),
    "bench": (
        "====== Serving Benchmark Result ======\nRequest throughput (req/s): 3.10",
        "====== Results ======\nMean TTFT (ms): 31.0",
        "====== Results ======\nTotal duration: 12.0 s",
    ),
    "numerics": ("batch size 4 vs 8\nFAIL: max diff 0.25", "BS = 1 vs BS = 4\nFAIL max diff 0.25", "bitwise mismatch"),
    "nvidia-smi": (
        TABLE.format("1024MiB"),
        "|    0   N/A  N/A      1234      C   python3                          512MiB |",
        "GPU 00000000:1B:00.0 requires reset",
        "No devices were found",
        "Failed to initialize NVML: Driver/library version mismatch",
        "Unable to determine the device handle for GPU 0000:1B:00.0: Unknown Error",
    ),
    "nvidia-smi -q": (
        "==============NVSMI LOG==============\nGPU 1B:00.0\n    FB Memory Usage\n        Total : 8 MiB\n        Used : 1 MiB",
    ),
    "nvidia-smi dmon": (
        "#gpu   pwr  sm\n0   100   7",
        "# Time  gpu   pwr\n10:00:00   0   100",
        "\tGPU0\tNIC0\nGPU0\tX\tPIX",
    ),
    "host memory": (
        "MemTotal:  100 kB",
        "pid, used_gpu_memory [MiB]\n12, 77 MiB",
        "index, power.draw [W], clocks.sm [MHz]\n0, 77.00 W, 1980 MHz",
        "========= Invalid __global__ read of size 4 bytes",
    ),
    "routing": ("18432 B / token for 7 tokens", "bytes per_token: 18432"),
}  # fmt: skip
CASES = [(name, text) for name, texts in SAMPLES.items() for text in texts]


@pytest.mark.parametrize(("name", "text"), CASES, ids=range(len(CASES)))
def test_each_form_holds_a_word_of_its_parser(name, text):
    (parser,) = [p for p in LINE_PARSERS if p.name == name]
    out = Reading("text")
    parser.parse(clean_lines(text), out)
    assert out.tables or out.batches, "the sample is no line of this parser"
    assert any(word in text.lower() for word in parser.words)
    assert any(word in text.lower() for word in WORDS)

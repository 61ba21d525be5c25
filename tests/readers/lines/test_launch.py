"""Settings in force, however they are written down."""

import pytest

from moexray.core.run import Reading
from moexray.readers.lines import clean_lines, launch


def rows(text):
    out = Reading("text")
    launch.parse(clean_lines(text), out)
    return out.tables.get("launch", [])


def settings(text):
    return {r["key"]: r["value"] for r in rows(text)}


def test_short_and_old_names_are_folded():
    found = settings("python -m sglang.launch_server --model-path M --tp 8 --dp-size 2 --ep 8 --disable-cuda-graph")
    assert found == {
        "model": "M", "tensor_parallel_size": "8", "data_parallel_size": "2", "expert_parallel_size": "8", "enforce_eager": "True",
    }
    assert settings("vllm serve M -tp 4 -dp=2 --enable-expert-parallel") == {
        "model": "M", "tensor_parallel_size": "4", "data_parallel_size": "2", "enable_expert_parallel": "True",
    }


def test_environment_in_front_and_engine():
    found = rows("NCCL_DEBUG=INFO PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve M --tensor-parallel-size 4 2>&1 | tee log")
    assert {r["engine"] for r in found} == {"vllm"}
    assert {(r["key"], r["origin"]) for r in found} == {
        ("NCCL_DEBUG", "environment"), ("PYTORCH_CUDA_ALLOC_CONF", "environment"), ("model", "command"), ("tensor_parallel_size", "command"),
    }


def test_lines_joined_by_backslashes():
    text = "export NCCL_IB_DISABLE=1\nvllm serve M \\\n    --tensor-parallel-size 4 \\\n    --gpu-memory-utilization 0.9\necho done"
    assert settings(text) == {"NCCL_IB_DISABLE": "1", "model": "M", "tensor_parallel_size": "4", "gpu_memory_utilization": "0.9"}


@pytest.mark.parametrize(
    "text",
    [
        "docker run --gpus all -e PYTORCH_ALLOC_CONF=expandable_segments:True -e NCCL_DEBUG=INFO image vllm serve M --tensor-parallel-size 2",
        'services:\n  vllm:\n    image: vllm/vllm-openai\n    environment:\n      - PYTORCH_ALLOC_CONF=expandable_segments:True\n      - NCCL_DEBUG=INFO\n    command: ["--model", "M", "--tensor-parallel-size", "2"]',
        'services:\n  vllm:\n    environment:\n      PYTORCH_ALLOC_CONF: "expandable_segments:True"\n      NCCL_DEBUG: INFO\n    command: >\n      --model M\n      --tensor-parallel-size 2',
        'containers:\n- name: server\n  args:\n  - --model\n  - M\n  - --tensor-parallel-size\n  - "2"\n  env:\n  - name: PYTORCH_ALLOC_CONF\n    value: "expandable_segments:True"\n  - name: NCCL_DEBUG\n    value: INFO',
        'containers:\n- name: server\n  command: ["vllm", "serve", "M"]\n  args: ["--tensor-parallel-size=2"]\n  env:\n  - name: PYTORCH_ALLOC_CONF\n    value: expandable_segments:True\n  - name: NCCL_DEBUG\n    value: INFO',
        "FROM vllm/vllm-openai\nENV PYTORCH_ALLOC_CONF=expandable_segments:True\nENV NCCL_DEBUG=INFO\nCMD vllm serve M --tensor-parallel-size 2",
        "#!/bin/bash\nexport PYTORCH_ALLOC_CONF=expandable_segments:True\nexport NCCL_DEBUG='INFO'\nexec vllm serve M --tensor-parallel-size=2 \"$@\"",
        '$ PYTORCH_ALLOC_CONF="expandable_segments:True" NCCL_DEBUG=INFO python3 -m vllm.entrypoints.openai.api_server --model M --tensor-parallel-size 2',
    ],
)
def test_the_same_settings_in_every_notation(text):
    found = settings(text)
    assert found["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert found["NCCL_DEBUG"] == "INFO"
    assert found["tensor_parallel_size"] == "2"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("[2026-02-03 08:10:00] server_args=ServerArgs(model_path='M', tp_size=8, mem_fraction_static=0.85, disable_custom_all_reduce=False)", "tensor_parallel_size", "8"),
        ("INFO 01-12 09:30:04 [api_server.py:1] non-default args: {'model': 'M', 'tensor_parallel_size': 8, 'enable_sleep_mode': True}", "enable_sleep_mode", "True"),
        ("INFO 01-12 09:30:04 [core.py:93] Initializing a V1 LLM engine (v0.17.0) with config: model='M', tensor_parallel_size=8, enforce_eager=False", "enforce_eager", "False"),
        ("INFO 01-12 09:30:04 [a.py:1] args: Namespace(model='M', tensor_parallel_size=2, disable_custom_all_reduce=True)", "disable_custom_all_reduce", "True"),
        ("INFO environment: PYTORCH_ALLOC_CONF = 'expandable_segments:True,max_split_size_mb:512'", "PYTORCH_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:512"),
        ("trtllm-serve M --tp_size 4 --ep_size 4 --max_batch_size 64", "expert_parallel_size", "4"),
        ("torchrun --nproc-per-node 8 --nnodes=2 train.py --lr 0.1", "nproc_per_node", "8"),
        ('{"hidden_size": 7168, "n_routed_experts": 256, "vocab_size": 1}', "n_routed_experts", "256"),
    ],
)
def test_what_engines_echo(text, key, value):
    assert settings(text)[key] == value


@pytest.mark.parametrize(
    "text",
    [
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        "[10:03] user_b: try PYTORCH_ALLOC_CONF=expandable_segments:True, it always helps",
        "Should I set PYTORCH_ALLOC_CONF=expandable_segments:True?",
        "# export PYTORCH_ALLOC_CONF=expandable_segments:True",
        "You can start it with the usual options; please run vllm serve once",
        "we upgraded vllm yesterday and the server is slow",
        "INFO 01-12 09:31:00 [loggers.py:127] Engine 000: Avg prompt throughput: 3966.1 tokens/s",
    ],
)
def test_advice_and_prose_are_no_settings(text):
    assert rows(text) == []


def test_each_command_has_its_own_place():
    text = "vllm serve A --tensor-parallel-size 2\n\nvllm serve B --tensor-parallel-size 4\n"
    assert [(r["where"], r["value"]) for r in rows(text) if r["key"] != "model"] == [("line 1", "2"), ("line 3", "4")]


def test_a_broken_quote_does_not_stop_it():
    assert settings("vllm serve M --tensor-parallel-size 2 --chat-template 'oops")["tensor_parallel_size"] == "2"

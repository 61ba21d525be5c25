"""advice.expandable_segments_unsafe: launch lines, environments, logs."""

import pytest

from text_runs import actions, said

ID = "advice.expandable_segments_unsafe"
ON = "PYTORCH_ALLOC_CONF=expandable_segments:True "
FAILED = "Failed: Cuda error csrc/custom_all_reduce.cuh:455 'invalid argument'\n"
ECHO = "INFO 04-02 10:00:01 [core.py:93] Initializing a V1 LLM engine (v0.17.0) with config: model='M', tensor_parallel_size={}, enable_sleep_mode={}\n"


@pytest.mark.parametrize(
    "files",
    [
        {"launch": ON + "vllm serve M --tensor-parallel-size 4"},
        {"launch": ON + "vllm serve M -tp 4 -dp 2"},
        {"launch": ON + "python -m sglang.launch_server --model-path M --tp 8"},
        {"launch": ON + "vllm serve M --tensor-parallel-size 1 --enable-sleep-mode"},
        {"launch": "export " + ON + "\nvllm serve M -tp 4"},
        {"launch": ON + "vllm serve M", "log": ECHO.format(4, False)},
        {"launch": ON + "vllm serve M", "log": ECHO.format(1, True)},
        {"launch": ON + "vllm serve M", "logs__log": ECHO.format(4, False)},
        {"launch": "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512,expandable_segments:True vllm serve M -tp 2"},
        {"launch": "docker run -e PYTORCH_ALLOC_CONF=expandable_segments:True image vllm serve M -tp 2"},
        {"launch": ON + "vllm serve M -tp 2", "log": FAILED},
    ],
)
def test_the_setting_with_a_feature_that_it_breaks(files):
    found = said(**files)[ID]
    assert found.severity == "error"
    assert found.evidence
    assert "Remove expandable_segments" in actions(found)
    assert "expandable_segments:True" not in actions(found)


@pytest.mark.parametrize(
    "files",
    [
        {"launch": ON + "vllm serve M --tensor-parallel-size 1"},
        {"launch": ON + "vllm serve M -tp 4 --disable-custom-all-reduce"},
        {"launch": "PYTORCH_ALLOC_CONF=expandable_segments:False vllm serve M -tp 4"},
        {"launch": "vllm serve M -tp 4 --enable-sleep-mode"},
        {"launch": ON + "vllm serve M", "log": ECHO.format(1, False)},
        {"launch": ON + "vllm serve M -tp 4", "log": "WARNING [a.py:1] Custom allreduce is disabled because your platform lacks GPU P2P capability\n"},
        # the first one set wins
        {"launch": "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512 " + ON + "vllm serve M -tp 4"},
        # two servers in two folders
        {"a__launch": ON + "vllm serve M -tp 1", "b__launch": "vllm serve M -tp 4"},
    ],
)
def test_nothing_to_say(files):
    assert ID not in said(**files)


def test_a_crash_in_that_component_confirms():
    found = said(launch=ON + "vllm serve M -tp 2", log=FAILED)[ID]
    assert found.confidence > said(launch=ON + "vllm serve M -tp 2")[ID].confidence
    assert "disable-custom-all-reduce" in actions(found)


def test_without_the_allocator_setting_it_cannot_be_told():
    found = said(log=FAILED)[ID]
    assert found.severity == "info"
    assert found.confidence < 0.5
    assert found.settle_with


def test_several_servers_give_one_finding():
    found = said(a__launch=ON + "vllm serve M -tp 2", b__launch=ON + "vllm serve M --enable-sleep-mode")
    assert len(found) == 1
    assert len(found[ID].evidence) >= 2


def test_two_commands_in_one_file_keep_their_environment():
    text = ON + "vllm serve A -tp 1\n\nvllm serve B -tp 4\n"
    assert ID not in said(launch=text)


@pytest.mark.parametrize(
    "text",
    [
        "export PYTORCH_ALLOC_CONF=max_split_size_mb:512,expandable_segments:True\npython -m sglang.launch_server --model-path M --tp 8",
        "services:\n  engine:\n    environment:\n      - PYTORCH_ALLOC_CONF=expandable_segments:True\n    command: --model M --tensor-parallel-size 4\n",
        '{"engine": {"Env": ["PYTORCH_ALLOC_CONF=expandable_segments:True"], "Cmd": ["vllm", "serve", "M", "--tensor-parallel-size", "4"]}}',
        '{"command": ["vllm", "serve"], "args": ["M", "--tensor-parallel-size=4"], "env": [{"name": "PYTORCH_ALLOC_CONF", "value": "expandable_segments:True"}]}',
        '{"env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "argv": ["vllm", "serve", "M", "--tensor-parallel-size", "4"]}',
        "PYTORCH_ALLOC_CONF: expandable_segments:True\ntensor-parallel-size: 4\n",
    ],
)
def test_settings_in_other_containers(text):
    assert said(launch=text)[ID].severity == "error"


def test_a_sentence_starts_no_server():
    assert said(notes="Use PYTORCH_ALLOC_CONF=expandable_segments:True with vllm serve M --tensor-parallel-size 8 with care.") == {}


def test_the_advice_in_a_wrapped_message_is_no_setting():
    message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of\n"
        "which 310.00 MiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 6.00 GiB is reserved by\n"
        "PyTorch but unallocated. If reserved but unallocated memory is large try setting\n"
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n"
    )
    found = said(log=ECHO.format(4, False) + message)
    assert found["mem.fragmentation"].severity == "error"
    assert found[ID].severity == "info"  # not offered, as TP 4 uses custom all-reduce

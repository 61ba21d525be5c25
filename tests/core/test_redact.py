from __future__ import annotations

import pytest

from moexray.core.redact import redact


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuv vllm serve", "abcdefghij"),
        ("OPENAI_API_KEY: 'sk-verysecretvalue123'", "verysecret"),
        ("Authorization: Bearer eyJhbGciOi.JIUzI1", "eyJhbG"),
        ("https://bob:hunter22@example.com/x", "hunter22"),
        ('File "/home/alice/serve.py", line 3', "alice"),
        ("from 10.1.2.3:29500", "10.1.2.3"),
        ("worker on gpu-17.prod.internal died", "gpu-17"),
        ("--api-key 9f8e7d6c5b4a3210", "9f8e7d6c5b"),
        ("mail bob.smith@example.org", "bob.smith"),
        ("alice@gpu-node-17:~$ vllm serve", "alice"),
        ("[alice@gpu-node-17 ~]$ vllm serve", "gpu-node-17"),
    ],
)
def test_secrets_and_names_go(text, hidden):
    assert hidden not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 546.00 MiB. GPU 0 has a total capacity of 15.77 GiB",
        "free_bytes=539167293 request_bytes=572522496",
        "tokenizer=meta-llama-8b token generation max tokens: 4096 token usage: 0.97, #new-token: 8192",
        "INFO 01-12 09:40:11 [core.py:710] torch 2.13.0 total_tokens=123456789",
        "NCCL version 2.27.5+cuda12.8",
        "memcpy@plt org/model@main GLIBC_2.14 matmul @ 312 GB/s",
    ],
)
def test_messages_and_numbers_stay(text):
    assert redact(text) == text

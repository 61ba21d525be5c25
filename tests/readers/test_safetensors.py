import json

import numpy as np
import pytest

from moexray.core.errors import ReadError
from moexray.core.run import Reading
from moexray.core.source import Source
from moexray.readers import safetensors

NAMES = {"int64": "I64", "int32": "I32", "float32": "F32"}


def saved(tensors, kind=None):
    header, body = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": kind or NAMES[str(array.dtype)], "shape": list(array.shape),
                        "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps({"__metadata__": {"format": "np"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + body


def read(content):
    out = Reading("safetensors")
    safetensors.read(Source("rank2.safetensors", content=content), out)
    return out


def test_one_vector_per_iteration_and_layer():
    tensors = {f"{i}_{y}": np.full(8, 10 * i + y) for i in (100, 101) for y in (3, 4, 5)}
    content = saved(tensors)
    assert safetensors.sniff(content)
    out = read(content)
    (counts,) = out.batches
    assert counts.columns["step"].tolist() == [100] * 3 + [101] * 3
    assert counts.columns["layer"].tolist() == [3, 4, 5] * 2
    assert counts.columns["tokens"][:, 0].tolist() == [1003, 1004, 1005, 1013, 1014, 1015]
    assert counts.attrs["sum_over_ranks"]


def test_named_counts_and_bfloat16_scores():
    out = read(saved({"expert_counts": np.arange(1, 9).reshape(2, 4)}))
    assert out.rows == 2
    scores = np.array([[1.0, 2.0, 3.0], [0.5, 0.25, 8.0]], np.float32)
    bits = (scores.view(np.uint32) >> 16).astype(np.uint16)
    out = read(saved({"router_logits": bits}, "BF16"))
    assert np.array_equal(out.batches[0].columns["values"], scores)


def test_weights_and_damage():
    with pytest.raises(ReadError, match="weights"):
        read(saved({"model.layers.0.mlp.experts.0.gate_proj.weight": np.ones((4, 4), np.float32)}))
    with pytest.raises(ReadError, match="damaged"):
        read((40).to_bytes(8, "little") + b"{" * 40)
    content = saved({f"1_{y}": np.arange(8) for y in range(4)})
    out = read(content[:-30])
    assert out.problems[0].id == "input.truncated"
    assert out.rows == 3

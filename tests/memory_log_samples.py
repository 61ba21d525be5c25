"""Logs of allocations built by hand, and what the analyses read from them."""

import json

from moexray.analyse.tensors import tensors
from moexray.readers.read_any import read_any

KIB = 1 << 10


def alloc(tensor, size, t_us, layer=None, expert=None, scope=None, **more):
    return {"event": "alloc", "tensor": tensor, "size_bytes": size, "timestamp_us": t_us, "layer": layer,
            "expert": expert, "scope": scope, **more}  # fmt: skip


def free(tensor, t_us):
    return {"event": "free", "tensor": tensor, "timestamp_us": t_us}


def write(path, records):
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return str(path)


def tensors_of(tmp_path, *logs):
    paths = [write(tmp_path / f"log{i}.jsonl", records) for i, records in enumerate(logs)]
    return tensors(read_any(paths))


def two_experts():
    """Layer 0: a hidden state of 4 KiB over two experts, one after the other, 2 KiB and 3 KiB; a router of 1 KiB.

    events    0       1       2      3       4      5       6      7
              hidden  router  -rout  e0      -e0    e1      -e1    -hidden
    live KiB  4       5       4      6       4      7       4      0
    """
    return [
        alloc("h", 4 * KIB, 0, 0, scope="layer"),
        alloc("r", 1 * KIB, 10, 0, scope="router"),
        free("r", 20),
        alloc("a", 2 * KIB, 30, 0, 0, "expert"),
        free("a", 50),
        alloc("b", 3 * KIB, 60, 0, 1, "expert"),
        free("b", 100),
        free("h", 110),
    ]

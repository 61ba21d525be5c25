"""What of a snapshot names layers and experts: frames, compiled nodes, metadata of events."""

import pickle

from moexray.core.run import Reading, build_run
from moexray.core.source import Source
from moexray.readers.pickle_file import read as read_pickle
from moexray.readers.safe_pickle_tape import FAST_BYTES
from moexray.readers.shapes import snapshot as shape
from snapshot_samples import BASE, MIB, document, event, frames, segment


def read(doc):
    out = Reading("pickle")
    assert shape.shape(doc, Source("s.pickle", content=b"x"), out)
    return build_run([("s.pickle", out)], [])


def one(line, **more):
    return document([segment(BASE, [(2 * MIB, "f")])], [event("alloc", BASE, MIB, 5, **more), event("free_completed", BASE, MIB, 6)])


def test_frames_that_name_a_scope_are_kept_from_the_whole_stack():
    deep = [*frames(1, "f0", "/srv/a.py")] * 8 + frames(9, "forward_expert_5", "/srv/net/model.py")
    doc = one(1)
    doc["device_traces"][0][0]["frames"] = [*deep, *frames(3, "run_layer_3", "/srv/net/model.py")]
    [stacks] = read(doc).batches("snapshot_stacks")
    [(scopes, text)] = [(s, t) for s, t in zip(stacks.columns["scopes"], stacks.columns["text"], strict=True) if s]
    assert scopes == "forward_expert_5 net/model.py < run_layer_3 net/model.py"
    assert "expert" not in text  # the short text ends before it


def test_frames_of_torch_itself_name_nothing_but_their_compiled_node_does():
    doc = one(1)
    doc["device_traces"][0][0]["frames"] = [
        {"name": "__iter__", "filename": "/opt/torch/utils/data/sampler.py", "line": 1},
        {"name": "call", "filename": "/opt/torch/x.py", "line": 2, "fx_node_name": "layers_3_mlp_experts_17"},
    ]
    [stacks] = read(doc).batches("snapshot_stacks")
    assert [s for s in stacks.columns["scopes"] if s] == ["layers_3_mlp_experts_17"]


def test_metadata_that_names_a_scope_is_kept():
    doc = one(1, user_metadata="layer_idx=3", compile_context="0/0")
    doc["device_traces"][0].append(event("alloc", BASE, MIB, 9, user_metadata="epoch 7", compile_context="layer_4"))
    [events] = read(doc).batches("snapshot_events")
    notes = [events.attrs["notes"][i] for i in events.columns["note"]]
    assert notes == ["layer_idx=3", "", "layer_4"]


def test_without_such_metadata_there_is_no_column():
    [events] = read(one(1, user_metadata="epoch 7", compile_context="N/A")).batches("snapshot_events")
    assert "note" not in events.columns


def test_a_large_file_read_from_its_tape_says_the_same():
    doc = one(1, user_metadata="layer_idx=3")
    trace = doc["device_traces"][0]
    for i in range(70_000):
        named = {"user_metadata": f"layer_{i % 7}.expert_{i % 3}"} if i % 2 else {"compile_context": "N/A"}
        trace.append(event("alloc", BASE + i, 512, i, line=i % 5, **named))
    data = pickle.dumps(doc, protocol=4)
    assert len(data) >= FAST_BYTES
    out = Reading("pickle")
    read_pickle(Source("s.pickle", content=data), out)
    [a] = build_run([("s", out)], []).batches("snapshot_events")
    [b] = read(doc).batches("snapshot_events")
    texts = [[batch.attrs["notes"][i] for i in batch.columns["note"]] for batch in (a, b)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 1 + 1 + 21

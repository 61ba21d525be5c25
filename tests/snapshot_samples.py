"""Snapshots built by hand for the tests: segments from a list of blocks, events in short words."""

import pickle

MIB, GIB = 1 << 20, 1 << 30
BASE = 0x7F00_0000_0000
STATES = {"a": "active_allocated", "f": "inactive", "p": "active_pending_free"}


def frames(line, name="run", file="/srv/app/model.py"):
    return [{"name": name, "filename": file, "line": line}]


def segment(address, blocks, *, device=0, pool=(0, 0), kind="large", expandable=False, **more):
    """blocks: [(size, state letter[, requested])]"""
    made, at = [], address
    for size, state, *asked in blocks:
        made.append(
            {"address": at, "size": size, "requested_size": asked[0] if asked else size, "state": STATES.get(state, state), "frames": frames(1)}
        )
        at += size
    live = sum(b["size"] for b in made if b["state"] != "inactive")
    return {
        "device": device, "address": address, "total_size": at - address, "allocated_size": live, "active_size": live,
        "requested_size": live, "stream": 0, "segment_type": kind, "segment_pool_id": pool,
        "is_expandable": expandable, "frames": [], "blocks": made, **more,
    }


def event(action, addr, size, time_us=None, line=1, **more):
    out = {"action": action, "addr": addr, "size": size, "stream": 0, "frames": frames(line), **more}
    return out if time_us is None else {**out, "time_us": time_us}


def temporary(addr, size, line, time_us=None):
    """alloc, free_requested, free_completed"""
    return [event(a, addr, size, None if time_us is None else time_us + i, line) for i, a in enumerate(("alloc", "free_requested", "free_completed"))]


def document(segments, trace=(), *, overflowed=False, settings=None, marks=(), **more):
    out = {
        "segments": segments, "device_traces": [list(trace)],
        "allocator_settings": {"expandable_segments": False, "PYTORCH_CUDA_ALLOC_CONF": ""} if settings is None else settings,
        "external_annotations": list(marks), **more,
    }
    if overflowed is not None:
        out["trace_alloc_overflowed"] = [overflowed]
    return out


def births(segments, time_us=0):
    """segment_alloc and alloc events for everything that lives in these segments."""
    out = []
    for s in segments:
        out.append(event("segment_alloc", s["address"], s["total_size"], time_us))
        out += [event("alloc", b["address"], b["requested_size"], time_us) for b in s["blocks"] if b["state"] != "inactive"]
    return out


def whole(segments, extra=(), **more):
    """A document whose history explains its end state."""
    return document(segments, [*births(segments), *extra], **more)


def step_marks(count, length_us=1000, start_us=1_000_000, name="step"):
    out = []
    for i in range(count):
        at = start_us + i * length_us
        out += [{"name": f"{name} {i}", "stage": stage, "time_us": t, "device": 0} for stage, t in (("START", at), ("END", at + length_us - 1))]
    return out


def write(path, doc, protocol=4):
    path.write_bytes(pickle.dumps(doc, protocol=protocol))
    return str(path)

"""What the engine was doing when a line was written: loading, profiling, KV sizing, capture, serving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.pattern import lazy

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from moexray.readers.lines.line import Line

__all__ = ["Phases"]

MARKS: tuple[tuple[str, str], ...] = (
    # words of a line -> the phase that begins with it (vLLM, SGLang, TensorRT-LLM)
    ("Initializing a V1 LLM engine", "start"),
    ("Initializing an LLM engine", "start"),
    ("server_args=ServerArgs(", "start"),
    ("erver restarted", "start"),
    ("estarting server", "start"),
    ("vLLM API server version", "start"),
    ("TensorRT-LLM version:", "start"),
    ("Scheduled restart job", "start"),
    ("Starting to load model", "loading"),
    ("Load weight begin", "loading"),
    ("Available KV cache memory", "kv_sizing"),
    ("GPU KV cache size", "kv_sizing"),
    ("GPU blocks:", "kv_sizing"),
    ("KV Cache is allocated", "kv_sizing"),
    ("Memory pool end", "kv_sizing"),
    ("emory profiling takes", "kv_sizing"),
    ("reserved for KV Cache", "kv_sizing"),
    ("Allocating KV cache", "kv_sizing"),
    ("Capture cuda graph begin", "capture"),
    ("Capture draft cuda graph begin", "capture"),
    ("Capture cuda graph bs", "capture"),
    ("Capture cuda graph failed", "capture"),
    ("Capture piecewise CUDA graph begin", "capture"),
    ("Capturing CUDA graph", "capture"),
    ("Capturing cuda graph", "capture"),
    ("Capturing batches", "capture"),
    ("Capturing the model for CUDA graphs", "capture"),
    ("CUDA graph warmup", "capture"),
    ("Profiling CUDA graph memory", "capture"),
    ("Application startup complete", "serving"),
    ("The server is fired up", "serving"),
    ("Uvicorn running on", "serving"),
    ("Server is ready", "serving"),
    ("server is ready", "serving"),
    ("Avg generation throughput", "serving"),
    ("Avg prompt throughput", "serving"),
    ("Decode batch", "serving"),
    ("Prefill batch", "serving"),
    (' HTTP/1.1" 200', "serving"),
)
FRAMES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        lazy(
            r"\bin (?:capture\w*|_capture\w*|init_\w*_graphs|_?warm_?up_and_capture\w*)$|cuda_graph_runner|"
            r"Capture cuda graph failed|graph_capture"
        ),
        "capture",
    ),
    (
        lazy(r"\bin (?:_?initialize_kv_cache\w*|_?allocate_kv_cache\w*|init_memory_pool|_create_buffers)$"),
        "kv_sizing",
    ),
    (lazy(r"\bin (?:profile_run|determine_(?:num_available_blocks|available_memory))$"), "profiling"),
    (lazy(r"\bin (?:load_model|load_weights|initialize_model|process_weights_after_loading)$"), "loading"),
)
BACK = 120  # lines of a traceback above its message
BATCH = 4096  # lines that are searched at once


class Phases:
    """The phases of one file, found once.

    Args:
        lines: All lines of the file.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._marks: list[tuple[int, str]] = []
        for start in range(0, len(lines), BATCH):
            batch = lines[start : start + BATCH]
            joined = "\n".join([line.text for line in batch])
            held = [mark for mark in MARKS if mark[0] in joined]
            for at, line in enumerate(batch if held else (), start):
                phase = next((p for words, p in held if words in line.text), None)
                if phase and (not self._marks or self._marks[-1][1] != phase or phase == "start"):
                    self._marks.append((at, phase))

    def at(self, index: int, lead: str = "") -> str | None:
        """The phase in force at a line; frames of the traceback above it outrank the log's order.

        Returns:
            start, loading, profiling, kv_sizing, capture, serving, or None where nothing says so.
        """
        phase = None
        for at, name in self._marks:
            if at > index:
                break
            phase = name
        if phase == "serving":
            return phase
        for pattern, name in FRAMES:
            if pattern.search(lead):
                return name
        for line in reversed(self._lines[max(index - BACK, 0) : index]):
            text = line.text.rstrip()
            if "Traceback (most" in text:
                break
            for pattern, name in FRAMES:
                if pattern.search(text):
                    return name
        return phase

    def survived(self, index: int) -> bool:
        """Whether another start and then served requests follow a line: it is of an earlier process."""
        started = False
        for at, name in self._marks:
            if at > index:
                started = started or name == "start"
                if started and name == "serving":
                    return True
        return False

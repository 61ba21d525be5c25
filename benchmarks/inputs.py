"""Inputs of the benchmark rows, made by seed and size, never downloaded."""

from pathlib import Path

OOM_LINE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 546.00 MiB. GPU 0 has a total"
    " capacity of 79.15 GiB of which 312.19 MiB is free. Process 4242 has 78.84 GiB memory in use."
    " Of the allocated memory 74.31 GiB is allocated by PyTorch, and 3.72 GiB is reserved by"
    " PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n"
)


def oom_line(path: Path) -> None:
    """Write one out-of-memory message of torch 2.x."""
    path.write_text(OOM_LINE, encoding="utf-8")

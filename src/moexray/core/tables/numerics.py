"""Tables about answers (scores, log-probabilities) and about kernels (Nsight Compute)."""

from __future__ import annotations

from moexray.core.schema import Column, Table

__all__ = ["ACCESSES", "KERNELS", "LOGPROBS", "MISMATCH", "SCORES", "TABLES"]

SCORES = Table(
    "scores",
    "Scores of evaluation runs: one row per run.",
    (
        Column("set", "str", "", "Group of arms that were run alike, as the file names it; null if one."),
        Column("arm", "str", "", "Setting under test, as the file names it; null: the file is one arm."),
        Column("score", "float", "ratio", "Share of questions answered right, 0..1."),
        Column("questions", "int", "", "Questions of a run; null if unknown."),
        Column("stderr", "float", "ratio", "Standard error that the tool printed; null if none."),
    ),
)

MISMATCH = Table(
    "mismatch",
    "Results of a test that compares one prompt's numbers in several batches: one row per prompt and step.",
    (
        Column("passed", "bool", "", "Whether the numbers were equal bit by bit."),
        Column("diff", "float", "", "Largest absolute difference of log-probabilities."),
        Column("same_tokens", "bool", "", "Whether the chosen tokens agree; null if not printed."),
        Column("temperature", "float", "", "Sampling temperature that the test states; null if none."),
        Column("text", "str", "", "The line."),
    ),
)

LOGPROBS = Table(
    "logprobs",
    "Log-probabilities of one prompt's tokens in one batch.",
    (
        Column("arm", "str", "", "Batch (bs1, bs32) or setting, as the file names it."),
        Column("prompt", "str", "", "Prompt, as the file names it."),
        Column("values", "object", "", "One log-probability per token."),
        Column("temperature", "float", "", "Sampling temperature that the file states; null if none."),
    ),
)

KERNELS = Table(
    "kernels",
    "Kernel launches of an Nsight Compute report; their times are never merged with a trace's.",
    (
        Column("launch", "str", "", "ID of the launch in the report."),
        Column("kernel", "str", "", "Kernel name."),
        Column("dur_s", "float", "s", "gpu__time_duration.sum."),
        Column("wavefronts", "float", "", "Shared-memory wavefronts (loads and stores)."),
        Column("conflicts", "float", "", "Shared-memory bank conflicts (loads and stores)."),
        Column("ideal", "float", "", "Shared-memory wavefronts without conflicts; null if not reported."),
    ),
)

ACCESSES = Table(
    "accesses",
    "Stated patterns in which the lanes of a warp access shared memory.",
    (
        Column("kernel", "str", "", "Kernel or name of the access; null if none."),
        Column("stride_bytes", "int", "bytes", "Distance between the addresses of neighbouring lanes."),
        Column("width_bytes", "int", "bytes", "What one lane reads or writes: 4, 8 or 16."),
        Column("base_bytes", "int", "bytes", "Address of lane 0 within shared memory."),
        Column("lanes", "int", "", "Lanes that take part."),
    ),
)

TABLES: tuple[Table, ...] = (SCORES, MISMATCH, LOGPROBS, KERNELS, ACCESSES)

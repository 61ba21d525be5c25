"""Tokens per expert, counted on the device while the engine runs, CUDA graphs included.

Hooks do not run in a replay, kernels do: `begin` and `add` only launch kernels on buffers that stay where
they are, so a graph captured with them goes on counting. The step's number is on the device too; it picks
the row of a ring, and `read` copies the ring out after the replay. After their first calls `begin` and
`add` allocate nothing on the device; `finish` and `read` give new tensors of the host, and only they wait
for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["MAX_BYTES", "Counts", "ExpertCounter"]

MAX_BYTES = 256 << 20  # of the ring: 4,000 steps of 58 layers x 256 experts


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted, oldest step first.

    Args:
        first: Number of the first step below, from 0; earlier ones were overwritten or read before.
        tokens: int32 [steps, layers, experts], on the host.
        others: int32 [steps, layers], choices that named no expert (-1 of a dropped choice, a shared expert).
    """

    first: int
    tokens: Tensor
    others: Tensor


class ExpertCounter:
    """A ring of counts on one device.

    Args:
        layers: MoE layers, numbered from 0.
        experts: Logical experts of a layer.
        pairs: Most token-expert pairs of one `add`: tokens of a step x experts per token.
        steps: Rows of the ring.
        device: Where the ids are.

    Raises:
        UsageError: the ring passes MAX_BYTES, or a number is not above 0.
    """

    def __init__(
        self, layers: int, experts: int, *, pairs: int, steps: int = 64, device: torch.device | str = "cpu"
    ) -> None:
        if min(layers, experts, pairs, steps) < 1:
            raise UsageError(f"{layers} layers, {experts} experts, {pairs} pairs, {steps} steps: all from 1")
        if (size := 4 * steps * layers * (experts + 2)) > MAX_BYTES:
            raise UsageError(
                f"a ring of {steps} steps x {layers} layers x {experts} experts takes {size >> 20} MiB",
                hint=f"at most {MAX_BYTES >> 20} MiB: fewer steps, read oftener",
            )
        import torch

        self.experts, self.pairs, self.steps = experts, pairs, steps
        shape = (steps, layers, experts + 2)  # first column: below 0, last: above the experts
        with torch.inference_mode(mode=False):
            self._ring = torch.zeros(shape, dtype=torch.int32, device=device)
            self._flat = self._ring.view(-1)
            self._ones = torch.ones(pairs, dtype=torch.int32, device=device)
            self._cells = torch.zeros(pairs, dtype=torch.int64, device=device)
            self._step = torch.full((1,), -1, dtype=torch.int64, device=device)
            # at the first row: an `add` before the first `begin` stays inside, and is cleared by it
            self._row, self._base = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
            self._host = torch.zeros(shape, dtype=torch.int32, pin_memory=self._ring.is_cuda)
            self._host_step = torch.zeros(1, dtype=torch.int64, pin_memory=self._ring.is_cuda)
        self._event = torch.cuda.Event() if self._ring.is_cuda else None
        self._read = -1  # last step that was given

    def begin(self) -> None:
        """Starts the next step: clears its row. Before the first `add` of a forward, inside the graph."""
        import torch

        self._step.add_(1)
        torch.remainder(self._step, self.steps, out=self._row)
        self._ring.index_fill_(0, self._row, 0)
        torch.mul(self._row, self._ring[0].numel(), out=self._base)

    def add(self, layer: int, ids: Tensor) -> None:
        """Counts the choices of one layer.

        Args:
            layer: From 0.
            ids: [tokens, k] or any shape, whole numbers; what names no expert is counted as `others`.

        Raises:
            UsageError: more pairs than were asked for, or no such layer; nothing was counted.
        """
        count, layers = ids.numel(), self._ring.shape[1]
        if count > self.pairs or not 0 <= layer < layers:
            raise UsageError(
                f"{count} pairs in layer {layer}; room for {self.pairs} in layers 0 to {layers - 1}",
                hint="pairs is tokens of the largest step x experts per token",
            )
        cells = self._cells[:count]
        cells.view(ids.shape).copy_(ids)
        cells.add_(1).clamp_(0, self.experts + 1).add_(self._base).add_(layer * (self.experts + 2))
        self._flat.scatter_add_(0, cells, self._ones[:count])

    def read(self) -> Counts:
        """The steps since the last `read`, as far as the ring still holds them; waits for the device.

        Call it on the stream of the replay, between steps: a step that has begun counts as done.
        """
        self.start()
        return self.finish()

    def start(self) -> None:
        """Has the ring copied out after what the stream is doing; as `read`, but does not wait."""
        self._host.copy_(self._ring, non_blocking=True)
        self._host_step.copy_(self._step, non_blocking=True)
        if self._event is not None:
            self._event.record()

    def is_ready(self) -> bool:
        """Whether `finish` would not wait."""
        return self._event is None or bool(self._event.query())

    def finish(self) -> Counts:
        """What `start` had copied."""
        import torch

        if self._event is not None:
            self._event.synchronize()
        last = int(self._host_step.item())
        first = max(self._read + 1, last + 1 - self.steps)
        rows = self._host[torch.arange(first, last + 1) % self.steps]
        self._read = last
        return Counts(first, rows[:, :, 1:-1].clone(), rows[:, :, 0] + rows[:, :, -1])

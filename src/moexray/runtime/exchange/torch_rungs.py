"""The rungs that are collectives of torch: "device" and "gloo". torch is imported when one is opened.

Around each collective the ranks vote twice, over the sockets of the mesh: before it, who is there and
whether the sizes fit (a collective with wrong sizes hangs or writes past a buffer); after it, whether
everybody did it. If somebody could not, all of them know before one of them returns, and all repeat
the exchange on a lower rung. What fails on a device after its launch is not seen here.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moexray.runtime.exchange.mesh import Mesh
    from moexray.runtime.exchange.options import Options

__all__ = ["RungDownError", "TorchRung"]


class RungDownError(ExchangeError):
    """All ranks agree that this rung is down, and that nothing was delivered.

    Args:
        refusals: Rank -> why.
    """

    def __init__(self, refusals: dict[int, str]) -> None:
        reasons = "; ".join(f"rank {rank}: {why}" for rank, why in sorted(refusals.items()))
        super().__init__(reasons, ranks=tuple(sorted(refusals)))
        self.refusals = refusals


class TorchRung:
    """One of the two; see `open`."""

    def __init__(self, name: str, mesh: Mesh, timeout_s: float, process_group: Any) -> None:
        self.name = name
        self._mesh, self._group = mesh, process_group
        # A third: those who fail at once must still wait for those who fail by timeout.
        self._limit = timedelta(seconds=timeout_s / 3)
        self._bounce = bytearray()

    @classmethod
    def open(cls, name: str, mesh: Mesh, options: Options, process_group: Any) -> TorchRung | dict[int, str]:
        """A collective of `process_group`, or of a gloo group of the same ranks; as HostRung.open."""
        refusal, group = "", process_group
        try:
            group = _group(name, process_group, options.timeout_s)
        except Exception as why:  # noqa: BLE001 - whatever torch raises, the next rung is tried
            refusal = f"{name}: {why}"
        refusals = mesh.vote(refusal).refusals
        if refusals and group is not process_group:
            from torch import distributed

            with contextlib.suppress(Exception):  # whatever torch raises, the next rung is tried
                distributed.destroy_process_group(group)
        return refusals or cls(name, mesh, options.timeout_s, group)

    def exchange(
        self,
        send: memoryview,
        send_bytes: Sequence[int],
        recv_bytes: Sequence[int] | None,
        room: Callable[[Sequence[int]], memoryview],
    ) -> tuple[memoryview, list[int]]:
        """As HostRung.exchange, for bytes in host memory.

        Raises:
            RungDownError: all ranks agree that it failed; to be repeated on a lower rung.
        """
        from torch.distributed.distributed_c10d import all_to_all_single

        sizes = self._agree(send_bytes, recv_bytes)
        out = room(sizes)
        total = sum(sizes)
        # A call that timed out may go on and write late: never into the caller's buffer.
        if len(self._bounce) < total:
            self._bounce = bytearray(total)
        bounce = memoryview(self._bounce)[:total]

        def call() -> None:
            if self.name == "device":
                raise RuntimeError("bytes of the host do not go over a device")
            parts = (_tensor(bounce), _tensor(send), list(sizes), list(send_bytes))
            work = all_to_all_single(*parts, group=self._group, async_op=True)
            work.wait(self._limit)

        self._commit(call)
        out[:total] = bounce
        return out, sizes

    def attempt(
        self, call: Callable[[], object], send_bytes: Sequence[int], recv_bytes: Sequence[int]
    ) -> None:
        """Makes the engine's own call on its own tensors, on all ranks or on none.

        Raises:
            RungDownError: as `exchange`.
        """
        self._agree(send_bytes, recv_bytes)
        self._commit(call)

    def close(self) -> None:
        """The process group stays: others may still be in a call on it."""

    def _agree(self, send_bytes: Sequence[int], recv_bytes: Sequence[int] | None) -> list[int]:
        """Everybody is there; [world], what they are about to send to this rank."""
        mesh = self._mesh
        told = mesh.vote("", totals=send_bytes, expected=recv_bytes).totals
        sizes = [told.get(rank, send_bytes[mesh.rank]) for rank in range(len(send_bytes))]
        for rank, size in enumerate(sizes):
            if recv_bytes and size != recv_bytes[rank]:
                raise mesh.misfit(rank, size, mesh.rank, recv_bytes[rank])
        return sizes

    def _commit(self, call: Callable[[], object]) -> None:
        refusal = ""
        try:
            call()
        except Exception as why:  # noqa: BLE001 - whatever torch raises, the ranks must agree on it
            refusal = f"{self.name}: {why!r:.500}"
        if refusals := self._mesh.vote(refusal).refusals:
            raise RungDownError(refusals)


def _group(name: str, process_group: Any, timeout_s: float) -> Any:
    """The process group that carries a rung.

    Raises:
        RuntimeError: there is none.
    """
    if process_group is None:
        raise RuntimeError("no process group of torch was given")
    from torch import distributed

    backend = distributed.get_backend(process_group)
    if name == "device":
        if backend == "gloo":
            raise RuntimeError("the process group is one of gloo, not of a device")
        return process_group
    if backend == "gloo":
        return process_group
    return distributed.new_group(
        distributed.get_process_group_ranks(process_group),
        timeout=timedelta(seconds=timeout_s),
        backend="gloo",
        use_local_synchronization=True,
    )


def _tensor(data: memoryview) -> Any:
    """The same bytes as a tensor; read-only ones are copied, as torch would warn."""
    import torch

    if not len(data):
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data) if data.readonly else data, dtype=torch.uint8)

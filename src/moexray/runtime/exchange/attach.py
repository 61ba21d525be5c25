"""`torch.distributed.all_to_all_single` over the ladder, until `detach` puts the original back.

Tested with torch 2.13; on a version without that function nothing is changed.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ExchangeError, UsageError
from moexray.runtime.exchange.ladder import Exchange
from moexray.runtime.exchange.options import NAME, RUNGS, Counters, Options
from moexray.runtime.guard import VARIABLE, Guard, say_once
from moexray.runtime.handle import Handle

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ExchangeHandle", "attach"]

_log = logging.getLogger(__name__)
_FUNCTION = "all_to_all_single"


class ExchangeHandle(Handle):
    """What `attach` did; `detach()` restores the very function and closes the exchange, safe twice.

    Threads take turns: as with torch's own function their order must be the same on all ranks. A forked
    child gets torch's own function. A failure is final: each later call raises it again, because the ranks
    learn of it at different calls and would not meet in torch's; `detach()` on all ranks leads back.

    Attributes:
        reason: Why nothing was changed; empty if something was.
        passed: Calls that went the original way: another group, asynchronous, recorded, or refused by torch.
    """

    def __init__(self, group: Any, exchange: Exchange | None, reason: str) -> None:
        super().__init__(NAME, self._replace)
        self.reason, self.passed, self._guard = reason, 0, Guard(NAME)
        self._group, self._exchange = group, exchange
        self._staging: dict[str, Any] = {}
        self._pid, self._turn = os.getpid(), threading.RLock()

    @property
    def world(self) -> int:
        """Number of ranks; 0 if nothing was changed."""
        return self._exchange.world if self._exchange else 0

    @property
    def rung(self) -> str:
        """The rung in use; empty if nothing was changed."""
        return self._exchange.rung if self._exchange else ""

    def counters(self) -> Counters | None:
        """Of the exchange; None if nothing was changed."""
        return self._exchange.counters() if self._exchange else None

    def _replace(self, _: Handle) -> None:
        if self._exchange is None:
            return
        if self._exchange.is_closed:
            raise UsageError("the exchange is closed", hint="call attach of this module again, on all ranks")
        from torch import distributed

        self.on_detach(self._exchange.close)
        self.replace(distributed, _FUNCTION, _wrap(self, distributed.all_to_all_single))

    def pass_on(self) -> None:
        """Counts a call that goes the original way."""
        self.passed += 1
        self._guard.passed()

    def covers(self, group: Any, *, async_op: bool) -> bool:
        """The call goes over the ladder. Only what is equal on all ranks decides."""
        if group is None:
            from torch import distributed

            group = distributed.group.WORLD
        return self.attached and self._pid == os.getpid() and self._group is group and not async_op

    def exchange_tensors(
        self, call: Callable[[], Any], output: Any, input: Any, sizes: tuple[list[int], list[int]]
    ) -> None:
        """One exchange of tensors; `sizes` are (received, sent) bytes by rank.

        Raises:
            ExchangeError: somebody is at fault, now or in an earlier call.
        """
        with self._turn:
            try:
                if self._exchange is not None and self.attached:
                    self._exchange_tensors(self._exchange, call, output, input, sizes)
                    return
            except UsageError:  # closed: nothing was sent
                if self.attached:
                    raise
            self.pass_on()  # detached while this thread waited for its turn
            call()

    def _exchange_tensors(
        self,
        exchange: Exchange,
        call: Callable[[], Any],
        output: Any,
        input: Any,
        sizes: tuple[list[int], list[int]],
    ) -> None:
        received, sent = sizes
        if exchange.rung == "device" and exchange.attempt(call, sent, received):
            return
        out = self._host("out", output, copy=False)
        send = self._host("send", input, copy=True)
        if _overlap(send, out):  # parts that are still to be sent would be written over
            send = send.clone()
        exchange.all_to_all(_bytes(send), sent, recv_bytes=received, out=_bytes(out))
        if out is not output:
            output.copy_(out)

    def _host(self, name: str, tensor: Any, *, copy: bool) -> Any:
        """The tensor in host memory; one of a device is staged in a buffer that is kept."""
        if tensor.device.type == "cpu":
            return tensor
        import torch

        held, size = self._staging.get(name), tensor.numel() * tensor.element_size()
        if held is None or held.numel() < size:
            is_cuda = tensor.device.type == "cuda"
            held = self._staging[name] = torch.empty(size, dtype=torch.uint8, pin_memory=is_cuda)
        staged = held[:size].view(tensor.dtype).view(tensor.shape)
        return staged.copy_(tensor) if copy else staged


def attach(group: Any = None, options: Options | None = None, *, enabled: bool = True) -> ExchangeHandle:
    """Sends the group's `torch.distributed.all_to_all_single` over the ladder; a collective call.

    Args:
        group: A process group; None: the default one.
        options: Equal on all ranks. Default: the group's own backend first, then down the ladder;
            with `rungs=("shm", "ring")` a group of gloo on one host gets faster.
        enabled: False on any rank, or the kill switch there: nothing is changed on all. The switch is
            read here and by no later call, where one rank alone would leave the others waiting: from
            then on `detach()`, on all ranks between the same two calls.

    Returns:
        A handle; its `reason` says why nothing was changed, if so (also logged, once).
    """
    from torch import distributed

    own = distributed.group.WORLD if group is None else group
    rank = distributed.get_rank(own)
    me = (enabled and Guard(NAME).on, _host_id(), f"{os.getpid()} {time.time_ns()}")
    ranks: list[tuple[bool, str, str]] = [me] * distributed.get_world_size(own)
    distributed.all_gather_object(ranks, me, group=own)
    reason, exchange = "", None
    if not all(is_on for is_on, _, _ in ranks):
        off = [rank for rank, (is_on, _, _) in enumerate(ranks) if not is_on]
        names = ", ".join(map(str, off))
        reason = f"switched off on rank {names} (enabled=False, {VARIABLE} or guard.switch)"
    elif len({host for _, host, _ in ranks}) > 1:
        reason = "the ranks are on several hosts or in several network namespaces, or files cannot be opened"
    elif not hasattr(distributed, _FUNCTION):
        reason = f"this torch has no {_FUNCTION}"
    else:
        if options is None:
            options = Options(rungs=RUNGS[1:] if distributed.get_backend(own) == "gloo" else RUNGS)
        try:
            exchange = Exchange.open(f"torch {ranks[0][2]}", rank, len(ranks), options, own)
        except ExchangeError as why:
            reason = str(why)
    if reason:
        say_once(f"{_FUNCTION} stays as it is: {reason}", log=_log)
    handle = ExchangeHandle(own, exchange, reason)
    return handle if reason else handle.attach()


def _wrap(handle: ExchangeHandle, original: Callable[..., Any]) -> Callable[..., Any]:
    def all_to_all_single(
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        group: Any = None,
        async_op: bool = False,  # noqa: FBT001, FBT002 - the signature is torch's
    ) -> Any:
        def call() -> Any:
            return original(output, input, output_split_sizes, input_split_sizes, group, async_op)

        if not handle.covers(group, async_op=async_op) or _is_captured(output):
            handle.pass_on()
            return call()
        world = handle.world
        sizes = _sizes(output, output_split_sizes, world), _sizes(input, input_split_sizes, world)
        if sizes[0] is None or sizes[1] is None or output.dtype != input.dtype:
            handle.pass_on()
            return call()  # what torch refuses it shall refuse in its own words
        handle.exchange_tensors(call, output, input, (sizes[0], sizes[1]))
        return None

    return all_to_all_single


def _is_captured(tensor: Any) -> bool:
    """A graph is being recorded: votes of the host would not be replayed."""
    if not tensor.is_cuda:
        return False
    import torch

    return bool(torch.cuda.is_current_stream_capturing())


def _sizes(tensor: Any, splits: object, world: int) -> list[int] | None:
    """[world], bytes per rank; None if torch would not take this tensor or these splits."""
    if not tensor.dim() or tensor.is_meta or not tensor.is_contiguous() or tensor.is_conj():
        return None
    rows = tensor.shape[0]
    row_bytes = tensor.element_size() * (tensor[:1].numel() if rows else 0)
    if splits is None or (isinstance(splits, Sequence) and not splits):
        return None if rows % world else [rows // world * row_bytes] * world
    if not isinstance(splits, Sequence):
        return None
    try:
        counts = [operator.index(count) for count in splits]
    except TypeError:
        return None
    if len(counts) != world or min(counts) < 0 or sum(counts) != rows:
        return None
    return [count * row_bytes for count in counts]


def _overlap(a: Any, b: Any) -> bool:
    """Whether two dense tensors in host memory share bytes."""
    start, other = a.data_ptr(), b.data_ptr()
    return bool(start < other + b.nbytes and other < start + a.nbytes)


def _bytes(tensor: Any) -> memoryview:
    import torch

    return memoryview(tensor.detach().view(-1).view(torch.uint8).numpy())


def _host_id() -> str:
    """Equal for processes that can meet through abstract sockets."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return f"{os.uname().nodename} {os.getpid()}"

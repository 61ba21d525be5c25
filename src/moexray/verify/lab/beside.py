"""What the lab puts beside the engine in the worker of a vLLM server: the arena, driven by its routing.

vLLM makes its worker inherit `Beside` (--worker-extension-cls); its methods are called from outside
(/collective_rpc), between two steps. On CPUs vLLM has no expert parallelism, and its experts compute in
memory of its own. So the ranks are those of a placement: after a router chose, each rank whose experts were
chosen asks its arena for a buffer for its rows, writes it and gives it back.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moexray.verify.lab.bench import Bench
from moexray.verify.lab.pressure import PressureSpec

__all__ = ["Beside", "Desk"]


class Beside:
    """The methods; vLLM wants their names free in its own class."""

    def lab_open(self, told: str) -> list[int]:
        """Takes the memory and watches the routers; gives [layers, experts].

        Args:
            told: JSON with ranks and the members of a PressureSpec in memory.
        """
        from moexray.runtime.engines.vllm import routers

        asked, model = json.loads(told), self.get_model()  # type: ignore[attr-defined]
        found = routers(model, to_write=False)
        shape = model.config
        desk = Desk(
            PressureSpec(**asked["memory"]), (len(found), found[0].experts), asked["ranks"],
            4 * (2 * shape.hidden_size + 3 * shape.moe_intermediate_size),
        )  # fmt: skip
        for layer, router in enumerate(found):
            router.watch(partial(desk.routed, layer))
        model.register_forward_pre_hook(desk.begin)
        model.register_forward_hook(desk.end)
        self.lab_desk = desk
        return [len(found), found[0].experts]

    def lab_begin(self, told: str) -> list[int]:
        """Switches placement and layout; from now on steps are noted.

        Args:
            told: JSON with slots, layout, fills (share of memory that keys and values take, for the steps
                that come; the last one stays) and folder (None, or where memory and a trace are written).
        """
        self.lab_desk.open(json.loads(told))
        return []

    def lab_end(self) -> list[Any]:
        """Stops it; gives the notes, see `Bench.notes`."""
        return self.lab_desk.close()


class Desk:
    """The hooks, and the bench that they work on.

    Args:
        memory: Of each rank.
        sizes: (layers, experts).
        ranks: EP ranks that the placement has.
        row_bytes: Of a work buffer, per row.
    """

    def __init__(self, memory: PressureSpec, sizes: tuple[int, int], ranks: int, row_bytes: int) -> None:
        self._bench = Bench(memory, sizes, ranks, tuple(range(ranks)))
        self._row_bytes = row_bytes
        self._fills: list[float] = []  # empty: nothing is noted
        self._job, self._step = ExitStack(), ExitStack()

    def open(self, job: dict[str, Any]) -> None:
        """See Beside.lab_begin."""
        self._bench.use(np.array(job["slots"]), job["layout"])
        self._bench.notes.clear()
        self._job.enter_context(self._bench.recorded(Path(job["folder"]) if job["folder"] else None))
        self._fills = job["fills"]

    def close(self) -> list[Any]:
        """See Beside.lab_end."""
        self._fills = []
        self._job.close()
        return [[x.tolist() if isinstance(x, np.ndarray) else x for x in note] for note in self._bench.notes]

    def begin(self, _model: Any, _args: Any) -> None:
        """Before the model's forward."""
        if self._fills:
            number = len(self._bench.notes)
            fill = self._fills[min(number, len(self._fills) - 1)]
            self._step.enter_context(self._bench.step(number, fill))

    def end(self, _model: Any, _args: Any, _output: Any) -> None:
        """After it."""
        self._step.close()

    def routed(self, layer: int, ids: Any) -> None:
        """After a router: rows go to the ranks of their experts.

        Args:
            layer: MoE layer.
            ids: Tensor [tokens, k] of chosen experts.
        """
        if not self._fills:
            return
        state = self._bench.state
        counts = np.bincount(ids.reshape(-1).numpy(), minlength=state.slots.shape[1])
        rows = counts[state.slots[layer]].reshape(self._bench.ranks, -1).sum(axis=1)
        state.counts[layer] += counts
        state.rows[layer] += rows
        for rank, many in enumerate(rows.tolist()):
            if many:
                block = state.pressures[rank].take(many * self._row_bytes)
                with block as view:
                    view.fill(1)
                state.pressures[rank].give(block)

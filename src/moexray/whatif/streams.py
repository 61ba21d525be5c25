"""A stream of requests that is replayed many times, under one setting after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moexray.algorithms.device import ORDERS
from moexray.algorithms.simulate import Outcome, simulate

if TYPE_CHECKING:
    from moexray.algorithms.blocks import Settings
    from moexray.algorithms.device import Order
    from moexray.algorithms.simulate import Plan
    from moexray.kernels.allocator import Arrays

__all__ = ["Stream"]

MIB = 1 << 20
COMPILED = 1_000  # steps from which loading the compiled twin (a second) pays for a search of 500 replays


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A plan that is replayed many times.

    Args:
        plan: What is replayed.
        arrays: The same for the compiled twin; None where the plain one serves.
    """

    plan: Plan
    arrays: Arrays | None = None

    @classmethod
    def of(cls, plan: Plan) -> Stream:
        """The stream of a plan; a short one is not worth loading the compiled twin."""
        if len(plan.steps) < COMPILED:
            return cls(plan)
        from moexray.kernels import allocator as kernel

        return cls(plan, kernel.arrays(plan))

    def __len__(self) -> int:
        return len(self.plan.steps)

    @property
    def held(self) -> int:
        """Bytes of segments that exist before the first step."""
        return sum(size for s in self.plan.start for _, size, _, _ in s.blocks)

    def outcome(self, settings: Settings, capacity: int | None, order: Order = "ascending") -> Outcome:
        """What a setting gives, without the curve: a search keeps hundreds of outcomes.

        Args:
            settings: The setting.
            capacity: Bytes that the device can give; None is endless.
            order: In which order the device chooses addresses.
        """
        if self.arrays is not None:
            from moexray.kernels import allocator as kernel

            if kernel.takes(settings):
                figures, _ = kernel.simulate(self.arrays, settings, capacity=capacity, order=order)
                return Outcome(**figures, reserved=())
        return replace(simulate(self.plan, settings, capacity=capacity, order=order), reserved=())

    def orders(self, settings: Settings, capacity: int | None) -> list[Outcome]:
        """The outcome in each order of addresses that the driver may choose."""
        return [self.outcome(settings, capacity, order) for order in ORDERS]

    def least(self, settings: Settings, seen: Outcome, capacity: int | None) -> int:
        """The least device memory at which no request fails, to within 0.2 % of the recorded peak.

        A memory limit does not count: what must be there, not what is allowed. Searched by halving
        between the peak of live bytes and the peak on an endless device.

        Args:
            settings: The setting.
            seen: Its outcome at `capacity`, which is an answer where nothing failed.
            capacity: As for `outcome`.
        """
        free = replace(settings, limit=None, fraction=1.0)
        endless = self.outcome(free, None)
        low, high = max(endless.peak_allocated, self.held), endless.peak_reserved
        if capacity is not None and not seen.ooms and seen.peak_reserved <= capacity:
            high = min(high, capacity)
        step = max(self.plan.capacity[0] >> 9, 2 * MIB)
        while high - low > step:
            middle = (low + high) // 2
            if self.outcome(free, middle).ooms:
                low = middle
            else:
                high = middle
        return high

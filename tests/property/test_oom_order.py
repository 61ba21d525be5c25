"""The order of tests against a second, deliberately naive reading of it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from moexray.core.limits.memory import MemoryLimits
from moexray.diagnose.memory.oom_numbers import Around, Figures, decide

MIB, GIB = 1 << 20, 1 << 30
LIMITS = MemoryLimits()


def naive(f, phase, budget, context, growing):
    """The tests one by one, as a person reads them."""
    r = f.rounding
    if f.allocated is not None and f.total is not None and f.allocated > f.total:
        return "mem.oversubscription"
    if f.request is None:
        return "mem.oom_unexplained"
    frag = 0 if f.fragments is None else f.fragments
    if f.free is not None:
        gap = f.free - f.request
        if gap > r.get("request", 0) + r.get("free", 0) + 2 * MIB and gap > 0.05 * f.request:
            return "mem.limit_below_free"
        if phase in ("capture", "kv_sizing") and f.fragments is not None and f.free + frag < f.request:
            return "mem.capture_headroom"
    if None not in (f.process, f.total, f.free):
        other = f.total - f.process - f.free
        if other > 512 * MIB and other > f.request - f.free - frag:
            return "mem.other_process"
    if None not in (f.process, f.allocated, f.fragments):
        outside = f.process - f.allocated - f.fragments
        if outside - context > max(f.request, f.fragments):
            return "mem.non_torch"
        if budget is not None and f.process - budget > f.request and f.fragments < f.request:
            return "mem.non_torch"
    if f.fragments is not None:
        if f.fragments >= f.request:
            return "mem.fragmentation"
        together = f.free is not None and f.free + f.fragments >= f.request
        if together and f.fragments > r.get("fragments", 0) + 2 * MIB:
            return "mem.fragmentation_contributes"
    return "mem.unbudgeted_activation" if growing else "mem.true_exhaustion"


sizes = st.one_of(st.none(), st.integers(0, 4 * GIB), st.integers(0, 100 * GIB))


@settings(max_examples=250, deadline=None)
@given(
    numbers=st.tuples(*[sizes] * 6),
    phase=st.sampled_from((None, "capture", "kv_sizing", "serving", "loading")),
    budget=st.one_of(st.none(), st.integers(0, 100 * GIB)),
    context=st.one_of(st.none(), st.integers(0, 3 * GIB)),
    growing=st.booleans(),
)
def test_the_first_yes_is_the_naive_one(numbers, phase, budget, context, growing):
    names = ("request", "free", "total", "process", "allocated", "fragments")
    known = dict(zip(names, numbers, strict=True))
    rounding = {n: 0.005 * GIB for n, v in known.items() if v is not None}
    f = Figures(**known, rounding=rounding)
    got = decide(f, Around(phase, budget, context, growing), LIMITS)
    assert got[0].id == naive(f, phase, budget, LIMITS.context_bytes if context is None else context, growing)
    assert len(got) <= 2
    assert all(d.id == "mem.fragmentation" for d in got[1:])


@settings(max_examples=120, deadline=None)
@given(numbers=st.tuples(*[st.integers(1, 80 * GIB)] * 6), nudge=st.floats(-1, 1))
def test_a_decision_off_the_margin_survives_the_rounding(numbers, nudge):
    """Moving each printed value by half its last digit never turns a verdict that is not at the margin."""
    names = ("request", "free", "total", "process", "allocated", "fragments")
    known = dict(zip(names, numbers, strict=True))
    rounding = dict.fromkeys(names, 0.005 * GIB)
    first = decide(Figures(**known, rounding=rounding), Around(), LIMITS)[0]
    moved = {n: max(int(v + nudge * rounding[n]), 0) for n, v in known.items()}
    again = decide(Figures(**moved, rounding=rounding), Around(), LIMITS)[0]
    assert first.id == again.id or first.at_margin or again.at_margin or "limit_below_free" in (first.id + again.id)

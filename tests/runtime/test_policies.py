"""The torch policies choose the same experts as the numpy ones, bit for bit, ties included."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moexray.algorithms import routers
from moexray.core.errors import UsageError
from moexray.kernels.routers import fill_batch, hold_rows
from moexray.runtime import scores as blocks
from moexray.runtime.policies import POLICIES, Biased, Salted, Sticky, parse
from moexray.runtime.scores import Batch

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # threads that wait for each other cost more than they bring

BATCH = 16
# few distinct values: ties are common
tied = hnp.arrays(np.float32, st.tuples(st.integers(1, 50), st.just(8)),
                  elements=st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0, 2.0]))  # fmt: skip
scores = st.one_of(tied, hnp.arrays(np.float32, st.tuples(st.integers(1, 50), st.just(8)),
                                    elements=st.floats(-4, 4, width=32)))  # fmt: skip

# text of the policy, numpy's function, its options
SALTED = ("fp32", "bf16", "fp16", "e4m3", "e5m2", "int8")
CASES = [
    ("plain", routers.plain, {}),
    ("salted", routers.salted, {}),
    ("salted:seed=7,salt=40,scale=0.01", routers.salted, {"seed": 7, "salt": 40, "scale": 0.01}),
    *((f"salted:precision={p}", routers.salted, {"precision": p}) for p in SALTED),
    *((f"salted:ties_only=true,precision={p}", routers.salted, {"ties_only": True, "precision": p}) for p in SALTED),
    ("temperature:value=3", routers.temperature, {"value": 3.0}),
    ("soft-mask", routers.soft_mask, {}),
    ("soft-mask:cap=0.5,sigma=0.2,seed=3", routers.soft_mask, {"cap": 0.5, "sigma": 0.2, "seed": 3}),
    ("bias:rate=0.1", routers.biased, {"rate": 0.1}),
    *((f"capacity:factor={f},mode={m}", routers.capacity, {"factor": f, "mode": m})
      for f in (0.5, 1.0, 1.25) for m in routers.MODES),
]  # fmt: skip


def run(policy, logits, k):
    """Ids and weights of a policy over batches of BATCH rows, weights as numpy makes them."""
    ids, weights = [], []
    if isinstance(policy, Biased):  # numpy's twin knows the whole run
        policy.step = torch.tensor([policy.rate * float(routers.mean_std(logits.reshape(1, -1))[1][0, 0])])
    for i in range(0, len(logits), BATCH):
        by, paid = policy.logits(torch.from_numpy(logits[i : i + BATCH].copy()))
        chosen, wanted = policy.choose(by, k, Batch(i // BATCH))
        named = wanted if wanted is not None and policy.lost_counts else chosen
        gates = paid.gather(1, named.clamp(min=0)).masked_fill(named < 0, -math.inf).softmax(dim=1)
        ids.append(chosen)
        weights.append(gates.masked_fill(chosen < 0, 0.0).nan_to_num(0.0))
    return torch.cat(ids).numpy(), torch.cat(weights).numpy()


def same(text, function, options, logits, k):
    expected = function(logits, k, **options)
    ids, weights = run(parse(text)(), logits, k)
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_allclose(weights, expected.weights, rtol=1e-5, atol=1e-6)


def with_batch(function, options):
    takes = "batch" in function.__kwdefaults__ if function.__kwdefaults__ else False
    return {**options, "batch": BATCH} if takes else options


@pytest.mark.parametrize(("text", "function", "options"), CASES, ids=[c[0] for c in CASES])
@settings(max_examples=15)
@given(logits=scores, k=st.integers(1, 4))
def test_the_same_choices_as_numpy(text, function, options, logits, k):
    same(text, function, with_batch(function, options), logits, k)


@pytest.mark.parametrize(("text", "function", "options"), CASES, ids=[c[0] for c in CASES])
@pytest.mark.parametrize(("experts", "k"), [(64, 8), (40, 6)])
def test_the_same_choices_on_many_rows(text, function, options, experts, k):
    rng = np.random.default_rng(experts)
    logits = rng.normal(size=(700, experts)).astype(np.float32)
    logits[::3] = np.round(logits[::3] * 4) / 4
    logits[::5] = logits[0]  # identical tokens
    options = with_batch(function, options)
    if function is routers.capacity:
        options = {**options, "fill": fill_batch}
    same(text, function, options, logits, k)


@settings(max_examples=15)
@given(logits=scores, k=st.integers(1, 4), margin=st.sampled_from([0.0, 0.1, 0.7]))
def test_sticky_holds_the_row_of_the_forward_before(logits, k, margin):
    """Numpy's rows are one sequence; here they come one forward at a time, as in decode."""
    policy = Sticky(margin=margin)
    ids = [policy.choose(torch.from_numpy(row[None].copy()), k, Batch(0))[0] for row in logits]
    expected = routers.sticky(logits, k, margin=margin, hold=hold_rows)
    np.testing.assert_array_equal(torch.cat(ids).numpy(), expected.ids)


def test_sticky_holds_each_sequence_by_itself_and_nothing_where_the_rows_change():
    policy = Sticky(margin=0.5)
    turn = lambda *rows: policy.choose(torch.tensor(rows), 1, Batch(0))[0].ravel().tolist()  # noqa: E731
    assert turn([1.0, 0.0], [0.0, 1.0]) == [0, 1]
    assert turn([0.0, 0.4], [0.4, 0.0]) == [0, 1]  # within the margin
    assert turn([0.0, 0.6], [0.6, 0.0]) == [1, 0]
    assert turn([0.4, 0.0]) == [0]  # one row now: nothing held


@given(seed=st.integers(0, 2**63 - 1), batch=st.integers(0, 2**63 - 2), rows=st.integers(1, 20))
def test_noise_has_the_bits_of_numpy(seed, batch, rows):
    at = np.arange(rows)
    expected = routers.noise(seed, np.full(rows, batch), at, 5)
    bits = blocks.noise(seed, torch.tensor([batch]), torch.from_numpy(at), 5)
    np.testing.assert_array_equal(bits.numpy().view(np.uint64), expected)
    np.testing.assert_array_equal(
        blocks.gaussian(bits).float().numpy(), routers._gaussian(expected).astype(np.float32)
    )


@pytest.mark.parametrize("precision", SALTED)
@given(values=hnp.arrays(np.float32, (3, 8), elements=st.floats(-70_000, 70_000, width=32)))
def test_rounding_has_the_bits_of_numpy(precision, values):
    expected = routers.rounded(values, precision)
    np.testing.assert_array_equal(blocks.rounded(torch.from_numpy(values.copy()), precision).numpy(), expected)


@given(logits=tied, k=st.integers(1, 4), seed=st.integers(0, 99))
def test_ties_only_never_changes_a_strict_winner(logits, k, seed):
    values = torch.from_numpy(logits.copy())
    ids, _ = Salted(seed=seed, ties_only=True).choose(values, k, Batch(5))
    kth = np.sort(logits, axis=1)[:, -k]
    for row, own in enumerate(ids.numpy()):
        strict = set(np.flatnonzero(logits[row] > kth[row]))
        assert strict <= set(own)
        assert set(own) <= set(np.flatnonzero(logits[row] >= kth[row]))
        assert len(set(own)) == k


def test_ties_only_spreads_identical_tokens_and_repeats_for_a_batch():
    values = torch.zeros(4000, 8)
    batch = Batch(3)
    ids, _ = Salted(ties_only=True).choose(values, 1, batch)
    again, _ = Salted(ties_only=True).choose(values, 1, Batch(3))
    batch.advance()
    advanced, _ = Salted(ties_only=True).choose(values, 1, batch)
    other, _ = Salted(ties_only=True).choose(values, 1, Batch(4))
    assert torch.equal(ids, again)
    assert not torch.equal(ids, other)
    assert torch.equal(advanced, other)
    load = ids.ravel().bincount(minlength=8)
    assert load.min() > 400  # 500 each, binomial: 4.8 standard deviations


def test_groups_stay_closed():
    """-inf is never chosen while enough experts are allowed."""
    values = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    values[:, 8:] = -math.inf
    for name, make in POLICIES.items():
        ids, _ = make().choose(values, 4, Batch(0))
        assert ids.max() < 8, name


def test_bias_moves_against_the_load():
    policy = Biased(rate=0.5)
    values = torch.tensor([[1.0, 0.9, 0.0, 0.0]]).repeat(8, 1)
    seen = [policy.choose(values, 1, Batch(0))[0].ravel().unique().tolist() for _ in range(2)]
    assert seen == [[0], [1]]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("salty", "one of plain, salted"),
        ("salted:pepper=1", "its options: seed, salt"),
        ("salted:batch=4", "its options: seed, salt"),
        ("capacity:mode=lose", "drop, spill, reroute"),
        ("temperature:value=0", "a number from 1e-06"),
        ("salted:seed=99999999999999999999", "a whole number"),
        ("plain:x=1", "none"),
    ],
)
def test_a_policy_that_does_not_exist_is_refused(text, hint):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert hint in str(caught.value)
    assert f"policy {text}" in str(caught.value)


def test_the_names_are_those_of_whatif():
    from moexray.whatif.router import POLICIES as ASKED

    assert list(POLICIES) == list(ASKED)


def test_a_first_forward_without_tokens_is_not_the_one_whose_spread_counts():
    """Ranks of a group run forwards without tokens, to take part in its collectives."""
    late, fresh = Biased(rate=0.5), Biased(rate=0.5)
    some = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    ids, wanted = late.choose(some[:0], 2, Batch(0))
    assert (ids.shape, wanted) == ((0, 2), None)
    for _ in range(3):
        assert torch.equal(late.choose(some, 2, Batch(0))[0], fresh.choose(some, 2, Batch(0))[0])
    assert torch.equal(late.step, fresh.step)
    assert late.step > 0

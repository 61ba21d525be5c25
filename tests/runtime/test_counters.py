"""Counting on the device: against bincount, over the ring's end, with kernels only."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from moexray.core.errors import UsageError  # noqa: E402
from moexray.runtime.counters import MAX_BYTES, ExpertCounter  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def drawn(seed, experts=8, pairs=40):
    return torch.randint(experts, (pairs // 2, 2), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_counts_are_those_of_bincount(device, dtype):
    counter = ExpertCounter(3, 8, pairs=40, steps=4, device=device)
    expected = []
    for step in range(3):
        counter.begin()
        rows = [drawn(10 * step + layer) for layer in range(3)]
        for layer, ids in enumerate(rows):
            counter.add(layer, ids.to(dtype).to(device))
        expected.append([ids.ravel().bincount(minlength=8).tolist() for ids in rows])
    counts = counter.read()
    assert (counts.first, counts.tokens.tolist()) == (0, expected)
    assert counts.others.sum() == 0


def test_a_full_ring_keeps_the_newest_and_says_which():
    counter = ExpertCounter(1, 4, pairs=4, steps=3)
    for step in range(5):
        counter.begin()
        counter.add(0, torch.full((step,), step % 4))
    counts = counter.read()
    assert counts.first == 2
    assert counts.tokens.tolist() == [[[0, 0, 2, 0]], [[0, 0, 0, 3]], [[4, 0, 0, 0]]]


def test_each_step_is_read_once():
    counter = ExpertCounter(1, 2, pairs=2, steps=3)
    assert counter.read().tokens.shape == (0, 1, 2)
    counter.begin()
    counter.add(0, torch.tensor([0, 1]))
    assert counter.read().tokens.tolist() == [[[1, 1]]]
    assert counter.read().tokens.shape == (0, 1, 2)
    counter.begin()
    counter.add(0, torch.tensor([1]))
    counter.add(0, torch.tensor([1]))
    counts = counter.read()
    assert (counts.first, counts.tokens.tolist()) == (1, [[[0, 2]]])


def test_ids_that_name_no_expert_harm_no_neighbour():
    counter = ExpertCounter(2, 4, pairs=6, steps=2)
    counter.begin()
    counter.add(0, torch.tensor([-1, -7, 3, 4, 255, 0]))
    counts = counter.read()
    assert counts.tokens.tolist() == [[[1, 0, 0, 1], [0, 0, 0, 0]]]
    assert counts.others.tolist() == [[4, 0]]


class Kernels(TorchDispatchMode):
    """Names of the operations that ran below."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(str(func.overloadpacket).rpartition(".")[2] + ("(out)" if "out" in (kwargs or {}) else ""))
        return func(*args, **(kwargs or {}))

    def __init__(self):
        super().__init__()
        self.seen = set()


def test_a_step_writes_in_place_only():
    """No operation makes a tensor of its own: no allocation, and a graph replays the same addresses."""
    counter = ExpertCounter(2, 8, pairs=40)
    ids = drawn(1).T  # not contiguous
    with Kernels() as kernels, torch.inference_mode():
        for _ in range(3):
            counter.begin()
            counter.add(1, ids)
    in_place = {name for name in kernels.seen if name.endswith(("_", "(out)"))}
    assert kernels.seen - in_place <= {"view", "slice", "select"}
    assert in_place == {"add_", "remainder(out)", "index_fill_", "mul(out)", "copy_", "clamp_", "scatter_add_"}
    assert counter.read().tokens.sum() == 3 * 40


@pytest.mark.gpu
def test_a_captured_graph_goes_on_counting():
    counter = ExpertCounter(1, 8, pairs=40, steps=4, device="cuda")
    ids = drawn(0).cuda()

    def step():
        counter.begin()
        counter.add(0, ids)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    counter.read()
    for seed in (5, 6):
        ids.copy_(drawn(seed))
        graph.replay()
    expected = [[drawn(seed).ravel().bincount(minlength=8).tolist()] for seed in (5, 6)]
    assert counter.read().tokens.tolist() == expected


def test_what_does_not_fit_is_refused_and_nothing_is_counted():
    counter = ExpertCounter(1, 4, pairs=4)
    counter.begin()
    for layer, count in ((0, 5), (1, 2), (-1, 2)):
        with pytest.raises(UsageError, match="room for 4 in layers 0 to 0"):
            counter.add(layer, torch.zeros(count, dtype=torch.int64))
    assert counter.read().tokens.sum() == 0
    with pytest.raises(UsageError, match="all from 1"):
        ExpertCounter(0, 4, pairs=4)
    with pytest.raises(UsageError, match=f"at most {MAX_BYTES >> 20} MiB"):
        ExpertCounter(58, 256, pairs=4, steps=10_000)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_added_before_the_first_step_harms_nothing_and_counts_nowhere(device):
    """On a GPU an index beside the ring would end the context of the host's process."""
    counter = ExpertCounter(1, 4, pairs=8, steps=2, device=device)
    counter.add(0, torch.tensor([-1, 3, 9], device=device))
    assert counter.read().tokens.shape == (0, 1, 4)
    for _ in range(2):
        counter.begin()
        counter.add(0, torch.tensor([1], device=device))
    counts = counter.read()
    assert counts.tokens.tolist() == [[[0, 1, 0, 0]]] * 2
    assert counts.others.tolist() == [[0]] * 2

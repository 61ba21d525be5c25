"""What a call stack says: the user's own frame, the operator, the node of the backward pass."""

import pytest

from moexray.readers.shapes.snapshot_events import operator_of, site_of

OWN = ("/srv/app/layers/moe.py", "forward", 12)
TORCH = ("/venv/site-packages/torch/nn/modules/linear.py", "forward", 125)
ALLOCATOR = ("??", "c10::cuda::CUDACachingAllocator::Native::malloc(void**, int)", 0)
EMPTY = ("", "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)", 0)
MM = ("", "at::_ops::mm::redispatch(c10::DispatchKeySet, at::Tensor const&)", 0)
LINEAR = ("", "at::_ops::linear::call(at::Tensor const&)", 0)
BACKWARD = ("", "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", 0)
GRAD = ("", "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", 0)
KERNEL = ("kernel.cu", "void at::native::gpu_reduce_kernel<float, float>(at::TensorIterator&)", 0)


@pytest.mark.parametrize(
    ("frames", "site", "operator"),
    [
        ([OWN, TORCH], "app/layers/moe.py:12 forward", ""),
        ([TORCH, OWN], "app/layers/moe.py:12 forward", ""),
        ([TORCH], "nn/modules/linear.py:125 forward", ""),
        ([ALLOCATOR, EMPTY, MM, LINEAR, TORCH, OWN], "app/layers/moe.py:12 forward", "aten::linear"),
        ([ALLOCATOR, EMPTY, OWN, LINEAR], "app/layers/moe.py:12 forward", "aten::empty_memory_format"),
        ([ALLOCATOR, EMPTY, MM, BACKWARD], "backward pass, MmBackward0", "aten::mm"),
        ([ALLOCATOR, GRAD], "backward pass, AccumulateGrad", ""),
        ([ALLOCATOR, KERNEL], "kernel.cu:0 at::native::gpu_reduce_kernel", ""),
        ([ALLOCATOR], "", ""),
        ([], "", ""),
    ],
)
def test_sites_and_operators(frames, site, operator):
    assert (site_of(frames)[0], operator_of(frames)) == (site, operator)

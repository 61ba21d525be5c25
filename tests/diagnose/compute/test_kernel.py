"""kernel.bank_conflict."""

import json

import pytest

from load_samples import said
from moexray.analyse.kernel_match import base_name
from trace_samples import Trace

HEAD = (
    '"ID","Kernel Name","gpu__time_duration.sum","l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",'
    '"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"\n"","","us","",""\n'
)


def test_sums_of_one_kernel_decide():
    rows = '"0","k","100","100,000","1,000,000"\n"1","k","100","500,000","1,000,000"\n"2","other","50","0","9"\n'
    finding = said({"n.csv": HEAD + rows})["kernel.bank_conflict"]
    assert (finding.severity, finding.value) == ("info", 0.3)
    assert "conflict_ratio=0.3 time_share=0.8" in finding.evidence[0].text


def test_a_small_ratio_or_a_small_share_is_silent():
    assert said({"n.csv": HEAD + '"0","k","100","140,000","1,000,000"\n'}) == {}
    assert said({"n.csv": HEAD + '"0","k","4","900,000","1,000,000"\n"1","z","96","0","1,000"\n'}) == {}


def test_ideal_wavefronts_are_trusted_more():
    head = HEAD.replace('wavefronts_mem_shared.sum"', 'wavefronts_mem_shared.sum","memory_l1_wavefronts_shared_ideal"').replace('us","",""', 'us","","",""')
    assert said({"n.csv": head + '"0","k","100","400,000","1,000,000","990,000"\n'}) == {}


PATTERN = {"stride_bytes": 512, "width_bytes": 16, "base_bytes": 0}


@pytest.mark.parametrize(
    "files",
    [
        {"a.json": json.dumps(PATTERN)},
        {"a.json": json.dumps({"shared_memory": [{"kernel": "k", "stride_elements": 128, "dtype": "float", "width": 16}]})},
        {"a.json": json.dumps({"lanes": 32, "pattern": {"stride_bytes": 512, "vector_type": "float4"}})},
        {"a.csv": "kernel,stride_bytes,width_bytes,base_bytes\nk,512,16,0\nfree,16,16,0\n"},
        {"a.txt": "shared loads of kernel k\nstride = 512 bytes\nwidth = 16 bytes\nbase = 0\n"},
    ],
)
def test_a_stated_pattern_gives_the_degree_and_the_padding(files):
    finding = said(files)["kernel.bank_conflict"]
    assert (finding.severity, finding.value) == ("info", 8)
    assert "n_way=8 passes=32 ideal=4" in finding.evidence[0].text
    assert "pad_bytes=16 padded_stride_bytes=528" in finding.evidence[0].text


def test_a_split_vector_is_named_without_a_conflict():
    finding = said({"a.json": json.dumps({"stride_bytes": 20, "width_bytes": 16, "base_bytes": 4})})["kernel.bank_conflict"]
    assert "split into 4 of 4 bytes" in finding.claim


@pytest.mark.parametrize(
    "document",
    [{"stride_bytes": 16, "width_bytes": 16, "base_bytes": 0}, {"n_shared_memory_experts": 1, "stride": 14, "width": 16}, {"stride_bytes": 132, "width_bytes": 4}],
)
def test_sound_patterns_and_other_strides_are_silent(document):
    assert said({"a.json": json.dumps(document), "n.csv": HEAD + '"0","k","100","1","1,000,000"\n'}) == {}


def test_a_report_is_believed_before_a_pattern():
    assert said({"a.json": json.dumps(PATTERN), "n.csv": HEAD + '"0","k","100","1,000","1,000,000"\n'}) == {}


TEXT = """  moe_gemm(float *) (132, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: Command line profiler metrics
    -------------------------------------------------- ----------- ------------
    gpu__time_duration.sum                                      us       412.10
    l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum                  500,000
    l1tex__data_pipe_lsu_wavefronts_mem_shared.sum                    2,000,000
"""


def test_a_report_as_text():
    finding = said({"a.txt": TEXT})["kernel.bank_conflict"]
    assert finding.value == 0.25
    assert "time_s=0.000412" in finding.evidence[0].text
    assert said({"a.txt": TEXT.replace("500,000", "250,000")}) == {}


# ---- beside a trace and a stated pattern


def trace(name="void app::k<float, 4>(float*, int)"):
    made = Trace()
    for i in range(20):
        made.kernel(1000 * i, 300, name=name, stream=7)
        made.kernel(1000 * i + 400, 100, name="void other<int>(int*)", stream=7)
    return made.text()


HOT = HEAD + '"0","k","100","100,000","1,000,000"\n"1","k","100","500,000","1,000,000"\n'


def test_a_measured_kernel_is_found_in_the_trace_by_name_and_order():
    finding = said({"n.csv": HOT, "t.json": trace()})["kernel.bank_conflict"]
    [proof] = [e for e in finding.evidence if e.source == "t.json"]
    assert "launches=20 matched_launches=2 trace_share_ratio=0.75" in proof.text
    assert "it runs 20 times, 75.0% of the kernel time there" in finding.claim
    assert finding.value == 0.3  # times of the report are not those of the trace


@pytest.mark.parametrize("name", ["void k2<float>(float*)", "kk", "void app::k::operator()(int)", "ak"])
def test_near_miss_another_kernel_of_a_like_name(name):
    finding = said({"n.csv": HOT, "t.json": trace(name)})["kernel.bank_conflict"]
    assert [e.source for e in finding.evidence] == ["n.csv"]


def test_a_stated_pattern_is_set_beside_the_measured_figure():
    """512 bytes from lane to lane, 16 bytes each: 8 passes for one. 7 of 8 wavefronts are conflicts."""
    rows = '"0","void app::k<float4>(float4*)","100","875,000","1,000,000"\n'
    pattern = {"shared_memory": [{"kernel": "k", "stride_bytes": 512, "width_bytes": 16, "base_bytes": 0}]}
    finding = said({"n.csv": HEAD + rows, "a.json": json.dumps(pattern)})["kernel.bank_conflict"]
    assert "predicts 8 passes for one, 8 are measured" in finding.claim
    assert "predicted_passes_ratio=8" in finding.evidence[1].text


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("void at::native::(anonymous namespace)::elementwise_kernel<128, 2, at::native::f<c10::Half>>(int, float)", "elementwise_kernel"),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)", "ncclDevKernel_AllReduce_Sum_f16_RING_LL"),
        ("_fused_moe_kernel_0d1d2d", "_fused_moe_kernel_0d1d2d"),
        ("std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int>(cublasGemvParams)", "kernel"),
        ("", ""),
    ],
)
def test_base_names(name, base):
    assert base_name(name) == base

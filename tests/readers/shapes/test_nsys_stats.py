"""Reports of `nsys stats`: events become a trace, sums a table; headers are those of releases 2022 to 2026."""

import json

import pytest
from click.testing import CliRunner

from moexray.core.source import Source
from moexray.core.tables.timeline import CATEGORIES
from moexray.diagnose.engine import diagnose
from moexray.faces.cli.main import main
from moexray.readers.read_any import read_sources

GPU_TRACE = """\
Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
1000,500,123,,,,,,,,,,4.194,6337.593,Pinned,Device,NVIDIA H100 80GB HBM3 (1),1,,7,[CUDA memcpy Host-to-Device]
2000,300,124,64,1,1,128,1,1,40,0.000,0.008,,,,,NVIDIA H100 80GB HBM3 (1),1,,7,"void gemm<float, 128>(float *, int)"
2500,20,125,,,,,,,,,,0.001,1.0,Device,,NVIDIA H100 80GB HBM3 (1),1,,7,[CUDA memset]
"""
API_TRACE = """\
Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name
900,40,cudaMemcpyAsync,0,123,77,78,20,python
1900,50,cudaLaunchKernel,0,124,77,78,20,python
"""
RANGES = """\
Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild (ns),Name,PID,TID,Lvl,NumChild,RangeId,ParentId,RangeStack,NameTree
500,2900,2400,0,2400,:step 4,77,78,0,0,1,,:1,:step 4
"""
KERNELS = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
50.1,99385786,32,3105805.8,3041179.0,2987340,3777790,216832.4,flash_attention
19.0,37727461,193,195479.1,93278.0,22207,3320037,266509.9,"void dequant<int, 4>(float *)"
"""
CALLS = KERNELS.replace("Instances", "Num Calls").replace("flash_attention", "cudaMalloc")
COPIES = """\
Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
100.0,4000,4,1000.0,1000.0,500,1500,10.0,[CUDA memcpy Host-to-Device]
"""
NVTX = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range
100.0,4000,4,1000.0,1000.0,500,1500,10.0,PushPop,:step
"""
GUI = """\
Time\tTotal Time\tNum Calls\tAvg\tMed\tMin\tMax\tStdDev\tName
99.3%\t494.092651 ms\t3\t164.697 ms\t3.870 μs\t2.020 μs\t494.086 ms\t285.259 ms\tcudaMalloc
0.6%\t3.188 ms\t12\t265.679 μs\t995 ns\t930 ns\t3.175 ms\t916.480 μs\tcudaLaunchKernel
"""


def read(text, name="x.csv"):
    return read_sources([Source(name, content=text.encode())])


def rows_of(text):
    header, *lines = text.splitlines()
    import csv

    keys = header.split(",")
    return [{k: float(v) if v.replace(".", "").isdigit() else v for k, v in zip(keys, cells, strict=True)} for cells in csv.reader(lines)]


def trace(run):
    [b] = run.batches("trace")
    names = [b.attrs["names"][i] for i in b.columns["name"]]
    kinds = [CATEGORIES[i] for i in b.columns["category"]]
    return dict(zip(names, zip(kinds, b.columns["ts_ns"].tolist(), b.columns["dur_ns"].tolist(), b.columns["device"].tolist(), b.columns["stream"].tolist(), b.columns["correlation"].tolist(), b.columns["bytes"].tolist(), strict=True), strict=True))


def test_a_report_of_events_is_a_trace():
    found = trace(read("Processing [/tmp/a.sqlite] with [cuda_gpu_trace.py]...\n" + GPU_TRACE))
    assert found["Memcpy HtoD"] == ("memcpy", 1000, 500, 1, 7, 123, 4_194_000)
    assert found["void gemm<float, 128>(float *, int)"] == ("kernel", 2000, 300, 1, 7, 124, -1)
    assert found["Memset"][:3] == ("memset", 2500, 20)


def test_reports_of_one_file_are_one_trace_and_launches_find_their_kernels(tmp_path):
    text = f"Processing [a] with [x]...\n{GPU_TRACE}\nProcessing [a] with [y]...\n{API_TRACE}\nProcessing [a] with [z]...\n{RANGES}"
    run = read(text)
    found = trace(run)
    assert found["cudaLaunchKernel"] == ("runtime", 1900, 50, -1, -1, 124, -1)
    assert found[":step 4"][:3] == ("annotation", 500, 2400)
    assert not run.problems
    (tmp_path / "x.csv").write_text(text)
    result = CliRunner().invoke(main, ["timeline", str(tmp_path / "x.csv"), "--format", "json"])
    [gap] = [g for g in json.loads(result.stdout)["streams"] if g["stream"] == 7]
    assert gap["host"]["launch"] == 50  # 1900 to 1950, before the kernel


@pytest.mark.parametrize(
    ("text", "kind"), [(KERNELS, "kernel"), (CALLS, "call"), (COPIES, "copy"), (NVTX, "range"), (GUI, "call")]
)
def test_sums(text, kind):
    run = read(text)
    rows = run.rows("profile_sum")
    assert {r["kind"] for r in rows} == {kind}
    assert not run.problems
    assert not diagnose(run).findings


def test_units_are_those_of_the_header_or_of_the_cell():
    first, second = read(KERNELS).rows("profile_sum")
    assert (first["total_s"], first["count"], first["median_s"]) == (0.099385786, 32, pytest.approx(0.003041179))
    assert second["name"] == "void dequant<int, 4>(float *)"
    in_us = read(KERNELS.replace("(ns)", "(us)")).rows("profile_sum")[0]
    assert in_us["total_s"] == pytest.approx(99.385786)
    malloc, launch = read(GUI).rows("profile_sum")
    assert (malloc["total_s"], malloc["median_s"]) == (0.494092651, 3.87e-6)
    assert launch["least_s"] == pytest.approx(930e-9)


@pytest.mark.parametrize("text", [GPU_TRACE, KERNELS, CALLS])
def test_json_is_the_same(text):
    plain, same = read(text), read(json.dumps(rows_of(text)), "x.json")
    for table in ("profile_sum",):
        assert [{**r, "source": "", "where": ""} for r in plain.rows(table)] == [{**r, "source": "", "where": ""} for r in same.rows(table)]
    if plain.batches("trace"):
        assert trace(plain) == trace(same)


def test_sums_have_no_times(tmp_path):
    (tmp_path / "k.csv").write_text(KERNELS)
    result = CliRunner().invoke(main, ["timeline", str(tmp_path / "k.csv")])
    assert result.exit_code == 2
    assert "sums hold no times" in result.stderr


@pytest.mark.parametrize("bad", ["x,1,1,,,,,,,,,,,,,,G (0),1,,7,k", "-5,1,1,,,,,,,,,,,,,,G (0),1,,7,k", "1e30,1,1,,,,,,,,,,,,,,G (0),1,,7,k"])
def test_rows_without_a_possible_time_are_left_out_and_told(bad):
    run = read(GPU_TRACE + bad + "\n")
    assert len(trace(run)) == 3
    assert [(p.id, p.lost) for _, p in run.problems] == [("input.dirty_table", 1)]


def test_a_report_that_is_cut():
    run = read(GPU_TRACE[:-40])
    assert len(trace(run)) == 2
    assert [p.id for _, p in run.problems] == ["input.truncated"]

import pytest

from load_samples import read

C = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
W = "l1tex__data_pipe_lsu_wavefronts_mem_shared"
DETAILS = (
    '"ID","Process ID","Kernel Name","Block Size","Section Name","Metric Name","Metric Unit","Metric Value"\n'
    f'"0","42","gemm(float*, int)","(128, 1, 1)","S","gpu__time_duration.sum","us","1,200.5"\n'
    f'"0","42","gemm(float*, int)","(128, 1, 1)","M","{W}.sum","","1,500,000"\n'
    f'"0","42","gemm(float*, int)","(128, 1, 1)","M","{C}.sum","","500,000"\n'
)
RAW = (
    "==PROF== Connected to process 42 (python3)\n"
    f'"ID","Process ID","Kernel Name","Block Size","gpu__time_duration.sum","{C}_op_ld.sum","{C}_op_st.sum","{W}_op_ld.sum","{W}_op_st.sum"\n'
    '"","","","","us","","","",""\n'
    '"0","42","gemm(float*, int)","(128, 1, 1)","1,200.5","400,000","100,000","1,000,000","500,000"\n'
)


@pytest.mark.parametrize("text", [DETAILS, RAW], ids=["details", "raw"])
def test_both_pages_give_the_same_launch(text):
    run = read({"ncu.csv": text})
    [row] = run.rows("kernels")
    assert (row["launch"], row["kernel"], row["dur_s"]) == ("0", "gemm(float*, int)", 0.0012005)
    assert (row["wavefronts"], row["conflicts"]) == (1_500_000, 500_000)
    assert not run.problems


def test_a_report_without_these_counters_still_counts_launches():
    run = read({"ncu.csv": '"ID","Kernel Name","sm__cycles.avg"\n"","","cycle"\n"0","k","5"\n"1","k","6"\n'})
    assert [r["conflicts"] for r in run.rows("kernels")] == [None, None]

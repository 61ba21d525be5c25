"""kernel.bank_conflict."""

from load_samples import said

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

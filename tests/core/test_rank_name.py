import pytest

from moexray.core.rank_name import rank_in_name, without_rank


@pytest.mark.parametrize(("path", "rank"), [
    ("trace_rank12.json", 12), ("run.rank_3.pt.trace.json.gz", 3), ("memory_stats_rank5.json", 5),
    ("fr-rank2.pkl", 2), ("global_rank-7.json", 7), ("a/Rank 4/x.log", 4), ("comm_lib_trace_rank_3", 3),
    ("host_worker3_step_10.json", 3), ("1700-TP-5.trace.json.gz", 5), ("1700-TP-5-DP-1.trace.json.gz", None),
    ("rank1/trace_rank_4", 4), ("of_rank8/rank2/snapshot.pickle", 2), ("rank3_logs/trace.json", 3),
    ("frank3.json", None), ("run_16rank_sendrecv.json", None), ("ranks8.json", None), ("rank_18_local_rank_2.log", 18),
    ("local_rank2.log", 2), ("trace_6.json", None),
    ("gpu3.csv", None), ("dump", None), ("rank12345678.json", None), ("", None),
])  # fmt: skip
def test_what_a_name_says(path, rank):
    assert rank_in_name(path) == rank


@pytest.mark.parametrize(("path", "rank"), [
    ("trace_6", 6), ("dump6", 6), ("dump.6", 6), ("counts_r3.npz", 3), ("ep2_counts.json.gz", 2), ("x-dp-1.pt", 1),
    ("load_gpu4.csv", 4), ("recorder_1764403100.5_3.pt", 3), ("recorder_1764400500.3.pt", None),
    ("part_3_counts.npz", 3), ("counts_20240131.npz", None), ("rank1/dump", 1), ("rank1/dump_4", 4),
    ("rank_3_of_8.pkl", 3), ("step.pkl", None),
])  # fmt: skip
def test_bare_numbers_of_dumps_that_come_one_a_rank(path, rank):
    assert rank_in_name(path, bare=True) == rank


@pytest.mark.parametrize(("path", "stem", "sure"), [
    ("a/rank3.npz", "a/rank*.npz", True), ("counts_ep_2.json", "counts_ep_*.json", True),
    ("gpu10_load.csv", "gpu*_load.csv", True), ("counts_tp1.pt", "counts_tp*.pt", False),
    ("recorder_1764403100.5_3.pt", "recorder_1764403100.5_*.pt", False), ("step3.npz", "step*.npz", False),
    ("rank3/counts.npz", "rank3/counts.npz", False), ("counts.npz", "counts.npz", False),
])  # fmt: skip
def test_the_name_that_the_files_of_all_ranks_share(path, stem, sure):
    assert without_rank(path) == (stem, sure)

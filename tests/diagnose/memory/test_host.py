"""mem.host_oom: kills by the host's memory, and what only looks like one."""

from text_runs import actions, said

KERNEL = (
    "[ 8123.402211] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
    "[ 8123.402390] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/pod,task_memcg=/pod/w,task=python3,pid=4242,uid=1000\n"
    "[ 8123.402455] memory: usage 1048576kB, limit 1048576kB, failcnt 91021\n"
    "[ 8123.402498] Memory cgroup out of memory: Killed process 4242 (python3) total-vm:9kB, anon-rss:996147kB, file-rss:1kB\n"
)
DIED = "(Worker_TP1 pid=43) ERROR 05-11 03:20:14 [m.py:210] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 310.00 MiB is free. Including non-PyTorch memory, this process has 78.79 GiB memory in use. Of the allocated memory 77.52 GiB is allocated by PyTorch, and 402.11 MiB is reserved by PyTorch but unallocated."


def test_the_kernel_names_the_process():
    found = said(kern=KERNEL, log=DIED)
    assert list(found) == ["mem.host_oom"]
    f = found["mem.host_oom"]
    assert "process 4242 (python3)" in f.claim
    assert f.value == 996147 * 1024
    assert f.limit == 1 << 30
    assert "larger-container" in [r.id for r in f.remedies]
    assert any("anon_rss_bytes=1020054528" in e.text for e in f.evidence)


def test_a_container_status():
    f = said(status="state:\n  terminated:\n    exitCode: 137\n    reason: OOMKilled\n")["mem.host_oom"]
    assert f.severity == "error"


def test_ray_killed_it():
    f = said(log="(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM)\n")["mem.host_oom"]
    assert "Ray" in f.claim


def test_signal_9_without_a_reason_is_only_a_hypothesis():
    for text in (DIED, "terminated:\n  exitCode: 137\n  reason: Error\n"):
        f = said(log=text)["mem.host_oom"]
        assert f.severity == "info"
        assert f.confidence < 0.5
        assert f.settle_with


def test_other_explanations():
    assert "mem.host_oom" not in said(log=OOM + "\n" + DIED)
    assert said(log='"OOMKilled": false,\n"ExitCode": 137,\n') == {}
    assert said(log="[ 1.2] systemd[1]: worker.service: set oom_score_adj to -500\n") == {}


def test_several_processes():
    second = KERNEL.replace("4242", "77")
    assert "2 processes" in said(kern=KERNEL + second)["mem.host_oom"].claim
    assert "loader workers" in actions(said(kern=KERNEL)["mem.host_oom"])


def test_words_about_kills_are_no_kills():
    for text in (
        "# FAQ\n\nIf the pod shows OOMKilled, raise the limit.\n",
        "we have not seen OOMKilled since the update\n",
        "INFO 05-11 03:20:14 [m.py:210] worker 3 was not killed by the OOM killer\n",
        "When the kernel prints Out of memory: Killed process 4242 (python3) the host is full.\n",
    ):
        assert said(notes=text) == {}


def test_a_clause_elsewhere_on_the_line_does_not_matter():
    pod = '{"spec": {"restartPolicy": "Never"}, "status": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}'
    assert list(said(pod=pod)) == ["mem.host_oom"]
    oomd = "Jan 12 09:00:01 node systemd-oomd[8]: Killed /user.slice/x.scope due to memory used (99%) / total being more than 90%\n"
    assert list(said(log=oomd)) == ["mem.host_oom"]

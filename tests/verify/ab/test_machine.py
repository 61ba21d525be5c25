"""Load, steal and waiting from procfs; what the kernel does not tell is unknown, not zero."""

import pytest

from moexray.core.limits.ab import AbLimits
from moexray.verify.ab import moment, noise, refusal


def _proc(folder, load="0.50", steal=0, idle=1000, stalled=0, *, psi=True):
    folder.mkdir(exist_ok=True)
    (folder / "loadavg").write_text(f"{load} 0.60 0.70 1/150 4242\n")
    (folder / "stat").write_text(f"cpu  100 0 100 {idle} 0 0 0 {steal} 0 0\ncpu0 50 0 50 500 0 0 0 {steal} 0 0\n")
    if psi:
        (folder / "pressure").mkdir(exist_ok=True)
        (folder / "pressure" / "cpu").write_text(
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled}\nfull avg10=0.00 total=0\n"
        )
    return folder


def _seen(tmp_path, **last):
    first = moment(_proc(tmp_path / "a"), cores=2)
    second = moment(_proc(tmp_path / "b", **last), cores=2)
    return noise(first, second)


def test_a_quiet_machine_is_not_refused(tmp_path):
    assert refusal(_seen(tmp_path, idle=1200), AbLimits()) == ""


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ({"load": "7.10"}, "load 7.1 on 2 cores (limit 3.0)"),
        ({"steal": 50, "idle": 1950}, "steal 5.0% (limit 2.0%)"),
        ({"stalled": 60_000_000}, "tasks waited for a core"),
    ],
)
def test_each_kind_of_noise_is_refused_by_name(tmp_path, last, told):
    why = refusal(_seen(tmp_path, **last), AbLimits())
    assert why.startswith("the machine is too noisy: ")
    assert told in why


def test_what_the_kernel_does_not_tell_is_unknown(tmp_path):
    empty = tmp_path / "none"
    seen = noise(moment(empty, cores=4), moment(empty, cores=4))
    assert (seen.load, seen.steal_ratio, seen.stall_ratio) == (None, None, None)
    assert refusal(seen, AbLimits()) == ""


def test_this_machine_can_be_read():
    seen = noise(moment(), moment())
    assert seen.cores >= 1
    assert seen.load is None or seen.load >= 0

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile

import pytest

from moexray.core.source import Source
from moexray.readers.read_any import read_sources

LINE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.00 GiB is free.\n"
)
NAMES = ["./logs/rank0.log", "logs/rank1.log"]


def tar(mode="w", form=tarfile.PAX_FORMAT, extra=()):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=form) as archive:
        for name in NAMES:
            info = tarfile.TarInfo(name)
            info.size = len(LINE)
            archive.addfile(info, io.BytesIO(LINE.encode()))
        for info in extra:
            archive.addfile(info)
    return out.getvalue()


def read(content, name="b.tar"):
    return read_sources([Source(name, content=content)])


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_the_members_of_a_tar_are_read_under_their_names(mode, form):
    run = read(tar(mode, form))
    assert [i.path for i in run.inputs] == ["b.tar/logs/rank0.log", "b.tar/logs/rank1.log"]
    assert {r["where"] for r in run.rows("oom")} == {"line 1"}


def test_the_members_of_a_zip_are_read():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.log", LINE)
    assert [i.path for i in read(out.getvalue(), "b.zip").inputs] == ["b.zip/a.log"]


def test_links_and_devices_of_a_tar_are_left_out():
    link, device = tarfile.TarInfo("evil.log"), tarfile.TarInfo("null")
    link.type, link.linkname, device.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.CHRTYPE
    assert len(read(tar(extra=[link, device])).inputs) == 2


def test_what_stands_before_the_cut_of_a_tar_is_kept():
    whole = tar()
    run = read(whole[: 512 + 512 + 512 + 40])
    assert [i.path for i in run.inputs] == ["b.tar/logs/rank0.log"]
    assert "the tar archive is damaged" in run.skipped[0].reason
    assert any(p.id == "input.truncated" for _, p in run.problems)


def test_a_log_with_the_word_at_that_place_is_no_tar():
    text = LINE + "x" * (257 - len(LINE)) + "ustar\n" + LINE
    run = read(gzip.compress(text.encode()), "a.log.gz")
    assert [i.path for i in run.inputs] == ["a.log.gz"]

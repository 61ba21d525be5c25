from __future__ import annotations

import gzip
import os
import zlib

import pytest
import zstandard

from moexray.core.errors import EmptyError, LimitError, ReadError
from moexray.core.source import Source, decode, walk

TEXT = b"line one\nline two\n" * 5000


def ids(source):
    return [p.id for p in source.problems]


def test_plain_gzip_and_zstd_give_the_same_bytes():
    for content in (TEXT, gzip.compress(TEXT), zstandard.ZstdCompressor().compress(TEXT)):
        source = Source("x", content=content)
        assert source.data() == TEXT
        assert source.head == TEXT[:65536]
        assert ids(source) == []


def test_several_gzip_members_are_legal():
    source = Source("x", content=gzip.compress(b"a" * 100) + gzip.compress(b"b" * 100))
    assert source.data() == b"a" * 100 + b"b" * 100
    assert ids(source) == []


@pytest.mark.parametrize("padding", [b"\0" * 512, b""])
def test_zero_padding_after_gzip_is_no_damage(padding):
    source = Source("x", content=gzip.compress(TEXT) + padding)
    assert source.data() == TEXT
    assert ids(source) == []


def test_truncated_gzip_gives_the_front_and_says_where():
    packed = gzip.compress(os.urandom(300_000))
    source = Source("x", content=packed[: len(packed) // 2])
    got = source.data()
    assert 100_000 < len(got) < 200_000
    assert ids(source) == ["input.truncated"]
    assert str(len(got)) in source.problems[0].where


def test_foreign_bytes_after_gzip_and_wrong_checksum_are_damage():
    source = Source("x", content=gzip.compress(TEXT) + b"garbage")
    assert source.data() == TEXT
    assert ids(source) == ["input.gzip_damaged"]
    packed = bytearray(gzip.compress(TEXT))
    packed[-6] ^= 0xFF
    source = Source("x", content=bytes(packed))
    assert source.data().startswith(TEXT[:1000])
    assert ids(source) == ["input.gzip_damaged"]


def test_truncated_zstd_is_named():
    packed = zstandard.ZstdCompressor().compress(os.urandom(400_000))
    source = Source("x", content=packed[:200_000])
    source.data()
    assert ids(source) == ["input.truncated"]


def test_a_bomb_is_refused_before_memory_is_used():
    engine = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(engine.compress(b"\0" * (1 << 20)) for _ in range(100)) + engine.flush()
    with pytest.raises(LimitError, match="bomb"):
        Source("x", content=bomb).data()


def test_the_load_limit_names_its_size():
    with pytest.raises(LimitError, match="1 MiB"):
        Source("x", content=gzip.compress(os.urandom(3 << 20))).data(limit=1 << 20)


def test_blank_files_are_empty(tmp_path):
    for content in (b"", b" \n\t "):
        with pytest.raises(EmptyError):
            Source("x", content=content).data()


def test_an_unreadable_file_says_why(tmp_path):
    with pytest.raises(ReadError, match="cannot be read"):
        Source("gone", tmp_path / "gone").data()


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        ("grün".encode(), "grün", "utf-8"),
        (b"\xef\xbb\xbfa", "a", "utf-8-sig"),
        ("ab\n".encode("utf-16"), "ab\n", "utf-16-le"),
        (b"\xfe\xff\0a\0b", "ab", "utf-16-be"),
        ("abcd".encode("utf-16-le"), "abcd", "utf-16-le"),
        (b"gr\xfcn", "grün", "latin-1"),
        (b"a\0bcdefg", "abcdefg", "utf-8+nul"),
        ("grü".encode()[:-1], "gr", "utf-8"),
    ],
)
def test_decode(data, text, encoding):
    assert decode(data) == (text, encoding)


def test_walk_is_sorted_and_survives_loops_and_dangling_links(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.log").write_text("x")
    (tmp_path / "1.log").write_text("x")
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    files, skipped = walk(tmp_path)
    assert [name for name, _ in files] == ["1.log", "b/2.log"]
    assert sorted(name for name, _ in skipped) == ["b/loop", "gone"]
    assert walk(tmp_path / "1.log")[0][0][0] == "1.log"

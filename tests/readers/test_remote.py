"""Files behind URLs, from a stand-in for S3 and from fsspec's own drivers."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from moexray.core.errors import UsageError
from moexray.faces.cli.main import main
from moexray.readers.remote import find, is_url, local, version
from moexray.verify.incidents.fleet import Fleet, simulate, write
from s3_stand_in import BUCKET, serve

pytest.importorskip("s3fs", reason="the extra 'remote' is not installed")

FLEET = Fleet(ranks=4, steps=20, guilty=2, stalls=(5, 11, 16))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("store")
    rounds = simulate(FLEET)
    for rank in range(FLEET.ranks):
        write(FLEET, rounds, rank, place / "run 1")
    return place


@pytest.fixture
def store(folder, monkeypatch):
    with serve(folder) as endpoint:
        for name, value in {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
                            "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-1"}.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        yield f"s3://{BUCKET}/run 1"


def test_files_of_a_stand_in_for_s3_are_found_and_fetched(store, folder):
    found = find(store)
    assert [name for name, _ in found] == [f"traces/rank{r}.pt.trace.json.gz" for r in range(4)]
    with local(found[:1]) as [source]:
        assert source.file.read_bytes() == (folder / "run 1" / found[0][0]).read_bytes()
        copy = Path(source.file)
    assert not copy.exists()
    assert version(found[0][1]) == version(found[0][1]) != version(found[1][1])


def test_a_fleet_on_a_stand_in_for_s3_is_diagnosed_and_resumed(store, tmp_path):
    def call():
        args = ["diagnose", store, "--work", str(tmp_path), "--workers", "2", "--format", "json"]
        return CliRunner().invoke(main, args)

    first, again = call(), call()
    document = json.loads(first.stdout)
    assert document["verdict"] == "mem.alloc_stall"
    assert len(document["fleet"]) == FLEET.ranks
    assert "4 of them known from before" in again.stderr
    assert json.loads(again.stdout) == document


@pytest.mark.parametrize(("url", "said"), [
    ("s3://nobody/there", "store refused|nothing at this URL"),
    ("nonsense://x/y", "no URL that fsspec knows"),
    ("s3://captures/run 2", "nothing at this URL|store refused"),
])
def test_what_cannot_be_found_is_told(store, url, said):
    with pytest.raises(UsageError, match=said):
        find(url)


def test_a_path_is_no_url():
    assert is_url("s3://a/b")
    assert not is_url("/a/b:c")
    assert not is_url("-")

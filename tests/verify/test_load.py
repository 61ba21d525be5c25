"""The open-loop client: arrivals fixed beforehand, latency from when due, failures named."""

import numpy as np
import pytest

from fake_server import FakeServer
from live.test_post import Raw, status
from moexray.core.errors import UsageError
from moexray.verify.load import arrivals, drive, made_prompts, target


def test_arrivals_are_poisson_and_repeat():
    due = arrivals(50, 100, seed=1)
    assert 4700 < len(due) < 5300
    assert (np.diff(due) > 0).all()
    assert due[-1] < 100
    gaps = np.diff(due)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)
    assert (arrivals(50, 100, seed=1) == due).all()
    assert not np.array_equal(arrivals(50, 100, seed=2), due)


def test_made_prompts_share_no_beginning():
    prompts = made_prompts(200, 48, seed=0)
    assert len({p[:40] for p in prompts}) == 200


@pytest.mark.parametrize("path", ["", "/v1", "/v1/", "/v1/completions", "/v1/chat/completions"])
def test_answers_have_a_time_for_each_token(path):
    with FakeServer() as server:
        where = target(server.url + path, max_tokens=5, headers={"Authorization": "Bearer k"})
        answers = drive(where, ["one", "two"], [0.0, 0.01])
    assert where.model == "tiny"
    assert [a.error for a in answers] == ["", ""]
    assert [len(a.gaps_s) for a in answers] == [4, 4]
    assert all(0 < a.ttft_s <= a.e2e_s for a in answers)
    asked, body, key = server.seen[0]
    assert asked == ("/v1/chat/completions" if "chat" in path else "/v1/completions")
    assert body["stream"] is True
    assert body["temperature"] == 0
    assert key == "Bearer k"


def test_latency_counts_from_when_the_request_was_due():
    """A client that starts late, or a server that takes one at a time, does not shorten what is told."""
    with FakeServer(delays={"A": 0.05}) as server:
        where = target(server.url, max_tokens=1)
        answers = drive(where, ["x"] * 4, [0.0] * 4)
        late = drive(where, ["x"], [-1.0])
    assert all(a.ttft_s >= 0.05 for a in answers)
    assert late[0].ttft_s >= 1.05
    assert late[0].ttft_s == pytest.approx(late[0].sent_s - late[0].due_s + 0.05, abs=0.5)


@pytest.mark.parametrize(
    ("mode", "told"), [("refuse", "HTTP 503"), ("babble", "Expecting property name"), ("error", "out of memory"),
     ('{"choices": [1]}', "unknown shape"), ('{"choices": "a"}', "unknown shape"), ('{"choices": [{"delta": "a"}]}', "unknown shape"),
     ('{"choices": null}', "no token came")],
)  # fmt: skip
def test_failures_are_told(mode, told):
    with FakeServer(mode=mode) as server:
        [answer] = drive(target(server.url), ["x"], [0.0])
    assert told in answer.error
    assert np.isnan(answer.ttft_s)


def test_an_answer_that_never_comes_is_given_up():
    with FakeServer(delays={"A": 1.0}) as server:
        [answer] = drive(target(server.url, timeout_s=0.1), ["x"], [0.0])
    assert answer.error == "no answer in 0.1 s"


def test_nobody_there():
    with FakeServer() as server:
        where = target(server.url)
    [answer] = drive(where, ["x"], [0.0])
    assert answer.error
    with pytest.raises(UsageError, match="no model is listed at"):
        target(server.url)


@pytest.mark.parametrize("reply", [b"SSH-2.0-OpenSSH_9.2\r\n", b"", None, b"HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\n{",
                                   status(200, body="{}"), status(200, body="[1]"), status(500)])  # fmt: skip
def test_what_is_no_server_of_models_is_told(reply):
    server = Raw(reply)
    try:
        with pytest.raises(UsageError, match="no model is listed at"):
            target(server.url)
    finally:
        server.listening.close()


def test_addresses_and_lists_that_are_none():
    with pytest.raises(UsageError, match="no address of a server"):
        target("localhost:8000")
    with FakeServer(lists=False) as server, pytest.raises(UsageError, match="no model is listed"):
        target(server.url)

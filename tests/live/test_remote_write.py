"""Remote write against a receiver of the test's own: what is sent, retried, dropped and counted.

The same against a real Prometheus: test_servers.py.
"""

import math
import struct
import threading

import cramjam
import pytest

from moexray.core.errors import UsageError
from moexray.live import remote_write as module
from moexray.live.page import Page
from moexray.live.remote_write import STALE, RemoteWrite, Settings, encode
from moexray.live.serve import Reply, Server

FAST = {"interval_s": 3600.0, "first_pause_s": 0.01, "longest_pause_s": 0.02, "timeout_s": 5.0}


class Receiver:
    """Answers with the given statuses in turn, then with 204; keeps what came."""

    def __init__(self, *statuses, headers=None):
        self.statuses, self.headers, self.bodies, self.seen = list(statuses), headers or {}, [], []
        self.came = threading.Condition()
        self.server = Server("127.0.0.1:0", self.answer)
        self.server.start()
        self.url = f"{self.server.url}/api/v1/write"

    def answer(self, request):
        with self.came:
            self.bodies.append(request.body)
            self.seen.append(dict(request.headers))
            self.came.notify_all()
            return Reply(self.statuses.pop(0) if self.statuses else 204, b"why", headers=self.headers)

    def wait(self, requests):
        with self.came:
            assert self.came.wait_for(lambda: len(self.bodies) >= requests, 20), len(self.bodies)


@pytest.fixture
def receiver():
    made = []

    def make(*statuses, **more):
        made.append(Receiver(*statuses, **more))
        return made[-1]

    yield make
    for one in made:
        one.server.close()


def page(layers=3):
    made = Page()
    for layer in range(layers):
        made.scope(model="M").set("moex_expert_skew_index", layer / 10, layer)
    return made


def decode(body):
    """{labels: (values, exemplars)} of a request."""
    request = module._messages()()
    request.ParseFromString(bytes(cramjam.snappy.decompress_raw(body)))
    return {
        tuple((x.name, x.value) for x in s.labels): (
            [(v.value, v.timestamp) for v in s.samples],
            [(e.labels[0].value, e.value) for e in s.exemplars],
        )
        for s in request.timeseries
    }


def writer(page, receiver, **more):
    remote = RemoteWrite(page, Settings(receiver.url, **{**FAST, **more}))
    remote.start()
    return remote


def dropped(page, reason):
    return page.value("moex_exporter_dropped_total", "samples", reason)


def test_a_request_holds_the_page_with_sorted_labels():
    made = page(2)
    made.scope(model="M").observe("moex_decode_step_duration_seconds", 0.002, trace_id="ab" * 16)
    read = decode(encode(made.samples(), 1234))
    assert len(read) == made.series
    assert all(list(labels) == sorted(labels) for labels in read)
    skew = (("__name__", "moex_expert_skew_index"), ("layer", "1"), ("model", "M"))
    assert read[skew] == ([(0.1, 1234)], [])
    [mark] = [m for _, marks in read.values() for m in marks]
    assert mark == ("ab" * 16, 0.002)


def test_a_series_that_ended_is_marked_as_prometheus_does(receiver):
    made, to = page(), receiver()
    remote = writer(made, to)
    remote.sample()
    made.scope(model="M").set("moex_expert_skew_index", math.nan, 1)
    remote.sample()
    to.wait(2)
    remote.close()
    gone = (("__name__", "moex_expert_skew_index"), ("layer", "1"), ("model", "M"))
    [(value, _)] = decode(to.bodies[1])[gone][0]
    assert struct.pack("<d", value) == struct.pack("<d", STALE) == struct.pack("<Q", 0x7FF0000000000002)


def test_headers_and_token(receiver):
    made, to = page(), receiver()
    remote = writer(made, to, token="secret")
    remote.sample()
    to.wait(1)
    remote.close()
    [seen] = to.seen
    assert seen["Content-Encoding"] == "snappy"
    assert seen["Content-Type"] == "application/x-protobuf"
    assert seen["X-Prometheus-Remote-Write-Version"] == "0.1.0"
    assert seen["Authorization"] == "Bearer secret"
    assert remote.sent == made.series


@pytest.mark.parametrize("status", [500, 503, 429])
def test_what_may_pass_later_is_sent_again(receiver, status):
    made, to = page(), receiver(status, status)
    remote = writer(made, to)
    remote.sample()
    to.wait(3)
    remote.close()
    assert to.bodies[0] == to.bodies[1] == to.bodies[2]
    assert remote.sent == made.series
    assert dropped(made, "refused") == 0


@pytest.mark.parametrize("status", [400, 401, 404, 413, 302])
def test_what_the_receiver_refuses_is_dropped_counted_and_not_sent_again(receiver, status):
    made, to = page(), receiver(status)
    remote = writer(made, to)
    remote.sample()
    to.wait(1)
    made.scope(model="M").set("moex_expert_skew_index", 0.9, 0)
    remote.sample()
    to.wait(2)
    remote.close()
    assert len(to.bodies) == 2
    assert to.bodies[0] != to.bodies[1]
    assert dropped(made, "refused") == remote.sent == made.series


def test_a_big_page_goes_out_in_parts(receiver, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 10)
    made, to = page(25), receiver()
    remote = writer(made, to)
    remote.sample()
    full, rest = divmod(made.series, 10)
    to.wait(full + bool(rest))
    remote.close()
    assert [len(decode(b)) for b in to.bodies] == [10] * full + [rest]


def test_while_the_receiver_is_away_the_oldest_fall_out_and_are_counted(receiver):
    """As Prometheus down for a minute: the queue keeps the newest, and every sample is sent or counted."""
    made, to = page(), receiver(*[503] * 4)
    remote = writer(made, to, queue=3, first_pause_s=0.05)
    asked = 0
    for _ in range(10):
        asked += len(made.samples())
        remote.sample()
    to.wait(5)
    remote.close(wait_s=20)
    lost = dropped(made, "queue_full")
    assert lost > 0
    assert remote.sent + lost == asked
    assert decode(to.bodies[-1])  # the newest came


def test_nobody_listens_and_the_end_is_counted():
    made = page()
    nobody = Server("127.0.0.1:0", lambda request: Reply(200))
    url = nobody.url
    nobody._http.server_close()
    remote = RemoteWrite(made, Settings(url, **FAST))
    remote.start()
    remote.sample()
    remote.close(wait_s=0.1)
    assert remote.sent == 0
    assert dropped(made, "closed") == made.series


def test_only_web_addresses():
    with pytest.raises(UsageError, match="no address"):
        RemoteWrite(page(), Settings("file:///etc/passwd"))

"""The live page over a real socket: who may ask, what is answered, and the page in a browser."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

pytest.importorskip("starlette", reason="the extra 'web' is not installed")

from browser import CHROMIUM, page

LOG = "INFO 11-30 09:00:{:02d} [engine.py:1] ready\n"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated "
    "memory 60.00 GiB is allocated by PyTorch, and 17.00 GiB is reserved by PyTorch but unallocated.\n"
)
HOSTILE = "</script><script>document.title='owned'</script>"


def latencies(spikes):
    rows = ["time_s,step_ms"]
    rows += [f"{1_790_000_000 + i * 0.02:.3f},{250.0 if i in spikes else 11.0 + i % 3 * 0.1}" for i in range(600)]
    return "\n".join(rows) + "\n"


@contextmanager
def serving(folder, *args, env=()):
    command = [sys.executable, "-m", "moexray", "serve", str(folder), "--listen", "127.0.0.1:0", "--every", "0.2", *args]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **dict(env)})
    try:
        line = child.stderr.readline()
        assert "the live page is at http://" in line, line + child.stderr.read()
        yield line.split(" at ")[1].split(";")[0].split("/?")[0].rstrip("/")
    finally:
        child.terminate()
        code = child.wait(15)
        child.stderr.close()
        assert code in (0, -signal.SIGTERM)  # uvicorn ends itself by the signal once it has closed


def ask(url, path="/", **headers):
    request = urllib.request.Request(url + path, headers=headers)
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=10) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as why:
        return why.code, dict(why.headers), why.read().decode()


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "server.log").write_text(LOG.format(1) + OOM)
    return tmp_path / "run"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    (place / "server.log").write_text(LOG.format(1) + OOM)
    with serving(place) as url:
        yield url


def test_the_state_holds_figures_and_findings(url):
    state = json.loads(ask(url, "/state")[2])
    assert state["schema"] == "moexray.live/1"
    assert [e["id"] for e in state["events"] if e["kind"] == "finding"][-1].startswith("mem.")
    assert {e["kind"] for e in state["events"]} <= {"point", "finding", "spike"}


def test_the_report_of_a_look_and_the_place_of_a_verdict(url):
    found = next(e for e in json.loads(ask(url, "/state")[2])["events"] if e["kind"] == "finding")
    status, headers, _ = ask(url, f"/report/{found['report']}/{found['id']}")
    assert status == 303
    assert headers["location"].startswith(f"/report/{found['report']}#f")
    assert found["id"] in ask(url, "/report")[2]
    assert ask(url, "/report/99")[0] == 404


def test_events_go_on_where_the_reader_stopped(url):
    def first(after):
        request = urllib.request.Request(url + "/events", headers={"Last-Event-ID": str(after)})
        with urllib.request.urlopen(request, timeout=10) as stream:
            return stream.readline().decode()

    assert first(0) == "id: 1\n"
    assert first(1) == "id: 2\n"


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/report/..%2f..", "/assets/live.js", "/server.log"])
def test_no_file_is_served_by_its_name(url, path):
    assert ask(url, path)[0] == 404


def test_a_name_that_leads_here_from_elsewhere_is_refused(url):
    assert ask(url, Host="evil.example")[0] == 403
    assert ask(url, Host="localhost:1234")[0] == 200


def test_every_answer_carries_the_headers_of_a_careful_server(url):
    for path in ("/", "/state", "/report", "/nowhere"):
        headers = {k.lower(): v for k, v in ask(url, path)[1].items()}
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    policy = ask(url)[1]["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_only_get_is_answered(url):
    request = urllib.request.Request(url + "/state", data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(request, timeout=10)


def test_a_token_opens_once_by_address_then_by_cookie_or_header(folder, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    with serving(folder, "--token-file", str(tmp_path / "token")) as url:
        assert ask(url)[0] == 401
        assert ask(url, "/?token=wrong")[0] == 401
        assert ask(url, "/state?token=s3cret")[0] == 401  # only the page takes it, to keep it out of logs and links
        status, headers, _ = ask(url, "/?token=s3cret")
        assert (status, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ask(url, "/state", Cookie=cookie.split(";")[0])[0] == 200
        assert ask(url, "/state", Authorization="Bearer s3cret")[0] == 200
        assert ask(url, "/state", Authorization="Bearer s3cre")[0] == 401


@pytest.mark.parametrize(("args", "said"), [
    (["--listen", "0.0.0.0:0"], "there is no token"),
    (["--listen", "nowhere"], "no address to listen on"),
])
def test_a_bad_address_is_refused(folder, args, said):
    command = [sys.executable, "-m", "moexray", "serve", str(folder), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
def test_a_browser_sees_figures_and_a_spike_as_it_comes_and_a_click_leads_to_its_diagnosis(tmp_path):
    run = tmp_path / f"run{HOSTILE.replace('/', '_')}"
    run.mkdir()
    (run / "server.log").write_text(LOG.format(1))
    (run / "step_latency.csv").write_text(latencies(()))
    with serving(run) as url, page(tmp_path / "profile") as tab:
        tab.open(url)
        tab.wait("document.querySelector('#link').textContent === 'live'")
        tab.wait("Number(document.documentElement.dataset.points) >= 2")
        assert not tab.run("document.querySelector('#spikes table').rows.length > 1")
        (run / "step_latency.csv").write_text(latencies({300, 301, 450}))
        (run / "server.log").write_text(LOG.format(1) + OOM)
        tab.wait("document.querySelector('#spikes table').rows.length > 1")
        tab.wait("document.querySelector('#findings table').rows.length > 1")
        assert "step_latency.csv:" in tab.run("document.querySelector('#spikes tbody').textContent")
        tab.run("document.querySelector('#findings tbody a').click()")
        tab.wait("location.pathname.startsWith('/report/') && document.readyState === 'complete'")
        assert tab.run("location.hash").startswith("#f")
        assert tab.run("document.documentElement.dataset.errors") == "0"
        assert tab.errors == []
        assert {r.split("/")[2] for r in tab.requests if not r.startswith("data:")} == {url.split("/")[2]}


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
@pytest.mark.parametrize("dark", [False, True])
def test_the_charts_are_drawn_in_both_schemes(tmp_path, dark):
    from moexray.faces.web.app import make_app
    from moexray.live.page import Page
    from moexray.live.rolling import Rolling

    metrics = Page()
    rolling, scope = Rolling(metrics), metrics.scope(rank=0)
    for n in range(40):
        scope.set("moex_expert_skew_index", 0.2 + n / 100, 3)
        scope.observe("moex_decode_step_duration_seconds", 0.012)
        rolling.sample(now=time.time() - 40 + n)
    with in_thread(make_app(rolling, title="t")) as url, page(tmp_path / "profile") as tab:
        tab.open(url, dark=dark)
        tab.wait("document.querySelectorAll('.u-wrap').length === 2")
        assert tab.run("document.querySelector('.now').textContent").endswith(" ms")
        assert tab.run("document.querySelectorAll('.absent:not([hidden])').length") == 4
        colour = tab.run("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, colour[4:-1].split(", "))) < 200) is dark
        assert tab.elsewhere(f"{url}/") == []
        assert tab.errors == []


@pytest.mark.parametrize("title", ["{{ scripts }}", "</title>{{ styles }}", "a\udcff\u202eb\x1b[31m", "{{ title }}"])
def test_a_title_stays_a_title(title):
    from moexray.faces.web.app import make_app
    from moexray.live.page import Page
    from moexray.live.rolling import Rolling

    rolling = Rolling(Page())
    rolling.told(look("bad\udcff.csv", float("nan")))
    with in_thread(make_app(rolling, title=title)) as url:
        status, _, html = ask(url)
        assert status == 200
        assert html.count("<script") == 5
        assert not re.search("[\x1b\u202e]", html)
        state = json.loads(ask(url, "/state")[2])
    spike = next(e for e in state["events"] if e["kind"] == "spike")
    assert (spike["source"], spike["value_s"]) == ("bad\udcff.csv", None)


def look(source, seconds):
    """A report of one spike."""
    from moexray.core.run import Run
    from moexray.diagnose.engine import Diagnosis
    from moexray.live.watch import Report, Spike

    return Report(Diagnosis(Run(), ()), (), (Spike(source, 3, None, seconds, "unknown"),))


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
def test_a_page_that_is_left_open_goes_on_with_the_next_server(tmp_path):
    from moexray.faces.web.app import make_app
    from moexray.live.page import Page
    from moexray.live.rolling import Rolling

    def rolling(points):
        made = Rolling(Page())
        for n in range(points):
            made.sample(now=time.time() - points + n)
        made.told(look("\u202ea.csv", 1.0))
        return made

    with page(tmp_path / "profile") as tab:
        with in_thread(make_app(rolling(30), title="t")) as url:
            tab.open(url)
            tab.wait("document.documentElement.dataset.points === '30'")
            assert "\\u202ea.csv:3" in tab.run("document.querySelector('#spikes tbody').textContent")
        tab.wait("document.querySelector('#link').textContent.startsWith('connection lost')")
        with in_thread(make_app(rolling(5), title="t"), port=int(url.rpartition(":")[2])):
            tab.wait("document.querySelector('#link').textContent === 'live'")
            tab.wait("document.documentElement.dataset.points === '35'")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
@pytest.mark.parametrize("width", [360, 420, 1300])
def test_a_finding_can_be_read_in_a_narrow_window(folder, tmp_path, width):
    with serving(folder) as url, page(tmp_path / "profile") as tab:
        tab.open(url, width=width)
        tab.wait("document.querySelector('#findings table').rows.length > 1")
        claim = "document.querySelector('#findings tbody td:last-child').getBoundingClientRect()"
        assert tab.run(f"{claim}.right") <= width
        assert tab.run(f"{claim}.width") > 0.5 * width
        assert tab.run("document.documentElement.scrollWidth") <= width


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
def test_the_live_page_and_its_reports_ask_nobody_but_their_server(folder, tmp_path):
    (folder / "step_latency.csv").write_text(latencies({300, 301, 450}))
    with serving(folder) as url, page(tmp_path / "profile") as tab:
        for dark in (False, True):
            tab.open(url, dark=dark)
            tab.wait("document.querySelector('#link').textContent === 'live'")
            tab.wait("Number(document.documentElement.dataset.points) >= 2")
            tab.wait("document.querySelector('#findings table').rows.length > 1")
            assert tab.elsewhere(f"{url}/") == []
            tab.run("document.querySelector('#findings tbody a').click()")
            tab.wait("location.pathname.startsWith('/report/') && document.readyState === 'complete'")
            tab.wait("document.documentElement.dataset.charts === 'drawn'")
            assert tab.elsewhere(f"{url}/") == []
        asked = {re.split("[/?]", r.removeprefix(url))[1] for r in tab.requests if r.startswith(url)}
        assert {"", "events", "report"} <= asked


@contextmanager
def in_thread(app, port=0):
    import socket
    import threading

    import uvicorn

    bound = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.should_exit = True
    thread.join(15)

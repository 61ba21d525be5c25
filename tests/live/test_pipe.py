"""`program | moexray logs - --tee`: whatever befalls the pipe, the program is not stopped by it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moexray.live.serve import Reply, Server

LINES = 300


@pytest.fixture
def receiver():
    server = Server("127.0.0.1:0", lambda _: Reply(200))
    server.start()
    yield server.url
    server.close()


def pipe(url, out):
    line = [sys.executable, "-m", "moexray", "logs", "-", "--tee", "--loki", url]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE, text=True, start_new_session=True)


def ended(process):
    told = process.stderr.read()
    process.stdin.close()
    return process.wait(60), told


def test_a_program_that_takes_its_time_to_stop_is_read_to_its_end(receiver, tmp_path):
    """Ctrl-C goes to both sides of a pipe; a broken pipe would end the program in the middle of its own end."""
    with pipe(receiver, subprocess.PIPE) as process:
        process.stdin.write("INFO first\n")
        process.stdin.flush()
        assert process.stdout.readline() == "INFO first\n"
        os.kill(process.pid, signal.SIGINT)
        process.stdin.write("INFO saved all\n")
        process.stdin.flush()
        assert process.stdout.readline() == "INFO saved all\n"
        out, told = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert "sent 2 lines of 2" in told


@pytest.mark.parametrize("how", ["disk full", "reader gone"])
def test_lines_that_cannot_be_printed_are_counted_and_sent(receiver, how):
    if how == "disk full":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, out = os.pipe()
        os.close(reader)
    with pipe(receiver, out) as process:
        os.close(out)
        for number in range(LINES):
            process.stdin.write(f"INFO line {number}\n")
            process.stdin.flush()  # a broken pipe would raise here
        _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert f"{LINES} lines could not be printed" in told
    assert f"sent {LINES} lines of {LINES}" in told


def test_a_line_without_an_end_takes_bounded_memory(receiver, tmp_path: Path):
    file = tmp_path / "x.log"
    with file.open("wb") as out:
        out.truncate(64 << 20)  # one line of zeros
    script = (
        "import sys; from moexray.faces.cli.main import main; sys.argv = ['moexray', 'logs', *sys.argv[1:]]\n"
        "try: main()\n"
        "finally: print(*(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    line = [sys.executable, "-c", script, str(file), "--loki", receiver]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert "lines of 64" in done.stderr, done.stderr  # a receiver that is slow gets fewer of them
    assert int(done.stdout.split()[1]) < 200_000  # kB; the file has 64 MiB, as text twice in memory

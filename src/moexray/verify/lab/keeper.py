"""Runs a command that must not outlive the process that started it: `python keeper.py CMD`.

Standard input is a pipe that the starter holds open: when it closes, for whatever reason, CMD and all that
it started in its process group are ended. So they are when CMD ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

__all__ = ["main"]

GRACE_S = 5.0  # for CMD to end by itself: a server that still starts does not listen


def main() -> None:
    """Ends with a kill of its own process group, itself included; the starter made it a new session."""
    try:
        child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)  # noqa: S603  what we were told to run
        select.select([0, os.pidfd_open(child.pid)], [], [])
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()

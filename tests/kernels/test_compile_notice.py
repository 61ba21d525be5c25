from __future__ import annotations

import os
import subprocess
import sys


def call(cache):
    code = (
        "import numpy as np\n"
        "from numba import njit\n"
        "import moexray.kernels\n"
        "@njit\ndef one(x):\n    return x + 1\n"
        "@njit\ndef two(x):\n    return x + 2\n"
        "print(one(1), two(1))\n"
    )
    env = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)


def test_a_compilation_is_told_once_on_standard_error(tmp_path):
    done = call(tmp_path)
    assert done.stdout == "2 3\n"
    assert done.stderr.count("compiling numeric kernels") == 1

"""Takes away what Windows lacks, in every Python process that has this folder in PYTHONPATH.

    PYTHONPATH=tests/without_posix .venv/bin/python -m pytest -n 2 --dist loadfile

filelock keeps a lock of the operating system, which ends with its process, as it has on Windows.
"""

import asyncio  # noqa: F401  # before os.sysconf is gone
import os
import signal
import sys

import filelock  # noqa: F401  # before fcntl is gone

sys.modules["fcntl"] = None  # type: ignore[assignment]  # an import fails
sys.modules["resource"] = None  # type: ignore[assignment]
del signal.SIGHUP, os.O_NOFOLLOW, os.O_DIRECTORY, os.sysconf

"""Shared fixtures. Tests run side by side, one per core, so each uses one thread."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when torch is imported
    os.environ.setdefault(variable, "1")

from tests.program import ROOT, SMALL, run_program  # noqa: E402

# The same cases in every run; HYPOTHESIS_PROFILE=explore (make explore) draws new ones.
for profile, is_fixed in (("fixed", True), ("explore", False)):
    settings.register_profile(
        profile, derandomize=is_fixed, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_configure(config):
    """Restores Ctrl-C, which background jobs of a shell ignore, and so would the programs that the tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """cache_dir=DIR, one folder for all tests and workers of a session, so that each corpus is tokenized once."""
    folder = tmp_path_factory.getbasetemp()
    return f"cache_dir={(folder.parent if 'PYTEST_XDIST_WORKER' in os.environ else folder) / 'cache'}"


@pytest.fixture(scope="session")
def trained_run(cache, tmp_path_factory):
    """A small finished run on stories. Tests must not change it."""
    out = tmp_path_factory.mktemp("trained") / "run, small"
    result = run_program("train.py", f"out={out}", cache, *SMALL, "probe_sequences=8")
    assert result.status == 0 and result.err == "", result.err
    return out


@pytest.fixture
def run(trained_run, tmp_path):
    """A copy of the small run, which a test may change."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """A copy of docs/ with its pages for a browser."""
    folder = tmp_path_factory.mktemp("pages") / "docs"
    shutil.copytree(ROOT / "docs", folder)
    subprocess.run([sys.executable, "-m", "research.documents", "pages", folder], cwd=ROOT, check=True)
    return folder

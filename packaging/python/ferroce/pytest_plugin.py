"""``pytest --ferroce`` runs the tests on ferroce: this process, and all that it starts."""

import os
import subprocess
import sys

import pytest

from ferroce import program

# Set for the pytest that runs on ferroce, and so for those that it starts.
RUNNING = "FERROCE_PYTEST"


def pytest_addoption(parser):
    group = parser.getgroup("ferroce")
    group.addoption("--ferroce", action="store_true", help="run the tests on ferroce (RDMA in user space)")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    if not config.getoption("--ferroce") or RUNNING in os.environ:
        return None
    # The loader reads its search path at the start of a process, so this one is replaced.
    path = program()
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
    os.environ[RUNNING] = "1"
    os.chdir(str(config.invocation_params.dir))
    arguments = [str(argument) for argument in config.invocation_params.args]
    os.execv(path, ["ferroce", "run", "--", sys.executable, "-m", "pytest", *arguments])


@pytest.fixture
def ferroce_fault():
    """A function that takes rules of faults into force in this process, as ``ferroce fault apply``, until the end of the test."""
    own = ["--pid", str(os.getpid())]

    def apply(*rules):
        done = subprocess.run([program(), "fault", "apply", *own, *rules], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.fail(f"ferroce fault apply: {done.stderr.strip()}")

    yield apply
    # Without a device there is nothing to clear.
    subprocess.run([program(), "fault", "clear", *own], capture_output=True)


def pytest_report_header(config):
    return "ferroce: tests run on ferroce" if config.getoption("--ferroce") else None

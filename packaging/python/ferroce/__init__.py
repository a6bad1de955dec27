"""RDMA over Converged Ethernet in user space, for the programs that this one starts."""

import os
import shutil
import subprocess
from importlib import metadata

__all__ = ["program", "run"]


def program():
    """Return the path of the program ``ferroce`` that was installed with this module.

    Raises FileNotFoundError if it is neither there nor in PATH.
    """
    try:
        files = metadata.files("ferroce") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = file.locate()
        if file.name == "ferroce" and path.is_file():
            return os.path.abspath(path)
    found = shutil.which("ferroce")
    if found is None:
        raise FileNotFoundError("the program ferroce is not installed")
    return found


def run(args, **kwargs):
    """Run a program on ferroce: ``subprocess.run(args, **kwargs)`` under ``ferroce run``."""
    return subprocess.run([program(), "run", "--", *args], **kwargs)

"""RDMA over Converged Ethernet in user space, for the programs that this one starts."""

import os
import subprocess

__all__ = ["program", "run"]


def program():
    """Return the path of the program ``ferroce`` that was installed with this module."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "ferroce")


def run(args, **kwargs):
    """Run a program on ferroce: ``subprocess.run(args, **kwargs)`` under ``ferroce run``."""
    return subprocess.run([program(), "run", "--", *args], **kwargs)

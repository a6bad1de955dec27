"""Runs rdma-core's Python tests and writes one line a test: id, outcome, detail, separated by tabs.

    pyverbs.py TESTS REPORT --dev fr0 --gid 0 [test names]

TESTS is the folder of the tests, REPORT the file to write. The outcomes are `start` (a test that ends with no other
line took the process with it), `ok`, `skip`, `fail` and `error`; the detail is the reason or the last line of the
traceback, which itself goes to standard error.

Tests that connect by IP address look for their device's interface in /sys/class/infiniband, where a device in user space
is not: INTERFACE of the environment names it.
"""

import faulthandler
import os
import sys
import traceback
import unittest

faulthandler.enable()
folder, report_path = sys.argv[1:3]
sys.path.insert(0, folder)
sys.argv[1:3] = []

from importlib.machinery import SourceFileLoader  # noqa: E402

from args_parser import parser  # noqa: E402  (of the tests)


class Report(unittest.TestResult):
    """Writes each outcome at once, so that a crash loses nothing."""

    def __init__(self):
        super().__init__()
        self.file = open(report_path, "w", encoding="utf-8")
        self.worst = None

    def line(self, test, outcome, detail=""):
        name = getattr(test, "test_case", test).id()
        detail = " ".join(str(detail).split())
        print(name, outcome, detail, sep="\t", file=self.file, flush=True)

    def trace(self, test, outcome, err):
        print(f"{outcome}: {test.id()}", file=sys.stderr)
        traceback.print_exception(*err)
        self.line(test, outcome, traceback.format_exception_only(*err[:2])[-1])

    def startTest(self, test):
        super().startTest(test)
        self.line(test, "start")

    def addSuccess(self, test):
        self.line(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line(test, "skip", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.trace(test, "fail", err)

    def addError(self, test, err):
        super().addError(test, err)
        self.trace(test, "error", err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.trace(subtest, "fail" if issubclass(err[0], test.failureException) else "error", err)


def with_interface(base, interface):
    """Gives the tests the first address of the interface, which is all that they want from there."""

    def address(self, device, port, gid):
        ip, _ = self.get_ip_mac_address(interface)
        self.args.append([device, port, gid, ip, None])

    base.RDMATestCase._get_ip_mac = address


parser.parse_args()
names = [name for name in sys.argv[1:] if not name.startswith("-")]
tests = SourceFileLoader("tests", folder + "/__init__.py").load_module()
if "INTERFACE" in os.environ:
    with_interface(sys.modules["tests.base"], os.environ["INTERFACE"])
if names:
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
else:
    suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
suite.run(Report())

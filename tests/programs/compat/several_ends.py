"""several_ends.py ROLE HOST PORT: NIXL, ibverbs and pyverbs in one process. NIXL and pyverbs bring a libibverbs each.

ROLE is target or initiator. NIXL and ibverbs transfer in turn, and pyverbs opens the device. The process fails if
it has more than one libibverbs.
"""

import itertools
import os
import re
import sys

import ends
import ibverbs_ends
import nixl_ends
from pyverbs.device import Context
from pyverbs.pd import PD


def libraries():
    """The paths of all libibverbs in this process."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps}
    return {path for path in paths if re.search(r"/libibverbs[^/]*\.so\.[0-9.]+$", path)}


def connect(role, agreement, address):
    """See `ends.main`."""
    domain = PD(Context(name="fr0"))
    both = [module.connect(role, agreement, address) for module in [nixl_ends, ibverbs_ends]]
    if len(libraries()) != 1:
        raise SystemExit(f"there are several copies: {libraries()}")

    turns = {operation: itertools.cycle(move for move, _ in both) for operation in ["write", "read"]}

    def transfer(operation):
        next(turns[operation])(operation)

    def close():
        for _, end in both:
            end()
        domain.close()

    return transfer, close


ends.main(connect)
sys.stdout.flush()
# NIXL may crash while the interpreter takes its modules down.
os._exit(0)

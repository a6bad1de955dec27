"""The verbs and librdmacm on an iWARP device. Arguments: its name, and an address of its interface."""

import errno
import os
import sys

import pyverbs.cm_enums as cm
import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.xrcd import XRCD, XRCDInitAttr

name, address = sys.argv[1:3]
context = Context(name=name)
pd, cq = PD(context), CQ(context, 8)


def refused(want, call):
    try:
        call()
    except PyverbsRDMAError as error:
        assert error.error_code == want, f"{error}: {error.error_code}, not {want}"
    else:
        raise AssertionError("not refused")


def qp(kind):
    cap = QPCap(max_send_wr=1, max_recv_wr=1)
    return QP(pd, QPInitAttr(qp_type=kind, scq=cq, rcq=cq, cap=cap))


for kind in (e.IBV_QPT_UD, e.IBV_QPT_UC, e.IBV_QPT_RAW_PACKET):
    refused(errno.EOPNOTSUPP, lambda: qp(kind))
assert qp(e.IBV_QPT_RC).qp_num != 0

gid = str(context.query_gid(1, 0))
ah = AHAttr(gr=GlobalRoute(dgid=context.query_gid(1, 0), sgid_index=0), is_global=1, port_num=1)
refused(errno.EOPNOTSUPP, lambda: AH(pd, attr=ah))
mask = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
refused(errno.EOPNOTSUPP, lambda: XRCD(context, XRCDInitAttr(mask, os.O_CREAT, -1)))
# The wrapper tells -1 instead of errno.
refused(-1, lambda: context.query_pkey(1, 0))
refused(-1, lambda: context.query_gid(1, 1))

assert gid.endswith(":0000:0000:0000:0000:0000"), gid
table = context.query_gid_table(4)
assert [(entry.gid_str(), entry.gid_index, entry.ndev_ifindex) for entry in table] == [(gid, 0, 0)]

for space in (cm.RDMA_PS_TCP, cm.RDMA_PS_UDP):
    found = CMID(creator=AddrInfo(dst=address, dst_service="7471", port_space=space))
    print("TCP" if space == cm.RDMA_PS_TCP else "UDP", found.context.name)

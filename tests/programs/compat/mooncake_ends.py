"""mooncake_ends.py ROLE HOST PORT PROTOCOL: writes and reads of Mooncake's transfer engine between two processes.

ROLE is target or initiator, PROTOCOL rdma or tcp.
"""

import sys

import ends
from mooncake.engine import TransferEngine

role, host, port, protocol = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
region, address = ends.memory()
engine = TransferEngine()
if engine.initialize(host, "P2PHANDSHAKE", protocol, "fr0" if protocol == "rdma" else "") != 0:
    raise SystemExit("the engine does not start")
if engine.register_memory(address, ends.SIZE) != 0:
    raise SystemExit("the memory is not registered")
agreement = ends.Agreement(role, host, port)
if role == "target":
    agreement.send((engine.get_rpc_port(), address))
    ends.serve(agreement, region)
else:
    rpc, remote = agreement.receive()
    places = [block * ends.BLOCK for block in range(ends.BLOCKS)]
    local = [address + place for place in places]
    there = [remote + place for place in places]
    lengths = [ends.BLOCK] * ends.BLOCKS

    def transfer(operation):
        calls = {"write": engine.batch_transfer_sync_write, "read": engine.batch_transfer_sync_read}
        status = calls[operation](f"{host}:{rpc}", local, there, lengths)
        if status != 0:
            raise SystemExit(f"{operation} ends with {status}")

    ends.initiate(agreement, region, transfer)
engine.unregister_memory(address)

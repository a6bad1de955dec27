"""nixl_ends.py ROLE HOST PORT: writes and reads of NIXL's backend UCX between two processes.

ROLE is target or initiator. Variables of UCX choose the transport.
"""

import os
import sys

import ends
from nixl_cu12._api import nixl_agent, nixl_agent_config


def connect(role, agreement, address):
    """See `ends.main`."""
    agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
    registered = agent.register_memory([(address, ends.SIZE, 0, "")], "DRAM")
    agreement.send((agent.get_agent_metadata(), address))
    metadata, remote = agreement.receive()
    agent.add_remote_agent(metadata)
    handles = {}

    def blocks(start):
        rows = [(start + block * ends.BLOCK, ends.BLOCK, 0) for block in range(ends.BLOCKS)]
        return agent.get_xfer_descs(rows, "DRAM")

    if role == "initiator":
        local, there = blocks(address), blocks(remote)
        for operation in ["write", "read"]:
            handles[operation] = agent.initialize_xfer(operation.upper(), local, there, "target")

    def transfer(operation):
        state = agent.transfer(handles[operation])
        while state == "PROC":
            state = agent.check_xfer_state(handles[operation])
        if state != "DONE":
            raise SystemExit(f"{operation} ends with {state}")

    def close():
        for handle in handles.values():
            agent.release_xfer_handle(handle)
        agent.deregister_memory(registered)

    return transfer, close


if __name__ == "__main__":
    ends.main(connect)
    sys.stdout.flush()
    # With UCX_TLS=tcp, without ferroce, NIXL crashes while the interpreter takes its modules down.
    os._exit(0)

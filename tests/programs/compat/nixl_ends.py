"""nixl_ends.py ROLE HOST PORT: writes and reads of NIXL's backend UCX between two processes.

ROLE is target or initiator. Variables of UCX choose the transport.
"""

import os
import sys

import ends
from nixl_cu12._api import nixl_agent, nixl_agent_config

role, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
region, address = ends.memory()
agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
registered = agent.register_memory([(address, ends.SIZE, 0, "")], "DRAM")
agreement = ends.Agreement(role, host, port)


def blocks(start):
    rows = [(start + block * ends.BLOCK, ends.BLOCK, 0) for block in range(ends.BLOCKS)]
    return agent.get_xfer_descs(rows, "DRAM")


if role == "target":
    agreement.send((agent.get_agent_metadata(), address))
    agent.add_remote_agent(agreement.receive())
    ends.serve(agreement, region)
else:
    metadata, remote = agreement.receive()
    agreement.send(agent.get_agent_metadata())
    agent.add_remote_agent(metadata)
    local, there = blocks(address), blocks(remote)
    handles = {
        operation: agent.initialize_xfer(operation.upper(), local, there, "target")
        for operation in ["write", "read"]
    }

    def transfer(operation):
        state = agent.transfer(handles[operation])
        while state == "PROC":
            state = agent.check_xfer_state(handles[operation])
        if state != "DONE":
            raise SystemExit(f"{operation} ends with {state}")

    ends.initiate(agreement, region, transfer)
    for handle in handles.values():
        agent.release_xfer_handle(handle)
agent.deregister_memory(registered)
sys.stdout.flush()
# With UCX_TLS=tcp, without ferroce, NIXL crashes while the interpreter takes its modules down.
os._exit(0)

"""nixl.py PORT [HOST]: writes and reads of NIXL's backend UCX between GPU memory of two processes, compared on the device.

The process without HOST is the target. The initiator prints `checked` and a line for each operation.
"""

import os
import sys
import time

import torch
from nixl_cu12._api import nixl_agent, nixl_agent_config

sys.path.append(os.path.join(os.path.dirname(__file__), "../programs/compat"))
from ends import Agreement  # noqa: E402

SIZE = 64 << 20
TIMES = 10

role = "initiator" if len(sys.argv) > 2 else "target"
host = sys.argv[2] if role == "initiator" else "127.0.0.1"
torch.cuda.set_device(0)
memory = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")


def pattern(turn):
    """The octets of the memory in round `turn`."""
    return (torch.arange(SIZE, device="cuda") * 2654435761 + turn * 97).remainder(251).to(torch.uint8)


agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
rows = [(memory.data_ptr(), SIZE, 0)]
registered = agent.register_memory([(memory.data_ptr(), SIZE, 0, "")], "VRAM")
agreement = Agreement(role, host, int(sys.argv[1]))
agreement.send((agent.get_agent_metadata(), rows))
metadata, remote = agreement.receive()
agent.add_remote_agent(metadata)


def fill(octets):
    memory.copy_(octets)
    torch.cuda.synchronize()


def move(operation):
    """Seconds of one transfer."""
    local, there = agent.get_xfer_descs(rows, "VRAM"), agent.get_xfer_descs(remote, "VRAM")
    handle = agent.initialize_xfer(operation, local, there, "target")
    begun, state = time.perf_counter(), agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    took = time.perf_counter() - begun
    agent.release_xfer_handle(handle)
    if state != "DONE":
        raise SystemExit(f"{operation} ends with {state}")
    return took


if role == "target":
    while (order := agreement.receive())[0] != "done":
        what, turn = order
        if what == "fill":
            fill(pattern(turn))
            agreement.send(True)
        else:
            agreement.send(torch.equal(memory, pattern(turn)))
else:
    lines = []
    for operation in ("WRITE", "READ"):
        took = []
        for turn in range(TIMES):
            if operation == "WRITE":
                fill(pattern(turn))
            else:
                fill(torch.zeros_like(memory))
                agreement.send(("fill", turn))
                agreement.receive()
            took.append(move(operation))
            if operation == "WRITE":
                agreement.send(("compare", turn))
                same = agreement.receive()
            else:
                same = torch.equal(memory, pattern(turn))
            if not same:
                raise SystemExit(f"{operation} {turn}: other octets arrived")
        lines.append(f"{operation} {SIZE} octets: {SIZE / sorted(took)[TIMES // 2] / 1e9:.3f} GB/s")
    agreement.send(("done", 0))
    print("checked\n" + "\n".join(lines), flush=True)
agent.deregister_memory(registered)
sys.stdout.flush()
os._exit(0)

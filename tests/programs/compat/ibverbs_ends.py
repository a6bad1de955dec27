"""ibverbs_ends.py ROLE HOST PORT: writes and reads of PyPI's package ibverbs between two processes.

ROLE is target or initiator. The last work request of a transfer is signaled.
"""

import ends
import ibverbs as ib


def connect(role, agreement, address):
    """See `ends.main`."""
    context = ib.get_device_list()[0].open()
    domain = context.alloc_pd()
    queue = context.create_cq(2 * ends.BLOCKS)
    access = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ
    memory = domain.reg_mr(address, ends.SIZE, access)
    pair = domain.create_qp(ib.QPInitAttr(send_cq=queue, recv_cq=queue, max_send_wr=ends.BLOCKS))
    own = ib.local_qp_info(pair, context.query_port(1), context.query_gid(1, 0), port=1)
    agreement.send((own.to_bytes(), memory.rkey, address))
    theirs, rkey, remote = agreement.receive()
    ib.connect_rc(pair, ib.QPInfo.from_bytes(theirs), port=1, sgid_index=0, access=access)
    agreement.send("connected")
    agreement.receive()

    def requests(opcode):
        for block in range(ends.BLOCKS):
            place = block * ends.BLOCK
            yield ib.SendWR(
                sg_list=[ib.SGE(memory, ends.BLOCK, offset=place)],
                opcode=opcode,
                send_flags=ib.SendFlags.SIGNALED if block == ends.BLOCKS - 1 else 0,
                remote_addr=remote + place,
                rkey=rkey,
            )

    opcodes = {"write": ib.WROpcode.RDMA_WRITE, "read": ib.WROpcode.RDMA_READ}
    work = {operation: list(requests(opcode)) for operation, opcode in opcodes.items()}

    def transfer(operation):
        for request in work[operation]:
            pair.post_send(request)
        done = []
        while not done:
            done = queue.poll(1)
        done[0].raise_for_status()

    def close():
        for thing in [pair, memory, queue, domain, context]:
            thing.close()

    return transfer, close


if __name__ == "__main__":
    ends.main(connect)

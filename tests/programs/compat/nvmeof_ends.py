"""nvmeof_ends.py HOST PORT: writes and reads of PyPI's nvmeof, an initiator of NVMe over RDMA, to nvme_target."""

import sys
import time

import ends
import nvmeof

with nvmeof.Controller.connect(sys.argv[1], "nqn.2026-11.test:disk", port=int(sys.argv[2])) as controller:
    disk = controller.namespace(1)
    with controller.allocate(ends.SIZE) as buffer:
        for turn in range(2):
            data, first = ends.pattern(turn), turn * ends.SIZE // disk.lba_size
            buffer.write(data)
            disk.write(buffer, slba=first)
            buffer.write(bytes(ends.SIZE))
            disk.read(buffer, slba=first)
            if buffer.read() != data:
                raise SystemExit("the data differ")
        for operation, move in [("write", disk.write), ("read", disk.read)]:
            start, count = time.monotonic(), 0
            while time.monotonic() < start + ends.SECONDS:
                move(buffer, slba=0)
                count += 1
            print(f"{operation} {count * ends.SIZE / (time.monotonic() - start) / 1e6:.1f} MB/s")
print("data ok")

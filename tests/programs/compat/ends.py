"""The common part of the scripts beside this one: two ends of one transfer, and a connection by which they agree.

The target fills or compares its memory when the initiator asks it to. Every octet of a block depends on its place and on the
round, so data that stayed from an earlier round or lie at a wrong place are noticed.
"""

import mmap
import pickle
import socket
import struct
import sys
import time

BLOCK = 64 * 1024
BLOCKS = 64
SIZE = BLOCK * BLOCKS
SECONDS = 2.0


def memory():
    """Memory of SIZE octets, and its address."""
    import ctypes

    region = mmap.mmap(-1, SIZE)
    return region, ctypes.addressof(ctypes.c_char.from_buffer(region))


def pattern(turn):
    """The content of the memory in round `turn`."""
    words = (((turn * 2654435761 + place) & 0xFFFFFFFF) for place in range(SIZE // 4))
    return struct.pack(f"<{SIZE // 4}I", *words)


class Agreement:
    """A TCP connection that carries Python objects."""

    def __init__(self, role, host, port):
        if role == "target":
            with socket.create_server((host, port)) as server:
                self.socket, _ = server.accept()
        else:
            self.socket = socket.create_connection((host, port))

    def send(self, thing):
        data = pickle.dumps(thing)
        self.socket.sendall(struct.pack("<I", len(data)) + data)

    def receive(self):
        (length,) = struct.unpack("<I", self._octets(4))
        return pickle.loads(self._octets(length))

    def _octets(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError("the other end is gone")
            data += part
        return data


def serve(agreement, region):
    """The target's part, until the initiator says that it is done."""
    while True:
        what, turn = agreement.receive()
        if what == "done":
            return
        if what == "fill":
            region[:] = pattern(turn)
            agreement.send("filled")
        else:
            agreement.send(region[:] == pattern(turn))


def initiate(agreement, region, transfer):
    """The initiator's part: `transfer(operation)` moves all blocks; prints a rate for each operation."""
    for turn, operation in enumerate(["write", "read", "write", "read"]):
        if operation == "write":
            region[:] = pattern(turn)
        else:
            region[:] = bytes(SIZE)
            agreement.send(("fill", turn))
            agreement.receive()
        transfer(operation)
        if operation == "write":
            agreement.send(("compare", turn))
            same = agreement.receive()
        else:
            same = region[:] == pattern(turn)
        if not same:
            raise SystemExit(f"{operation}: the data differ")
    for operation in ["write", "read"]:
        start, count = time.monotonic(), 0
        while time.monotonic() < start + SECONDS:
            transfer(operation)
            count += 1
        rate = count * SIZE / (time.monotonic() - start) / 1e6
        print(f"{operation} {rate:.1f} MB/s", flush=True)
    agreement.send(("done", 0))
    print("data ok", flush=True)


def main(connect):
    """Runs one end of a transfer with the command line ROLE HOST PORT.

    `connect(role, agreement, address)` returns a function `transfer(operation)` for the initiator, and a function `close`.
    """
    role, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    region, address = memory()
    agreement = Agreement(role, host, port)
    transfer, close = connect(role, agreement, address)
    if role == "target":
        serve(agreement, region)
    else:
        initiate(agreement, region, transfer)
    close()

"""Errors of an iWARP initiator, one a connection, and the Terminate message of the responder for each.

    terminate.py ADDRESS PORT crc|plain

The responder listens at ADDRESS and PORT, posts a receive of 16 octets for each connection, and accepts all. A line for each error: its name,
and layer, type and code of the Terminate message (RFC 5040 section 4.8).
"""

import socket
import struct
import sys

address, port, crc = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "crc"


def crc32c(octets):
    value = 0xFFFFFFFF
    for octet in octets:
        value ^= octet
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return struct.pack("<I", value ^ 0xFFFFFFFF)


assert crc32c(b"123456789") == struct.pack("<I", 0xE3069283)


def fpdu(ulpdu, length=None, spoil=0):
    """RFC 5044 section 4.1."""
    octets = struct.pack(">H", len(ulpdu) if length is None else length) + ulpdu
    octets += bytes(-len(octets) % 4)
    check = crc32c(octets) if crc else bytes(4)
    return octets + bytes([check[0] ^ spoil]) + check[1:]


def untagged(payload=b"", ddp=0x41, rdmap=0x43, queue=0, msn=1, offset=0):
    return struct.pack(">BBIIII", ddp, rdmap, 0, queue, msn, offset) + payload


def tagged(payload, ddp=0xC1, rdmap=0x40, tag=0xDEADBE00, at=0):
    return struct.pack(">BBIQ", ddp, rdmap, tag, at) + payload


def read_request():
    return struct.pack(">IQIIQ", 0x1000, 0, 8, 0xDEADBE00, 0)


ERRORS = {
    "a WRITE to an unknown tag": fpdu(tagged(b"12345678")),
    "a READ of an unknown tag": fpdu(untagged(read_request(), rdmap=0x41, queue=1)),
    "a SEND longer than the receive": fpdu(untagged(bytes(64))),
    "a SEND whose MSN is not the next": fpdu(untagged(bytes(16), msn=7)),
    "a SEND on queue 5": fpdu(untagged(bytes(16), queue=5)),
    "a SEND that begins at offset 8": fpdu(untagged(bytes(8), offset=8)),
    "an untagged segment of another DDP version": fpdu(untagged(bytes(16), ddp=0x42)),
    "a tagged segment of another DDP version": fpdu(tagged(b"12345678", ddp=0xC2)),
    "another RDMAP version": fpdu(untagged(bytes(16), rdmap=0x83)),
    "opcode 15": fpdu(untagged(bytes(16), rdmap=0x4F)),
    "a length below that of a header": fpdu(untagged(bytes(16)), length=1),
}
if crc:
    ERRORS["a wrong CRC"] = fpdu(untagged(bytes(16)), spoil=1)

# Revision 2 with the enhanced block: one READ in each direction.
REQUEST = b"MPA ID Req Frame" + struct.pack(">BBHHH", 0x50 if crc else 0x10, 2, 4, 1, 1)

for name, octets in ERRORS.items():
    with socket.create_connection((address, port), timeout=20) as stream:
        stream.sendall(REQUEST)
        reply = b""
        while len(reply) < 24:
            piece = stream.recv(24 - len(reply))
            assert piece, f"{name}: no reply"
            reply += piece
        assert reply.startswith(b"MPA ID Rep Frame") and bool(reply[16] & 0x40) == crc, (name, reply)
        stream.sendall(octets)
        answer = b""
        while True:
            piece = stream.recv(4096)
            if not piece:
                break
            answer += piece
    (length,) = struct.unpack_from(">H", answer)
    segment = answer[2 : 2 + length]
    ddp, rdmap, _, queue, msn, offset = struct.unpack_from(">BBIIII", segment)
    assert (ddp, rdmap, queue, msn, offset) == (0x41, 0x47, 2, 1, 0), f"{name}: no Terminate: {answer.hex()}"
    assert answer == fpdu(segment), f"{name}: octets behind the Terminate, or its CRC: {answer.hex()}"
    first, code = segment[18:20]
    print(f"{name}: {first >> 4} {first & 15} {code:02x}")

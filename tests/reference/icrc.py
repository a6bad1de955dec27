#!/usr/bin/env python3
"""Count the opcodes of RoCEv2 packets in pcap files and check each ICRC.

  icrc.py FILE...     one line a file, pcap or one of `ferroce capture`; status 1 when an ICRC is wrong

Standard library only; a second opinion beside tshark, and a plain statement of the ICRC.
"""
import collections
import struct
import sys
import zlib

OPS = ["SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "SEND_LAST_IMM", "SEND_ONLY", "SEND_ONLY_IMM",
       "WRITE_FIRST", "WRITE_MIDDLE", "WRITE_LAST", "WRITE_LAST_IMM", "WRITE_ONLY", "WRITE_ONLY_IMM",
       "READ_REQ", "READ_RESP_FIRST", "READ_RESP_MIDDLE", "READ_RESP_LAST", "READ_RESP_ONLY", "ACK",
       "ATOMIC_ACK", "CMP_SWAP", "FETCH_ADD", "RESV", "SEND_LAST_INV", "SEND_ONLY_INV"]
SVC = {0: "RC", 1: "UC", 3: "UD"}
NAK = {0: "PSN_SEQ", 1: "INV_REQ", 2: "REM_ACCESS", 3: "REM_OP", 4: "INV_RD"}


def opname(op, syndrome):
    name = f"{SVC.get(op >> 5, op >> 5)}_{OPS[op & 31] if op & 31 < len(OPS) else op & 31}"
    if name == "RC_ACK" and syndrome is not None:
        kind = syndrome >> 5 & 3
        if kind == 1:
            return "RC_RNR_NAK"
        if kind == 3:
            return "RC_NAK_" + NAK.get(syndrome & 31, str(syndrome & 31))
    return name


def icrc_ok(ip, v6):
    """ip: bytes from the IP header to the end of the ICRC."""
    h = bytearray(ip[:-4])
    if v6:
        h[0] |= 0x0f                       # traffic class and flow label
        h[1:4] = b"\xff\xff\xff"
        h[7] = 0xff                        # hop limit
        udp = 40
    else:
        h[1] = h[8] = h[10] = h[11] = 0xff  # TOS, TTL, header checksum
        udp = 20
    h[udp + 6] = h[udp + 7] = 0xff         # UDP checksum
    h[udp + 8 + 4] = 0xff                  # BTH resv8a
    return zlib.crc32(bytes(8 * [0xff]) + bytes(h)) == struct.unpack("<I", ip[-4:])[0]


def packets(path):
    data = open(path, "rb").read()
    if data[:4] == b"\x0a\x0d\x0d\x0a":
        yield from blocks(data)
        return
    end = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    off = 24
    while off + 16 <= len(data):
        incl, = struct.unpack(end + "I", data[off + 8:off + 12])
        yield data[off + 16:off + 16 + incl]
        off += 16 + incl


def blocks(data):
    """The packets of a pcapng file of ferroce, each behind an Ethernet header."""
    off = 0
    while off + 28 <= len(data):
        kind, size, link, _, _, incl = struct.unpack("<IIIIII", data[off:off + 24])
        packet = data[off + 28:off + 28 + incl]
        if kind == 6:
            ethertype = b"\x86\xdd" if packet[:1] >= b"\x60" else b"\x08\x00"
            yield packet if link == 1 else bytes(12) + ethertype + packet
        off += size


def main():
    bad_files = 0
    for path in sys.argv[1:]:
        ops, bad, other, n = collections.Counter(), 0, 0, 0
        for p in packets(path):
            n += 1
            off, et = 14, struct.unpack(">H", p[12:14])[0]
            while et in (0x8100, 0x88a8):
                et, off = struct.unpack(">H", p[off + 2:off + 4])[0], off + 4
            v6 = et == 0x86dd
            ip = p[off:]
            if et not in (0x800, 0x86dd):
                other += 1
                continue
            if v6:
                proto, ln, udp = ip[6], 40 + struct.unpack(">H", ip[4:6])[0], 40
            else:
                proto, ln, udp = ip[9], struct.unpack(">H", ip[2:4])[0], 4 * (ip[0] & 15)
            ip = ip[:ln]
            if proto != 17 or struct.unpack(">H", ip[udp + 2:udp + 4])[0] != 4791:
                other += 1
                continue
            bth = ip[udp + 8:]
            ops[opname(bth[0], bth[12] if bth[0] == 0x11 else None)] += 1
            if not icrc_ok(ip, v6):
                bad += 1
        bad_files += bad > 0
        counts = " ".join(f"{k}={v}" for k, v in sorted(ops.items()))
        print(f"{path.rsplit('/', 1)[-1]}: packets={n} other={other} icrc_bad={bad} {counts}")
    return bad_files > 0


if __name__ == "__main__":
    sys.exit(main())

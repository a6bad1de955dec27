#!/usr/bin/env python3
"""Parse iWARP (MPA, DDP, RDMAP over TCP) in pcap files and check what can be checked.

  iwarp.py [-v] [FILE.pcap...]     one line a file; status 1 when something is wrong

Without files: every pcap beside this script. -v prints each MPA frame and FPDU.
Both directions of every TCP connection are put together again by sequence number.
Checked: MPA frames, FPDU lengths, CRC32c where either MPA frame asked for it (else
whether the field is zero), DDP and RDMAP versions, queue numbers, MSN and MO order, tagged offsets
that continue, and that each read response answers the oldest read request of the other side.
Standard library only.
"""
import collections
import glob
import os
import struct
import sys

OPS = ["WRITE", "READ_REQ", "READ_RESP", "SEND", "SEND_INV", "SEND_SE", "SEND_SE_INV", "TERMINATE",
       "IMM", "IMM_SE", "ATOMIC_REQ", "ATOMIC_RESP"]
QN = {1: 1, 3: 0, 4: 0, 5: 0, 6: 0, 7: 2, 8: 0, 9: 0, 10: 1, 11: 3}
TAGGED = {0, 2}

TABLE = []
for i in range(256):
    c = i
    for _ in range(8):
        c = c >> 1 ^ (0x82f63b78 if c & 1 else 0)
    TABLE.append(c)


def crc32c(data):
    c = 0xffffffff
    for b in data:
        c = c >> 8 ^ TABLE[(c ^ b) & 255]
    return c ^ 0xffffffff


assert crc32c(b"123456789") == 0xe3069283
assert struct.pack("<I", crc32c(bytes(32))) == bytes.fromhex("aa36918a")   # RFC 3720 B.4


def frames(path):
    data = open(path, "rb").read()
    end = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    off = 24
    while off + 16 <= len(data):
        incl, orig = struct.unpack(end + "II", data[off + 8:off + 16])
        yield data[off + 16:off + 16 + incl], incl < orig
        off += 16 + incl


class Flow:
    """One direction: the initial sequence number, and the octets received by offset."""
    def __init__(self):
        self.isn, self.parts, self.fin, self.rst, self.syn = None, {}, False, False, False

    def stream(self):
        out = bytearray()
        for off in sorted(self.parts):
            d = self.parts[off]
            if off > len(out):
                return bytes(out), True          # a hole
            if off + len(d) > len(out):
                out += d[len(out) - off:]
        return bytes(out), False


def tcp(path):
    """Connections as [(client, server, Flow, Flow)], in order of their SYN."""
    flows, order, cut = {}, [], 0
    for p, short in frames(path):
        cut += short
        et = struct.unpack(">H", p[12:14])[0]
        ip = p[14:]
        if et == 0x800:
            hl, proto = 4 * (ip[0] & 15), ip[9]
            ip, src, dst = ip[:struct.unpack(">H", ip[2:4])[0]], ip[12:16], ip[16:20]
        elif et == 0x86dd:
            hl, proto = 40, ip[6]
            ip, src, dst = ip[:40 + struct.unpack(">H", ip[4:6])[0]], ip[8:24], ip[24:40]
        else:
            continue
        if proto != 6:
            continue
        t = ip[hl:]
        sp, dp, seq = struct.unpack(">HHI", t[:8])
        flags, pay = t[13], t[4 * (t[12] >> 4):]
        key = (src, sp, dst, dp)
        if flags & 0x12 == 2:
            flows[key], flows[(dst, dp, src, sp)] = Flow(), Flow()
            order.append(key)
        f = flows.get(key)
        if f is None:
            continue
        if flags & 2:
            f.isn, f.syn = seq + 1 & 0xffffffff, True
        f.fin |= bool(flags & 1)
        f.rst |= bool(flags & 4)
        if pay and f.isn is not None:
            off = seq - f.isn & 0xffffffff
            if len(pay) > len(f.parts.get(off, b"")):
                f.parts[off] = pay
    return [(k, flows[k], flows[(k[2], k[3], k[0], k[1])]) for k in order], cut


class Bad(Exception):
    pass


def mpa(data, key):
    """(flags+revision, private data, ird word, ord word, length used)"""
    if data[:16] != key or len(data) < 20:
        raise Bad("no " + key.decode())
    fl, rev, pd = struct.unpack(">BBH", data[16:20])
    if pd > 512 or len(data) < 20 + pd:
        raise Bad("private data length")
    ird = order = None
    priv = data[20:20 + pd]
    if rev >= 2 and fl & 0x10:
        ird, order = struct.unpack(">HH", priv[:4])
        priv = priv[4:]
    return fl, rev, priv, ird, order, 20 + pd


class Side:
    def __init__(self, name):
        self.name, self.msn, self.mo = name, {0: 1, 1: 1, 2: 1, 3: 1}, collections.Counter()
        self.to, self.cur = None, {}
        self.reads = collections.deque()          # read requests sent, unanswered


def fpdus(data, side, peer, crc_on, c, verbose):
    off = 0
    while off < len(data):
        if len(data) - off < 6:
            c["rest"] += len(data) - off
            break
        ulen = struct.unpack(">H", data[off:off + 2])[0]
        pad = -(2 + ulen) % 4
        end = off + 2 + ulen + pad + 4
        if end > len(data):
            c["rest"] += len(data) - off
            break
        f, off = data[off:end], end
        if verbose:
            print("  %s %s" % (side.name, f.hex() if len(f) < 100 else f[:48].hex() + "..(%d)" % len(f)))
        if any(f[2 + ulen:2 + ulen + pad]):
            c["pad_nonzero"] += 1                # seen from siw: stale octets; legal to ignore
        got, want = f[-4:], struct.pack("<I", crc32c(f[:-4]))
        if crc_on:
            c["crc_ok" if got == want else "crc_bad"] += 1
        else:
            c["crc_zero" if got == bytes(4) else "crc_nonzero"] += 1
        ddp, rd = f[2], f[3]
        op, last, tagged = rd & 15, ddp & 0x40, ddp & 0x80
        if ddp & 3 != 1 or rd >> 6 != 1:
            c["version_bad"] += 1
        if bool(tagged) != (op in TAGGED):
            c["tagged_bad"] += 1
        c[OPS[op] if op < len(OPS) else "OP%d" % op] += 1
        if not last:
            c["not_last"] += 1
        if tagged:
            stag, to = struct.unpack(">IQ", f[4:16])
            n = ulen - 14
            if op == 2 and "resp" not in peer.cur:
                if not peer.reads:
                    c["resp_bad"] += 1
                    continue
                peer.cur["resp"] = list(peer.reads.popleft())
            if op == 2:
                r = peer.cur["resp"]              # sink stag, next offset, octets left
                if r[0] != stag or r[1] != to or n > r[2] or bool(last) != (n == r[2]):
                    c["resp_bad"] += 1
                r[1], r[2] = r[1] + n, r[2] - n
                if last:
                    del peer.cur["resp"]
            else:
                if side.to and side.to != (stag, to):
                    c["to_bad"] += 1
                side.to = None if last else (stag, to + n)
        else:
            qn, msn, mo = struct.unpack(">III", f[8:20])
            n = ulen - 18
            if qn != QN.get(op):
                c["qn_bad"] += 1
            if msn != side.msn.get(qn, msn):
                c["msn_bad"] += 1
            if mo != side.mo[qn]:
                c["mo_bad"] += 1
            side.mo[qn] = 0 if last else mo + n
            if last and qn in side.msn:
                side.msn[qn] = side.msn[qn] + 1 & 0xffffffff
            if op == 1:
                stag, to, size = struct.unpack(">IQI", f[20:36])
                side.reads.append((stag, to, size))
                if n != 28:
                    c["len_bad"] += 1
            elif op == 7:
                print("  TERMINATE", f[20:24].hex())
        c["payload"] += ulen - (14 if tagged else 46 if op == 1 else 18)
        c["max_fpdu"] = max(c["max_fpdu"], len(f))


# FPDUs of these captures: what siw sent without its CRC field, and the CRC field as it would stand with CRC on.
VECTORS = [
    ("rping.pcap", "00224143000000000000000000000001000000000000555a1751e450e3812f0000000040", "4a45714e"),
    ("rping.pcap", "002241430000000000000000000000010000000000000000000000000000000000000000", "84609a12"),
    ("rping.pcap", "002e414100000000000000010000000100000000d6a1c000000055bc71f40130"
                   "00000040e3812f000000555a1751e450", "41ab8ca1"),
    ("rping.pcap", "004ec140c0d27e000000555a1751b130" + bytes(b"rdma-ping-0: ").hex()
     + bytes(range(0x41, 0x73)).hex() + "00", "542137cc"),
    ("read_bw.pcap", "001441430000000000000000000000040000000033000040", "bfe0ac94"),
]
FRAMES = [("rping.pcap", b"MPA ID Req Frame".hex() + "1002000400010001"),
          ("rping.pcap", b"MPA ID Rep Frame".hex() + "1002000400010001")]


def vectors(here):
    """The vectors stand in the captures, CRC field zero, and have the CRC written beside them."""
    data = {f: open(os.path.join(here, f), "rb").read() for f in {v[0] for v in VECTORS}}
    bad = [h for f, h in FRAMES if bytes.fromhex(h) not in data[f]]
    for f, h, crc in VECTORS:
        b = bytes.fromhex(h)
        if b + bytes(4) not in data[f] or struct.pack("<I", crc32c(b)).hex() != crc:
            bad.append(h)
    # Not captured: the zero-length write that siw would send as ready-to-receive frame.
    if struct.pack("<I", crc32c(bytes.fromhex("000ec14000000001" + "00" * 8))).hex() != "ebd34c5f":
        bad.append("rtr")
    print("vectors:", "BAD " + " ".join(bad) if bad else "ok %d FPDUs, %d MPA frames" % (len(VECTORS), len(FRAMES)))
    return bad


def main():
    verbose = "-v" in sys.argv[1:]
    paths = [a for a in sys.argv[1:] if a != "-v"]
    wrong = 0
    if not paths:
        here = os.path.dirname(os.path.abspath(__file__))
        paths = sorted(glob.glob(os.path.join(here, "*.pcap")))
        wrong = len(vectors(here))
    for path in paths:
        c, notes = collections.Counter(), []
        conns, cut = tcp(path)
        c["cut"] = cut
        for key, a, b in conns:
            sa, ha = a.stream()
            sb, hb = b.stream()
            c["holes"] += ha + hb
            c["conns"] += 1
            if not sa and not sb:
                notes.append("rst" if b.rst else "no data")
                continue
            try:
                q = mpa(sa, b"MPA ID Req Frame")
                r = mpa(sb, b"MPA ID Rep Frame")
            except Bad as e:
                notes.append(str(e))
                c["mpa_bad"] += 1
                continue
            note = "req[fl=%02x rev=%d pd=%d ird=%s ord=%s] rep[fl=%02x rev=%d pd=%d ird=%s ord=%s]" % (
                q[0], q[1], len(q[2]), q[3], q[4], r[0], r[1], len(r[2]), r[3], r[4])
            if note not in notes:
                notes.append(note)
            if verbose:
                print("  Q", sa[:q[5]].hex(), "\n  R", sb[:r[5]].hex())
            crc_on = bool((q[0] | r[0]) & 0x40)
            c["crc_on_conns"] += crc_on
            # First pass: the read requests of each side, so that every response then finds its request.
            asked_i, asked_j = Side("I"), Side("R")
            for data, side in ((sa[q[5]:], asked_i), (sb[r[5]:], asked_j)):
                fpdus(data, side, Side("-"), crc_on, collections.Counter(), False)
            ra, rb = collections.Counter(), collections.Counter()
            fpdus(sa[q[5]:], Side("I"), asked_j, crc_on, ra, verbose)
            fpdus(sb[r[5]:], Side("R"), asked_i, crc_on, rb, verbose)
            c["unanswered"] += len(asked_i.reads) + len(asked_j.reads)
            big = max(ra.pop("max_fpdu", 0), rb.pop("max_fpdu", 0), c.pop("max_fpdu", 0))
            c += ra
            c += rb
            c["max_fpdu"] = big
            end = "end[I%s%s R%s%s]" % (" fin" * a.fin, " rst" * a.rst, " fin" * b.fin, " rst" * b.rst)
            if end not in notes:
                notes.append(end)
        bad = sum(v for k, v in c.items() if k.endswith("_bad") or k in ("holes", "cut", "rest", "crc_nonzero"))
        wrong += bad > 0
        print("%s: %s %s %s" % (os.path.basename(path), "BAD" if bad else "ok",
                                " ".join("%s=%d" % kv for kv in sorted(c.items()) if kv[1]), " ".join(notes)))
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())

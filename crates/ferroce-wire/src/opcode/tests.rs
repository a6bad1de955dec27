extern crate std;

use std::vec::Vec;

use super::*;

/// IBTA table 38, annexes A14 and A19, by hand: operation and opcodes on RC, UC, RD, UD, XRC; octets of
/// headers after BTH on RC.
#[rustfmt::skip]
const EXPECTED: [(&str, [Option<u8>; 5], usize); 25] = {
    const fn s(value: u8) -> Option<u8> { Some(value) }
    const N: Option<u8> = None;
    [
        ("SendFirst",          [s(0x00), s(0x20), s(0x40), N,       s(0xa0)], 0),
        ("SendMiddle",         [s(0x01), s(0x21), s(0x41), N,       s(0xa1)], 0),
        ("SendLast",           [s(0x02), s(0x22), s(0x42), N,       s(0xa2)], 0),
        ("SendLastImm",        [s(0x03), s(0x23), s(0x43), N,       s(0xa3)], 4),
        ("SendOnly",           [s(0x04), s(0x24), s(0x44), s(0x64), s(0xa4)], 0),
        ("SendOnlyImm",        [s(0x05), s(0x25), s(0x45), s(0x65), s(0xa5)], 4),
        ("WriteFirst",         [s(0x06), s(0x26), s(0x46), N,       s(0xa6)], 16),
        ("WriteMiddle",        [s(0x07), s(0x27), s(0x47), N,       s(0xa7)], 0),
        ("WriteLast",          [s(0x08), s(0x28), s(0x48), N,       s(0xa8)], 0),
        ("WriteLastImm",       [s(0x09), s(0x29), s(0x49), N,       s(0xa9)], 4),
        ("WriteOnly",          [s(0x0a), s(0x2a), s(0x4a), N,       s(0xaa)], 16),
        ("WriteOnlyImm",       [s(0x0b), s(0x2b), s(0x4b), N,       s(0xab)], 20),
        ("ReadRequest",        [s(0x0c), N,       s(0x4c), N,       s(0xac)], 16),
        ("ReadFirst",          [s(0x0d), N,       s(0x4d), N,       s(0xad)], 4),
        ("ReadMiddle",         [s(0x0e), N,       s(0x4e), N,       s(0xae)], 0),
        ("ReadLast",           [s(0x0f), N,       s(0x4f), N,       s(0xaf)], 4),
        ("ReadOnly",           [s(0x10), N,       s(0x50), N,       s(0xb0)], 4),
        ("Acknowledge",        [s(0x11), N,       s(0x51), N,       s(0xb1)], 4),
        ("AtomicAcknowledge",  [s(0x12), N,       s(0x52), N,       s(0xb2)], 12),
        ("CompareSwap",        [s(0x13), N,       s(0x53), N,       s(0xb3)], 28),
        ("FetchAdd",           [s(0x14), N,       s(0x54), N,       s(0xb4)], 28),
        ("SendLastInvalidate", [s(0x16), N,       N,       N,       s(0xb6)], 4),
        ("SendOnlyInvalidate", [s(0x17), N,       N,       N,       s(0xb7)], 4),
        ("Flush",              [s(0x1c), N,       s(0x5c), N,       s(0xbc)], 20),
        ("AtomicWrite",        [s(0x1d), N,       s(0x5d), N,       s(0xbd)], 16),
    ]
};

const SERVICES: [Service; 5] = [Service::Rc, Service::Uc, Service::Rd, Service::Ud, Service::Xrc];

#[test]
fn table_is_the_specification_s() {
    let mut listed = Vec::new();
    for ((name, opcodes, headers), &(operation, ..)) in EXPECTED.iter().zip(&OPERATIONS) {
        assert_eq!(std::format!("{operation:?}"), *name);
        for (opcode, service) in opcodes.iter().zip(SERVICES) {
            assert_eq!(WireOpcode::of(service, operation), opcode.map(WireOpcode), "{service:?} {name}");
            let Some(opcode) = *opcode else { continue };
            listed.push(opcode);
            let info = WireOpcode(opcode).info().unwrap();
            assert_eq!((info.service, info.operation), (service, Some(operation)));
            let request = !(0x0d..=0x12).contains(&(opcode & 0x1f));
            let extra = match service {
                Service::Ud => 8,
                Service::Xrc if request => 4,
                Service::Rd if request => 12,
                Service::Rd => 4,
                _ => 0,
            };
            assert_eq!(info.header_len, 12 + headers + extra, "{service:?} {name}");
        }
    }
    for opcode in 0..=255 {
        let known = WireOpcode(opcode).info().is_some();
        let cnp = (0x80..0xa0).contains(&opcode);
        assert_eq!(known, listed.contains(&opcode) || matches!(opcode, 0x55 | 0xc1) || cnp, "{opcode:#x}");
    }
}

/// IBTA C9-92 to C9-94: the rule goes with the opcode.
#[test]
fn each_opcode_has_its_payload_rule() {
    let rule = RcOpcode::payload_rule;
    for (opcode, allowed) in [
        (RcOpcode::SendFirst, [false, false, true, false]),
        (RcOpcode::WriteMiddle, [false, false, true, false]),
        (RcOpcode::ReadMiddle, [false, false, true, false]),
        (RcOpcode::SendLast, [false, true, true, false]),
        (RcOpcode::WriteLastImm, [false, true, true, false]),
        (RcOpcode::SendOnly, [true, true, true, false]),
        (RcOpcode::ReadOnly, [true, true, true, false]),
        (RcOpcode::Acknowledge, [true, false, false, false]),
    ] {
        for (len, want) in [0, 1, 1024, 1025].into_iter().zip(allowed) {
            assert_eq!(rule(opcode).allows(len, 1024), want, "{opcode:?} {len}");
        }
    }
    let atomic_write = rule(RcOpcode::AtomicWrite);
    assert!(atomic_write.allows(8, 256) && !atomic_write.allows(7, 256) && !atomic_write.allows(0, 256));
}

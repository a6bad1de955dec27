extern crate std;

use core::time::Duration;
use std::string::ToString;
use std::vec::Vec;
use std::{assert_eq, format, vec};

use proptest::prelude::*;

use super::*;
use crate::mad::BODY_LEN;

/// A field: its name, what flips it, where it begins in the body and which bits it has.
struct Field {
    name: &'static str,
    flip: fn(&mut Message),
    at: usize,
    bits: &'static [u8],
}

/// Attribute id, reserved bits by octet, fields.
type Layout = (u16, Vec<(usize, u8)>, Vec<Field>);

macro_rules! fields {
    ($variant:ident: $($name:literal $at:literal $bits:expr, |$message:ident| $flip:expr;)*) => {
        vec![$(Field {
            name: $name,
            flip: |message| {
                let Message::$variant($message) = message else { panic!("another message") };
                $flip;
            },
            at: $at,
            bits: &$bits,
        }),*]
    };
}

fn flip_all<const N: usize>(data: &mut PrivateData<N>) {
    data.0 = data.0.map(|octet| !octet);
}

fn flip_time(time: &mut CmTime) {
    *time = CmTime::saturating(31 - time.code());
}

fn flip_qpn(qpn: &mut crate::Qpn) {
    *qpn = crate::Qpn::new(!qpn.value());
}

/// Each message: attribute id, octets of the body that are reserved, and its fields.
fn messages() -> Vec<Layout> {
    let pad = |from: usize, to: usize| (from..to).map(|at| (at, 0xff)).collect::<Vec<_>>();
    let mut req_reserved = pad(24, 28);
    req_reserved.extend([
        (4, 0xff),
        (51, 7),
        (90, 0x0f),
        (91, 0xc0),
        (94, 7),
        (95, 7),
        (134, 0x0f),
        (135, 0xc0),
        (138, 7),
        (139, 3),
    ]);
    let mut lap_reserved = pad(8, 12);
    lap_reserved.extend(pad(16, 20));
    lap_reserved.extend([(15, 7), (58, 0x0f), (61, 0xc0), (62, 7), (63, 7)]);
    vec![
        (
            0x10,
            req_reserved,
            fields! { Req:
                "local_id" 0 [0xff; 4], |m| m.local_id.0 = !m.local_id.0;
                "vendor" 5 [0xff; 3], |m| m.ece.vendor_id ^= 0xff_ffff;
                "service_id" 8 [0xff; 8], |m| m.service_id.0 = !m.service_id.0;
                "ca_guid" 16 [0xff; 8], |m| m.ca_guid = !m.ca_guid;
                "qkey" 28 [0xff; 4], |m| m.qkey = crate::Qkey::new(!m.qkey.value());
                "qpn" 32 [0xff; 3], |m| flip_qpn(&mut m.qpn);
                "responder_resources" 35 [0xff], |m| m.responder_resources ^= 0xff;
                "local_eecn" 36 [0xff; 3], |m| flip_qpn(&mut m.local_eecn);
                "initiator_depth" 39 [0xff], |m| m.initiator_depth ^= 0xff;
                "remote_eecn" 40 [0xff; 3], |m| flip_qpn(&mut m.remote_eecn);
                "remote_timeout" 43 [0xf8], |m| flip_time(&mut m.remote_timeout);
                // The base is RC, 0.
                "transport" 43 [0x04], |m| m.transport = Transport::Rd;
                "flow_control" 43 [0x01], |m| m.flow_control = !m.flow_control;
                "starting_psn" 44 [0xff; 3], |m| m.starting_psn = crate::Psn::new(!m.starting_psn.value());
                "local_timeout" 47 [0xf8], |m| flip_time(&mut m.local_timeout);
                "retry_count" 47 [0x07], |m| m.retry_count ^= 7;
                "pkey" 48 [0xff; 2], |m| m.pkey = crate::Pkey::new(!m.pkey.value());
                "path_mtu" 50 [0xf0], |m| m.path_mtu ^= 15;
                "rdc_exists" 50 [0x08], |m| m.rdc_exists = !m.rdc_exists;
                "rnr_retry_count" 50 [0x07], |m| m.rnr_retry_count ^= 7;
                "max_cm_retries" 51 [0xf0], |m| m.max_cm_retries ^= 15;
                "srq" 51 [0x08], |m| m.srq = !m.srq;
                "local_lid" 52 [0xff; 2], |m| m.primary.local_lid ^= 0xffff;
                "remote_lid" 54 [0xff; 2], |m| m.primary.remote_lid ^= 0xffff;
                "local_gid" 56 [0xff; 16], |m| m.primary.local_gid.0 = m.primary.local_gid.0.map(|o| !o);
                "remote_gid" 72 [0xff; 16], |m| m.primary.remote_gid.0 = m.primary.remote_gid.0.map(|o| !o);
                "flow_label" 88 [0xff, 0xff, 0xf0], |m| m.primary.flow_label ^= 0xf_ffff;
                "rate" 91 [0x3f], |m| m.primary.rate ^= 0x3f;
                "traffic_class" 92 [0xff], |m| m.primary.traffic_class ^= 0xff;
                "hop_limit" 93 [0xff], |m| m.primary.hop_limit ^= 0xff;
                "sl" 94 [0xf0], |m| m.primary.sl ^= 15;
                "subnet_local" 94 [0x08], |m| m.primary.subnet_local = !m.primary.subnet_local;
                "ack_timeout" 95 [0xf8], |m| flip_time(&mut m.primary.ack_timeout);
                "alternate local_lid" 96 [0xff; 2], |m| m.alternate.local_lid ^= 0xffff;
                "alternate remote_lid" 98 [0xff; 2], |m| m.alternate.remote_lid ^= 0xffff;
                "alternate local_gid" 100 [0xff; 16],
                    |m| m.alternate.local_gid.0 = m.alternate.local_gid.0.map(|o| !o);
                "alternate remote_gid" 116 [0xff; 16],
                    |m| m.alternate.remote_gid.0 = m.alternate.remote_gid.0.map(|o| !o);
                "alternate flow_label" 132 [0xff, 0xff, 0xf0], |m| m.alternate.flow_label ^= 0xf_ffff;
                "alternate rate" 135 [0x3f], |m| m.alternate.rate ^= 0x3f;
                "alternate traffic_class" 136 [0xff], |m| m.alternate.traffic_class ^= 0xff;
                "alternate hop_limit" 137 [0xff], |m| m.alternate.hop_limit ^= 0xff;
                "alternate sl" 138 [0xf0], |m| m.alternate.sl ^= 15;
                "alternate subnet_local" 138 [0x08], |m| m.alternate.subnet_local = !m.alternate.subnet_local;
                "alternate ack_timeout" 139 [0xf8], |m| flip_time(&mut m.alternate.ack_timeout);
                "sap_supported" 139 [0x04], |m| m.sap_supported = !m.sap_supported;
                "private" 140 [0xff; 92], |m| flip_all(&mut m.private);
            },
        ),
        (
            0x11,
            vec![(8, 0x3f), (9, 7)],
            fields! { Mra:
                "local_id" 0 [0xff; 4], |m| m.local_id.0 = !m.local_id.0;
                "remote_id" 4 [0xff; 4], |m| m.remote_id.0 = !m.remote_id.0;
                "about" 8 [0xc0], |m| m.about.0 ^= 3;
                "service_timeout" 9 [0xf8], |m| flip_time(&mut m.service_timeout);
                "private" 10 [0xff; 222], |m| flip_all(&mut m.private);
            },
        ),
        (
            0x12,
            vec![(8, 0x3f), (9, 1)],
            fields! { Rej:
                "local_id" 0 [0xff; 4], |m| m.local_id.0 = !m.local_id.0;
                "remote_id" 4 [0xff; 4], |m| m.remote_id.0 = !m.remote_id.0;
                "about" 8 [0xc0], |m| m.about.0 ^= 3;
                "info_len" 9 [0xfe], |m| m.info.len ^= 0x7f;
                "reason" 10 [0xff; 2], |m| m.reason.0 ^= 0xffff;
                "info" 12 [0xff; 72], |m| flip_all(&mut m.info.bytes);
                "private" 84 [0xff; 148], |m| flip_all(&mut m.private);
            },
        ),
        (
            0x13,
            vec![(27, 0x0f)],
            fields! { Rep:
                "local_id" 0 [0xff; 4], |m| m.local_id.0 = !m.local_id.0;
                "remote_id" 4 [0xff; 4], |m| m.remote_id.0 = !m.remote_id.0;
                "qkey" 8 [0xff; 4], |m| m.qkey = crate::Qkey::new(!m.qkey.value());
                "qpn" 12 [0xff; 3], |m| flip_qpn(&mut m.qpn);
                "vendor high" 15 [0xff], |m| m.ece.vendor_id ^= 0xff_0000;
                "eecn" 16 [0xff; 3], |m| flip_qpn(&mut m.eecn);
                "vendor mid" 19 [0xff], |m| m.ece.vendor_id ^= 0xff00;
                "starting_psn" 20 [0xff; 3], |m| m.starting_psn = crate::Psn::new(!m.starting_psn.value());
                "vendor low" 23 [0xff], |m| m.ece.vendor_id ^= 0xff;
                "responder_resources" 24 [0xff], |m| m.responder_resources ^= 0xff;
                "initiator_depth" 25 [0xff], |m| m.initiator_depth ^= 0xff;
                "target_ack_delay" 26 [0xf8], |m| flip_time(&mut m.target_ack_delay);
                "failover" 26 [0x06], |m| m.failover ^= 3;
                "flow_control" 26 [0x01], |m| m.flow_control = !m.flow_control;
                "rnr_retry_count" 27 [0xe0], |m| m.rnr_retry_count ^= 7;
                "srq" 27 [0x10], |m| m.srq = !m.srq;
                "ca_guid" 28 [0xff; 8], |m| m.ca_guid = !m.ca_guid;
                "private" 36 [0xff; 196], |m| flip_all(&mut m.private);
            },
        ),
        (
            0x14,
            vec![],
            fields! { Rtu:
                "local_id" 0 [0xff; 4], |m| m.local_id.0 = !m.local_id.0;
                "remote_id" 4 [0xff; 4], |m| m.remote_id.0 = !m.remote_id.0;
                "private" 8 [0xff; 224], |m| flip_all(&mut m.private);
            },
        ),
        (
            0x15,
            vec![(11, 0xff)],
            fields! { Dreq:
                "local_id" 0 [0xff; 4], |m| m.local_id.0 = !m.local_id.0;
                "remote_id" 4 [0xff; 4], |m| m.remote_id.0 = !m.remote_id.0;
                "remote_qpn" 8 [0xff; 3], |m| flip_qpn(&mut m.remote_qpn);
                "private" 12 [0xff; 220], |m| flip_all(&mut m.private);
            },
        ),
        (
            0x16,
            vec![],
            fields! { Drep:
                "local_id" 0 [0xff; 4], |m| m.local_id.0 = !m.local_id.0;
                "remote_id" 4 [0xff; 4], |m| m.remote_id.0 = !m.remote_id.0;
                "private" 8 [0xff; 224], |m| flip_all(&mut m.private);
            },
        ),
        (
            0x17,
            pad(6, 8),
            fields! { SidrReq:
                "request_id" 0 [0xff; 4], |m| m.request_id.0 = !m.request_id.0;
                "pkey" 4 [0xff; 2], |m| m.pkey = crate::Pkey::new(!m.pkey.value());
                "service_id" 8 [0xff; 8], |m| m.service_id.0 = !m.service_id.0;
                "private" 16 [0xff; 216], |m| flip_all(&mut m.private);
            },
        ),
        (
            0x18,
            vec![],
            fields! { SidrRep:
                "request_id" 0 [0xff; 4], |m| m.request_id.0 = !m.request_id.0;
                "status" 4 [0xff], |m| m.status.0 ^= 0xff;
                "info_len" 5 [0xff], |m| m.info.len ^= 0xff;
                "vendor high, mid" 6 [0xff; 2], |m| m.ece.vendor_id ^= 0xff_ff00;
                "qpn" 8 [0xff; 3], |m| flip_qpn(&mut m.qpn);
                "vendor low" 11 [0xff], |m| m.ece.vendor_id ^= 0xff;
                "service_id" 12 [0xff; 8], |m| m.service_id.0 = !m.service_id.0;
                "qkey" 20 [0xff; 4], |m| m.qkey = crate::Qkey::new(!m.qkey.value());
                "info" 24 [0xff; 72], |m| flip_all(&mut m.info.bytes);
                "private" 96 [0xff; 136], |m| flip_all(&mut m.private);
            },
        ),
        (
            0x19,
            lap_reserved,
            fields! { Lap:
                "local_id" 0 [0xff; 4], |m| m.local_id.0 = !m.local_id.0;
                "remote_id" 4 [0xff; 4], |m| m.remote_id.0 = !m.remote_id.0;
                "remote_qpn" 12 [0xff; 3], |m| flip_qpn(&mut m.remote_qpn);
                "remote_timeout" 15 [0xf8], |m| flip_time(&mut m.remote_timeout);
                "local_lid" 20 [0xff; 2], |m| m.path.local_lid ^= 0xffff;
                "remote_lid" 22 [0xff; 2], |m| m.path.remote_lid ^= 0xffff;
                "local_gid" 24 [0xff; 16], |m| m.path.local_gid.0 = m.path.local_gid.0.map(|o| !o);
                "remote_gid" 40 [0xff; 16], |m| m.path.remote_gid.0 = m.path.remote_gid.0.map(|o| !o);
                "flow_label" 56 [0xff, 0xff, 0xf0], |m| m.path.flow_label ^= 0xf_ffff;
                "traffic_class" 59 [0xff], |m| m.path.traffic_class ^= 0xff;
                "hop_limit" 60 [0xff], |m| m.path.hop_limit ^= 0xff;
                "rate" 61 [0x3f], |m| m.path.rate ^= 0x3f;
                "sl" 62 [0xf0], |m| m.path.sl ^= 15;
                "subnet_local" 62 [0x08], |m| m.path.subnet_local = !m.path.subnet_local;
                "ack_timeout" 63 [0xf8], |m| flip_time(&mut m.path.ack_timeout);
                "private" 64 [0xff; 168], |m| flip_all(&mut m.private);
            },
        ),
        (
            0x1a,
            pad(10, 12),
            fields! { Apr:
                "local_id" 0 [0xff; 4], |m| m.local_id.0 = !m.local_id.0;
                "remote_id" 4 [0xff; 4], |m| m.remote_id.0 = !m.remote_id.0;
                "info_len" 8 [0xff], |m| m.info.len ^= 0xff;
                "status" 9 [0xff], |m| m.status.0 ^= 0xff;
                "info" 12 [0xff; 72], |m| flip_all(&mut m.info.bytes);
                "private" 84 [0xff; 148], |m| flip_all(&mut m.private);
            },
        ),
    ]
}

fn raw(attribute: u16, modifier: u32, body: &[u8; BODY_LEN]) -> [u8; MAD_LEN] {
    let header = MadHeader {
        class: MgmtClass::COMM_MGT,
        class_version: 2,
        method: MadMethod::SEND,
        status: 0,
        class_specific: 0,
        transaction_id: 0x0123_4567_89ab_cdef,
        attribute,
        attribute_modifier: modifier,
    };
    header.emit(body)
}

/// On zeros, so that the transport is RC.
#[test]
fn each_field_changes_its_own_bits() {
    for (attribute, _, fields) in messages() {
        let before = raw(attribute, 0, &[0; BODY_LEN]);
        for field in fields {
            let mut mad = Mad::parse(&before).unwrap();
            (field.flip)(&mut mad.message);
            let mut want = before;
            for (octet, bits) in want[24 + field.at..].iter_mut().zip(field.bits) {
                *octet ^= bits;
            }
            assert_eq!(mad.emit(), want, "{} {}", mad.message.name(), field.name);
            assert_eq!(Mad::parse(&want), Ok(mad), "{} {}", mad.message.name(), field.name);
        }
    }
}

/// Every bit is a field's or reserved: none is forgotten, none has two.
#[test]
fn fields_cover_each_message() {
    for (attribute, reserved, fields) in messages() {
        let mut left = [0xff_u8; BODY_LEN];
        let fields = fields.iter().flat_map(|f| f.bits.iter().enumerate().map(|(k, bits)| (f.at + k, *bits)));
        for (at, bits) in fields.chain(reserved) {
            assert_eq!(left[at] & bits, bits, "{attribute:#x}: octet {at} has two");
            left[at] &= !bits;
        }
        if attribute == 0x10 {
            // The other bit of the transport, which the test above leaves alone.
            left[43] &= !0x02;
        }
        assert_eq!(left, [0; BODY_LEN], "{attribute:#x}");
    }
}

#[test]
fn transports_are_two_fields() {
    let cases = [
        (Transport::Rc, 0, 0),
        (Transport::Uc, 2, 0),
        (Transport::Rd, 4, 0),
        (Transport::XRC, 6, 1),
        (Transport::Extended(7), 6, 7),
    ];
    for (transport, first, second) in cases {
        let mut body = [0; BODY_LEN];
        (body[43], body[51]) = (first, second);
        let bytes = raw(0x10, 0, &body);
        let mad = Mad::parse(&bytes).unwrap();
        let Message::Req(req) = mad.message else { panic!() };
        assert_eq!(req.transport, transport);
        assert_eq!(mad.emit(), bytes);
    }
}

#[test]
fn ece_options_are_in_the_attribute_modifier() {
    for (attribute, kept) in (0x10..=0x1a).map(|id| (id, matches!(id, 0x10 | 0x13 | 0x18))) {
        let mad = Mad::parse(&raw(attribute, 0xdead_beef, &[0; BODY_LEN])).unwrap();
        let want = if kept { 0xdead_beef } else { 0 };
        assert_eq!(mad.emit(), raw(attribute, want, &[0; BODY_LEN]), "{attribute:#x}");
    }
}

#[test]
fn what_is_no_message_is_refused() {
    let good = raw(0x14, 0, &[0; BODY_LEN]);
    assert!(Mad::parse(&good).is_ok());
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        Mad::parse(&bytes)
    };
    assert_eq!(with(0, 2), Err(MadError::BaseVersion(2)));
    assert_eq!(with(1, 4), Err(MadError::Class(MgmtClass(4))));
    assert_eq!(with(2, 1), Err(MadError::ClassVersion(1)));
    assert_eq!(with(3, 0x83), Err(MadError::Method(MadMethod(0x83))));
    assert_eq!(with(17, 0x1b), Err(MadError::Attribute(0x1b)));
    assert_eq!(with(17, 0x0f), Err(MadError::Attribute(0x0f)));
    for len in 0..MAD_LEN {
        assert_eq!(Mad::parse(&good[..len]), Err(MadError::Length(len)));
    }
    assert_eq!(Mad::parse(&[0; 257]), Err(MadError::Length(257)));
}

#[test]
fn a_req_of_another_version_can_be_refused() {
    let mut body = [0; BODY_LEN];
    body[..4].copy_from_slice(&[1, 2, 3, 4]);
    let mut bytes = raw(0x10, 0, &body);
    assert_eq!(Mad::foreign_req(&bytes), None);
    bytes[2] = 3;
    assert_eq!(Mad::foreign_req(&bytes), Some((0x0123_4567_89ab_cdef, CommId(0x0102_0304))));
    bytes[17] = 0x14;
    assert_eq!(Mad::foreign_req(&bytes), None);
}

#[test]
fn times() {
    for (code, nanos) in [(0, 4096), (1, 8192), (20, 4_294_967_296), (31, 8_796_093_022_208)] {
        assert_eq!(CmTime::new(code).unwrap().duration(), Duration::from_nanos(nanos));
    }
    assert_eq!(CmTime::new(32), None);
    assert_eq!(CmTime::saturating(200).code(), 31);
    for (duration, code) in [
        (Duration::ZERO, 0),
        (Duration::from_nanos(4096), 0),
        (Duration::from_nanos(4097), 1),
        (Duration::from_secs(4), 20),
        (Duration::MAX, 31),
    ] {
        assert_eq!(CmTime::at_least(duration).code(), code);
    }
}

#[test]
fn private_data_is_padded_and_bounded() {
    assert_eq!(PrivateData::<4>::new(b"ab"), Ok(PrivateData(*b"ab\0\0")));
    assert_eq!(PrivateData::<4>::new(b"abcd"), Ok(PrivateData(*b"abcd")));
    assert_eq!(PrivateData::<4>::new(b"abcde"), Err(PrivateDataTooLong { given: 5, max: 4 }));
    assert_eq!(PrivateData::<4>::concat(b"abc", b"d"), Ok(PrivateData(*b"abcd")));
    assert_eq!(PrivateData::<4>::concat(b"abc", b"de"), Err(PrivateDataTooLong { given: 2, max: 1 }));
    assert_eq!(PrivateData::<4>::concat(b"abcde", b""), Err(PrivateDataTooLong { given: 0, max: 0 }));
    assert_eq!(format!("{:?}", PrivateData(*b"a\0b\0")), "610062+1");
    assert_eq!(Info::new(&[7; 100]).get(), [7; 72]);
    assert_eq!(Info { len: 99, bytes: PrivateData([1; 72]) }.get(), [1; 72]);
    assert_eq!(Info::new(b"xy").get(), b"xy");
}

#[test]
fn service_ids_are_ports() {
    for (space, port, id) in [
        (PortSpace::Tcp, 7174, 0x0106_1c06),
        (PortSpace::Udp, 1, 0x0111_0001),
        (PortSpace::Ib, 0xffff, 0x013f_ffff),
        (PortSpace::Ipoib, 5, 0x0002_0005),
        (PortSpace::Sdp, 5, 0x0001_0005),
    ] {
        assert_eq!(space.service_id(port), ServiceId(id));
        assert_eq!(ServiceId(id).port(), Some((space, port)));
        assert_eq!(ServiceId(id).is_ip(), space != PortSpace::Sdp);
        assert_eq!(PortSpace::from_code(space as u16), Some(space));
    }
    for id in [0, 0x0107_0001, 0x0001_0106_0001, 0x0200_0000_0000_0001, u64::MAX] {
        assert_eq!(ServiceId(id).port(), None, "{id:#x}");
    }
    assert_eq!(format!("{:?}", ServiceId(0x0106_1c06)), "ServiceId(Tcp 7174)");
}

#[test]
fn ip_header() {
    let v4 = IpCmHeader {
        source_port: 0x1234,
        source: "192.0.2.1".parse().unwrap(),
        destination: "192.0.2.2".parse().unwrap(),
    };
    let mut want = [0; 36];
    want[1] = 0x40;
    want[2..4].copy_from_slice(&[0x12, 0x34]);
    want[16..20].copy_from_slice(&[192, 0, 2, 1]);
    want[32..36].copy_from_slice(&[192, 0, 2, 2]);
    assert_eq!(v4.emit(), want);
    let mut data = want.to_vec();
    data.extend([9, 9]);
    assert_eq!(IpCmHeader::parse(&data), Ok((v4, &[9, 9][..])));

    let v6 = IpCmHeader {
        source_port: 1,
        source: "fd79::1".parse().unwrap(),
        destination: "::ffff:1.2.3.4".parse().unwrap(),
    };
    assert_eq!(IpCmHeader::parse(&v6.emit()), Ok((v6, &[][..])));
    assert_eq!(v6.emit()[1], 0x60);

    assert_eq!(IpCmHeader::parse(&want[..35]), Err(IpCmError::Length(35)));
    for (at, value, error) in [
        (0, 0x10, IpCmError::Version(0x10)),
        (0, 1, IpCmError::Version(1)),
        (1, 0x50, IpCmError::IpVersion(5)),
    ] {
        let mut bad = want;
        bad[at] = value;
        assert_eq!(IpCmHeader::parse(&bad), Err(error));
    }
}

#[test]
fn reasons_have_names() {
    assert_eq!(RejReason::INVALID_SERVICE_ID.to_string(), "invalid service id: nobody listens");
    assert_eq!(format!("{:?}", RejReason(34)), "34 (code 34)");
    assert_eq!(RejReason::CONSUMER.0, 28);
}

proptest! {
    /// Anything of the right length behind a good header is a message, and comes out without its reserved
    /// bits alone.
    #[test]
    fn any_body_round_trips(
        which in 0..11_usize, body in prop::array::uniform32(any::<[u8; 8]>()), modifier: u32,
    ) {
        let bytes: Vec<u8> = body.iter().flatten().copied().take(BODY_LEN).collect();
        let mut body: [u8; BODY_LEN] = bytes.try_into().unwrap();
        let (attribute, reserved, _) = messages().swap_remove(which);
        let mad = Mad::parse(&raw(attribute, modifier, &body)).unwrap();
        let again = mad.emit();
        prop_assert_eq!(Mad::parse(&again), Ok(mad));
        for (at, bits) in reserved {
            // The extended transport is no field where the transport is another one.
            if (attribute, at) == (0x10, 51) && body[43] & 6 == 6 {
                continue;
            }
            body[at] &= !bits;
        }
        prop_assert_eq!(&again[24..], &body[..]);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = (Mad::parse(&bytes), Mad::foreign_req(&bytes), IpCmHeader::parse(&bytes));
    }

    #[test]
    fn ip_headers_round_trip(port: u16, source: [u8; 16], destination: [u8; 16], tail: [u8; 5]) {
        let header = IpCmHeader {
            source_port: port,
            source: core::net::IpAddr::V6(source.into()),
            destination: core::net::IpAddr::V6(destination.into()),
        };
        let mut data = header.emit().to_vec();
        data.extend(tail);
        prop_assert_eq!(IpCmHeader::parse(&data), Ok((header, &tail[..])));
    }
}

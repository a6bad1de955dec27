use ferroce_wire::cm::{
    About, CmTime, CommId, Ece, Info, Path, PortSpace, PrivateData, Rej, RejReason, Rep, Req, ServiceId,
    SidrRep, SidrReq, SidrStatus, Transport,
};
use ferroce_wire::{Pkey, Psn, Qkey, Qpn};
use proptest::prelude::*;

use super::*;

fn time(code: u8) -> CmTime {
    CmTime::new(code).unwrap()
}

fn req() -> Req {
    Req {
        local_id: CommId(1),
        ece: Ece { vendor_id: 0x15b3, options: 9 },
        service_id: PortSpace::Tcp.service_id(7471),
        ca_guid: 3,
        qkey: Qkey::new(0),
        qpn: Qpn::new(0x01_0203),
        responder_resources: 4,
        initiator_depth: 5,
        local_eecn: Qpn::new(0),
        remote_eecn: Qpn::new(0),
        remote_timeout: time(20),
        local_timeout: time(21),
        transport: Transport::Uc,
        flow_control: true,
        starting_psn: Psn::new(0x12_3456),
        retry_count: 7,
        pkey: Pkey::DEFAULT,
        path_mtu: 3,
        rdc_exists: false,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        primary: Path { hop_limit: 64, ack_timeout: time(17), ..Path::default() },
        alternate: Path::default(),
        sap_supported: false,
        private: PrivateData([7; 92]),
    }
}

fn rep() -> Rep {
    Rep {
        local_id: CommId(5),
        remote_id: CommId(6),
        qkey: Qkey::new(0),
        qpn: Qpn::new(9),
        eecn: Qpn::new(0),
        ece: Ece::default(),
        starting_psn: Psn::new(8),
        responder_resources: 1,
        initiator_depth: 2,
        target_ack_delay: time(15),
        failover: 0,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        ca_guid: 4,
        private: PrivateData([6; 196]),
    }
}

fn rej() -> Rej {
    Rej {
        local_id: CommId(5),
        remote_id: CommId(6),
        about: About::REP,
        reason: RejReason::CONSUMER,
        info: Info::new(b"info"),
        private: PrivateData([5; 148]),
    }
}

fn sidr_req() -> SidrReq {
    let (service_id, private) = (PortSpace::Udp.service_id(7), PrivateData([4; 216]));
    SidrReq { request_id: CommId(7), pkey: Pkey::DEFAULT, service_id, private }
}

fn sidr_rep() -> SidrRep {
    SidrRep {
        request_id: CommId(7),
        status: SidrStatus::VALID,
        info: Info::NONE,
        ece: Ece::default(),
        qpn: Qpn::new(8),
        service_id: ServiceId(9),
        qkey: Qkey::new(10),
        private: PrivateData([3; 136]),
    }
}

fn route() -> CmRoute {
    CmRoute { local: "fe80::1".parse().unwrap(), remote: "fe80::2".parse().unwrap(), interface: 3 }
}

fn bind() -> CmBind {
    CmBind {
        handle: 1 << 40,
        space: PortSpace::Ib,
        port: 7471,
        address: "0.0.0.0".parse().unwrap(),
        interface: 0,
        reuse: true,
        v6_only: false,
    }
}

/// One of each.
pub(super) fn requests() -> Vec<CmRequest> {
    let id = CommId(0x0203_0405);
    vec![
        CmRequest::Bind(bind()),
        CmRequest::Listen { handle: 2, backlog: 1024 },
        CmRequest::Unbind { handle: 3 },
        CmRequest::Connect(Box::new(CmConnect {
            route: route(),
            peer_to_peer: true,
            packet_life: time(16),
            ack_delay: time(15),
            req: req(),
        })),
        CmRequest::Accept(Box::new(rep())),
        CmRequest::Reject(Box::new(rej())),
        CmRequest::Establish(id),
        CmRequest::Disconnect(id),
        CmRequest::Close(id),
        CmRequest::Mra { id, service_timeout: time(24), at_once: true },
        CmRequest::Ask(Box::new(CmAsk {
            route: CmRoute {
                local: "10.0.0.1".parse().unwrap(),
                remote: "10.0.0.2".parse().unwrap(),
                interface: 0,
            },
            response_timeout: time(20),
            retries: 15,
            traffic_class: 32,
            req: sidr_req(),
        })),
        CmRequest::Answer(Box::new(sidr_rep())),
        CmRequest::Restore { id, record: vec![1; MAX_RECORD] },
        CmRequest::Restored,
        CmRequest::PortBlock { space: PortSpace::Tcp, first: 0 },
        CmRequest::PortBlockReturn { space: PortSpace::Udp, first: 40_000 },
    ]
}

pub(super) fn done() -> CmDone {
    CmDone { id: CommId(9), port: 40_000, serial: 1 << 50, record: vec![2; 600] }
}

/// One of each.
pub(super) fn news() -> Vec<CmNews> {
    let request =
        |handle| CmWhat::Request { handle, route: route(), starting_psn: Psn::new(77), req: Box::new(req()) };
    let whats = vec![
        request(Some(4)),
        request(None),
        CmWhat::Reply(Box::new(rep())),
        CmWhat::Established,
        CmWhat::Rejected(Box::new(rej())),
        CmWhat::Unreachable,
        CmWhat::Disconnected(CmEnd::ByPeer),
        CmWhat::Disconnected(CmEnd::ByUs),
        CmWhat::Disconnected(CmEnd::NoAnswer),
        CmWhat::TimeWaitOver,
        CmWhat::SidrRequest { handle: 5, route: route(), req: Box::new(sidr_req()) },
        CmWhat::SidrReply(Box::new(sidr_rep())),
    ];
    let news = |what| CmNews { id: CommId(11), serial: 12, record: vec![13; 14], what };
    whats.into_iter().map(news).collect()
}

fn every_message() -> Vec<Message> {
    let requests = requests().into_iter().map(Message::Cm);
    requests.chain(news().into_iter().map(Message::CmNews)).chain([Message::CmDone(done())]).collect()
}

/// Any of them, with its numbers changed.
pub(super) fn a_message() -> impl Strategy<Value = Message> {
    (prop::sample::select(every_message()), any::<(u32, u64, u16)>(), 0..=31_u8).prop_map(
        |(mut message, (id, handle, port), code)| {
            match &mut message {
                Message::Cm(CmRequest::Bind(bind)) => (bind.handle, bind.port) = (handle, port),
                Message::Cm(CmRequest::Connect(connect)) => connect.packet_life = time(code),
                Message::Cm(CmRequest::Close(to)) => *to = CommId(id),
                Message::Cm(CmRequest::Accept(rep)) => rep.local_id = CommId(id),
                Message::CmDone(done) => done.serial = handle,
                Message::CmNews(news) => news.id = CommId(id),
                _ => {}
            }
            message
        },
    )
}

#[test]
fn each_comes_out_as_it_went_in() {
    for message in every_message() {
        let bytes = message.encode(3).unwrap();
        assert_eq!(Message::decode(&bytes, 0), Ok((3, message)));
    }
}

#[test]
fn every_truncation_is_refused() {
    for message in every_message() {
        let bytes = message.encode(3).unwrap();
        for end in 16..bytes.len() {
            let mut cut = bytes[..end].to_vec();
            cut[12..16].copy_from_slice(&(end as u32).to_le_bytes());
            assert!(Message::decode(&cut, 0).is_err(), "{message:?} cut at {end}");
        }
    }
}

#[test]
fn bad_fields_are_named() {
    let connect = || Message::Cm(requests().remove(3));
    let bind = || Message::Cm(requests().remove(0));
    let done = || Message::CmDone(done());
    let over = || Message::CmNews(news().remove(6));
    // Behind the header of 16 octets.
    let cases: Vec<(&str, Message, usize, u8)> = vec![
        ("cm request", bind(), 16, 0),
        ("cm request", bind(), 16, 17),
        ("cm news", over(), 16, 10),
        ("space", bind(), 24, 0xff),
        ("time", connect(), 19, 32),
        ("time", connect(), 20, 32),
        // IPv4 to IPv6.
        ("remote", connect(), 16 + 12 + 12 + 16 + 16 + 11, 0),
        ("mad", connect(), 16 + 12 + 12 + 16 + 32, 2),
        // Of another class, of another kind.
        ("mad", connect(), 16 + 12 + 12 + 16 + 32 + 2, 9),
        ("mad", connect(), 16 + 12 + 12 + 16 + 32 + 1 + 17, 0x13),
        ("record", done(), 27, 5),
        ("end", over(), 18, 3),
    ];
    for (field, message, at, value) in cases {
        let mut bytes = message.encode(1).unwrap();
        if field == "remote" {
            let gid = Gid::from_ip([10, 0, 0, 1].into()).0;
            bytes[72..88].copy_from_slice(&gid);
        } else {
            bytes[at] = value;
        }
        match Message::decode(&bytes, 0) {
            Err(MessageError::Value { field: named, .. }) => assert_eq!(named, field, "{message:?}"),
            other => panic!("{field}: {other:?}"),
        }
    }
    let record = vec![0; MAX_RECORD + 1];
    let long = Message::Cm(CmRequest::Restore { id: CommId(1), record });
    assert_eq!(long.encode(1), Err(MessageError::TooLong { field: "record" }));
}

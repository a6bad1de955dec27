use ferroce_cm::{
    AcceptParams, CmEvent, CmEventKind, ConnectParams, ConnectionManager, Disconnect, ListenerId, Route,
    SidrAnswer, SidrParams,
};
use ferroce_wire::cm::{
    About, CmTime, CommId, Ece, Info, PortSpace, PrivateData, RejReason, Rep, Req, ServiceId, SidrRep,
    SidrReq, SidrStatus, Transport,
};
use ferroce_wire::{PathMtu, Pkey, Psn, Qkey, Qpn};
use proptest::prelude::*;

use super::*;

fn time(code: u8) -> CmTime {
    CmTime::new(code).unwrap()
}

const MAX_RECORD: usize = ConnectionManager::MAX_RECORD;

/// Every field differs from its neighbours and from its default.
fn connect() -> ConnectParams {
    ConnectParams {
        route: route(),
        peer_to_peer: true,
        service_id: PortSpace::Tcp.service_id(7471),
        ca_guid: 3,
        qpn: Qpn::new(0x01_0203),
        starting_psn: Some(Psn::new(0x12_3456)),
        transport: Transport::XRC,
        responder_resources: 4,
        initiator_depth: 5,
        flow_control: true,
        retry_count: 6,
        rnr_retry_count: 2,
        srq: true,
        path_mtu: PathMtu::B2048,
        packet_life: time(17),
        ack_delay: time(16),
        response_timeout: time(21),
        max_cm_retries: 14,
        traffic_class: 106,
        hop_limit: 63,
        flow_label: 0xa_bcde,
        sl: 9,
        ece: Ece { vendor_id: 0x15b3, options: 9 },
        private: PrivateData([7; 92]),
    }
}

fn accept() -> AcceptParams {
    AcceptParams {
        ca_guid: 4,
        qpn: Qpn::new(9),
        responder_resources: 1,
        initiator_depth: 2,
        ack_delay: time(14),
        flow_control: true,
        rnr_retry_count: 3,
        srq: true,
        ece: Ece { vendor_id: 5, options: 6 },
        private: PrivateData([6; 196]),
    }
}

fn req() -> Req {
    connect().req(CommId(1), Psn::new(0x12_3456))
}

fn rep() -> Rep {
    accept().rep(
        CommId(5),
        Psn::new(8),
        &ConnectParams { transport: Transport::Rc, ..connect() }.req(CommId(6), Psn::new(1)),
    )
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

fn route() -> Route {
    Route { local: "fe80::1".parse().unwrap(), remote: "fe80::2".parse().unwrap(), interface: 3 }
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

/// A request of each kind.
pub(super) fn requests() -> Vec<CmRequest> {
    let id = CommId(0x0203_0405);
    vec![
        CmRequest::Bind(bind()),
        CmRequest::Listen { handle: 2, backlog: 1024 },
        CmRequest::Unbind { handle: 3 },
        CmRequest::Connect(Box::new(connect())),
        CmRequest::Accept { id, params: Box::new(accept()) },
        CmRequest::Reject {
            id,
            reason: RejReason::CONSUMER,
            info: Info::new(b"info"),
            private: Box::new(PrivateData([5; 148])),
        },
        CmRequest::Establish(id),
        CmRequest::Disconnect(id),
        CmRequest::Close(id),
        CmRequest::Mra { id, service_timeout: time(24), at_once: true },
        CmRequest::Resolve(Box::new(SidrParams {
            route: Route {
                local: "10.0.0.1".parse().unwrap(),
                remote: "10.0.0.2".parse().unwrap(),
                interface: 0,
            },
            service_id: PortSpace::Udp.service_id(7),
            response_timeout: time(20),
            max_cm_retries: 15,
            traffic_class: 32,
            private: PrivateData([4; 216]),
        })),
        CmRequest::Answer {
            id,
            answer: Box::new(SidrAnswer {
                status: SidrStatus::VALID,
                qpn: Qpn::new(8),
                qkey: Qkey::new(10),
                ece: Ece { vendor_id: 1, options: 2 },
                private: PrivateData([3; 136]),
            }),
        },
        CmRequest::Restore { id, record: vec![1; MAX_RECORD] },
        CmRequest::Restored,
        CmRequest::PortBlock { space: PortSpace::Tcp, first: 0 },
        CmRequest::PortBlockReturn { space: PortSpace::Udp, first: 40_000 },
    ]
}

pub(super) fn done() -> CmDone {
    CmDone { id: CommId(9), port: 40_000, serial: 1 << 50, record: vec![2; 500] }
}

/// A notice of each kind.
pub(super) fn notices() -> Vec<CmNotice> {
    let request = |listener| CmEventKind::Request {
        listener,
        route: route(),
        starting_psn: Psn::new(77),
        req: Box::new(req()),
    };
    let kinds = vec![
        request(Some(ListenerId(4))),
        request(None),
        CmEventKind::Reply { rep: Box::new(rep()) },
        CmEventKind::Established,
        CmEventKind::Rejected {
            about: About::REP,
            reason: RejReason::CONSUMER,
            info: Info::new(b"info"),
            private: Box::new(PrivateData([5; 148])),
        },
        CmEventKind::Unreachable,
        CmEventKind::Disconnected(Disconnect::ByPeer),
        CmEventKind::Disconnected(Disconnect::ByUs),
        CmEventKind::Disconnected(Disconnect::NoAnswer),
        CmEventKind::TimeWaitOver,
        CmEventKind::SidrRequest { listener: ListenerId(5), route: route(), req: Box::new(sidr_req()) },
        CmEventKind::SidrReply { rep: Box::new(sidr_rep()) },
        CmEventKind::Lost,
    ];
    let notice = |kind| CmNotice {
        event: CmEvent { owner: 0x20, id: CommId(0x0200_000b), kind },
        serial: 12,
        record: vec![13; 14],
    };
    kinds.into_iter().map(notice).collect()
}

fn every_message() -> Vec<Message> {
    let requests = requests().into_iter().map(Message::Cm);
    requests.chain(notices().into_iter().map(Message::CmEvent)).chain([Message::CmDone(done())]).collect()
}

/// Any of them, with its numbers changed.
pub(super) fn a_message() -> impl Strategy<Value = Message> {
    (prop::sample::select(every_message()), any::<(u32, u64, u16)>(), 0..=31_u8).prop_map(
        |(mut message, (id, handle, port), code)| {
            match &mut message {
                Message::Cm(CmRequest::Bind(bind)) => (bind.handle, bind.port) = (handle, port),
                Message::Cm(CmRequest::Connect(connect)) => connect.packet_life = time(code),
                Message::Cm(CmRequest::Close(to)) => *to = CommId(id),
                Message::Cm(CmRequest::Accept { id: of, .. }) => *of = CommId(id),
                Message::CmDone(done) => done.serial = handle,
                Message::CmEvent(notice) => {
                    notice.event.id = CommId(id);
                    notice.event.owner = ConnectionManager::owner(CommId(id));
                }
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
        for end in 10..bytes.len() {
            let mut cut = bytes[..end].to_vec();
            cut[6..10].copy_from_slice(&(end as u32).to_le_bytes());
            assert!(Message::decode(&cut, 0).is_err(), "{message:?} cut at {end}");
        }
    }
}

#[test]
fn bad_fields_are_named() {
    let connect = || Message::Cm(requests().remove(3));
    let bind = || Message::Cm(requests().remove(0));
    let notice = |which| Message::CmEvent(notices().remove(which));
    // Behind the header of 10 octets and the kind; an event stands behind a serial number, a record of 14
    // octets and its id.
    let event = 11 + 8 + 2 + 14 + 4;
    let cases: Vec<(&str, Message, usize, u8)> = vec![
        ("cm request", bind(), 11, 0),
        ("cm request", bind(), 11, 17),
        ("cm event", notice(6), event, 11),
        ("space", bind(), 11 + 1 + 8, 0xff),
        ("flag", connect(), 12 + 36, 2),
        ("transport", connect(), 12 + 36 + 1 + 8 + 8 + 4 + 5, 3),
        ("path mtu", connect(), 12 + 36 + 1 + 8 + 8 + 4 + 5 + 7, 6),
        ("time", connect(), 12 + 36 + 1 + 8 + 8 + 4 + 5 + 8, 32),
        // IPv4 to IPv6.
        ("remote", connect(), 0, 0),
        // A MAD of another class, of another kind.
        ("mad", notice(2), event + 1 + 1, 9),
        ("mad", notice(2), event + 1 + 17, 0x10),
        ("record", Message::CmDone(done()), 11 + 4 + 2 + 8 + 1, 5),
        ("end", notice(6), event + 1, 3),
    ];
    for (field, message, at, value) in cases {
        let mut bytes = message.encode(1).unwrap();
        if field == "remote" {
            let gid = Gid::from_ip([10, 0, 0, 1].into()).0;
            bytes[12 + 16..12 + 32].copy_from_slice(&gid);
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

#[test]
fn a_newer_minor_may_lengthen_a_connect_request() {
    let message = Message::Cm(CmRequest::Connect(Box::new(connect())));
    let mut bytes = message.encode(3).unwrap();
    bytes.extend([0xff; 5]);
    let length = bytes.len() as u32;
    bytes[6..10].copy_from_slice(&length.to_le_bytes());
    assert_eq!(Message::decode(&bytes, 0), Ok((3, message)));
}

//! The kernel's CM, as captured: our messages beside its own, and its messages to us.

use std::net::IpAddr;
use std::path::Path;

use ferroce_cm::{
    AcceptParams, Bind, CmConfig, CmDropReason, CmEventKind, ConnectParams, ConnectionManager, Disconnect,
    Kind, ListenParams, Route, SidrAnswer, SidrParams, attributes,
};
use ferroce_wire::cm::{
    CmTime, CommId, Dreq, IpCmHeader, Mad, Message, PrivateData, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq,
};
use ferroce_wire::{Frame, Instant, Operation, Packet, Qpn};

/// The CM's messages of a capture: from whom, to whom, what.
fn captured(name: &str) -> Vec<(IpAddr, IpAddr, Mad)> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ferroce-wire/tests/golden");
    let file = std::fs::read(golden.join(name).with_extension("pcap")).unwrap();
    let mut mads = Vec::new();
    let mut rest = &file[24..];
    while let Some((header, behind)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let (frame, next) = behind.split_at(len);
        rest = next;
        let Ok(frame) = Frame::parse(frame) else { continue };
        let packet = Packet::parse(frame.transport).unwrap();
        if let Operation::Ud(datagram) = packet.op
            && packet.bth.dest_qp == Qpn::GSI
        {
            let flow = frame.flow().unwrap();
            mads.push((flow.source, flow.destination, Mad::parse(datagram.payload).unwrap()));
        }
    }
    mads
}

const CAPTURES: [&str; 11] = [
    "cm_cmtime",
    "cm_rdma_client",
    "cm_reject",
    "cm_rping",
    "cm_rping_big",
    "cm_rping_v6",
    "cm_rstream",
    "cm_ucmatose",
    "cm_udaddy",
    "cm_udaddy_v6",
    "pt_send_lat_cm",
];

fn manager() -> ConnectionManager {
    ConnectionManager::new(CmConfig { key: [1, 2], max_connections: 100, max_per_owner: 100 })
}

fn sent(cm: &mut ConnectionManager) -> Mad {
    let sent = cm.poll_transmit().unwrap();
    assert!(cm.poll_transmit().is_none());
    Mad::parse(&sent.mad[..]).unwrap()
}

/// The header of the private data, and the flow label it leads to.
fn header(service_id: ServiceId, private: &[u8]) -> (IpCmHeader, u32) {
    let (header, _) = IpCmHeader::parse(private).unwrap();
    let (_, port) = service_id.port().unwrap();
    (header, attributes::flow_label(header.source_port, port))
}

/// Asked for the same, we say the same: all but what is random.
#[test]
fn our_requests_are_the_kernels() {
    let mut seen = 0;
    for (source, destination, mad) in CAPTURES.into_iter().flat_map(captured) {
        let route = Route { local: source, remote: destination, interface: 0 };
        let mut cm = manager();
        match mad.message {
            Message::Req(req) => {
                let (header, flow_label) = header(req.service_id, &req.private.0);
                let params = ConnectParams {
                    starting_psn: Some(req.starting_psn),
                    // Kernel 6.1 counts with longer paths than 6.12.
                    packet_life: CmTime::saturating(18),
                    flow_label,
                    retry_count: req.retry_count,
                    rnr_retry_count: req.rnr_retry_count,
                    responder_resources: req.responder_resources,
                    initiator_depth: req.initiator_depth,
                    srq: req.srq,
                    flow_control: req.flow_control,
                    private: PrivateData::concat(&header.emit(), &req.private.0[36..]).unwrap(),
                    ..ConnectParams::new(route, req.service_id, req.ca_guid, req.qpn)
                };
                let local_id = cm.connect(Instant::ZERO, 1, &params).unwrap();
                assert_eq!(sent(&mut cm).message, Message::Req(Req { local_id, ..req }));
            }
            Message::SidrReq(req) => {
                let (header, _) = header(req.service_id, &req.private.0);
                let params = SidrParams {
                    route,
                    service_id: req.service_id,
                    response_timeout: CmTime::saturating(20),
                    max_cm_retries: 15,
                    traffic_class: 0,
                    private: PrivateData::concat(&header.emit(), &req.private.0[36..]).unwrap(),
                };
                let request_id = cm.resolve(Instant::ZERO, 1, &params).unwrap();
                assert_eq!(sent(&mut cm).message, Message::SidrReq(SidrReq { request_id, ..req }));
            }
            _ => continue,
        }
        seen += 1;
    }
    assert_eq!(seen, 14);
}

fn kind(message: &Message) -> &'static str {
    message.name()
}

/// The clients connect to us, and get from us the same answers as from the kernel's server.
#[test]
fn its_clients_are_served() {
    let mut seen = std::collections::BTreeMap::new();
    for name in CAPTURES {
        let all = captured(name);
        let mut cm = manager();
        // Theirs to ours, by the kernel's own id at the server's end.
        let mut ids = std::collections::BTreeMap::new();
        for (n, (source, destination, mad)) in all.iter().enumerate() {
            let now = Instant::from_nanos(n as u64);
            let route = Route { local: *destination, remote: *source, interface: 0 };
            *seen.entry(kind(&mad.message)).or_insert(0) += 1;
            let reply = |kinds: &[&str], to: CommId| {
                let answers = |message: &Message| match message {
                    Message::Rep(rep) => rep.remote_id == to,
                    Message::Rej(rej) => rej.remote_id == to,
                    Message::SidrRep(rep) => rep.request_id == to,
                    _ => false,
                };
                let mut later = all[n..].iter().map(|(_, _, mad)| *mad);
                later.find(|mad| kinds.contains(&kind(&mad.message)) && answers(&mad.message)).unwrap()
            };
            let give = |cm: &mut ConnectionManager, message| {
                cm.handle_mad(now, route, &Mad { message, ..*mad }.emit())
            };
            match mad.message {
                Message::Req(req) => {
                    let listen = ListenParams {
                        service_id: req.service_id,
                        bind: Bind::Any,
                        kind: Kind::Both,
                        backlog: 0,
                    };
                    let answer = reply(&["REP", "REJ"], req.local_id);
                    let Message::Rep(rep) = answer.message else {
                        // To the octet.
                        assert_eq!(give(&mut cm, mad.message), Err(CmDropReason::Refused));
                        assert_eq!(sent(&mut cm), answer);
                        continue;
                    };
                    let _ = cm.listen(1, listen);
                    give(&mut cm, mad.message).unwrap();
                    let id = cm.poll_event().unwrap().id;
                    let params = AcceptParams {
                        responder_resources: rep.responder_resources,
                        initiator_depth: rep.initiator_depth,
                        flow_control: rep.flow_control,
                        rnr_retry_count: rep.rnr_retry_count,
                        srq: rep.srq,
                        private: rep.private,
                        ..AcceptParams::new(rep.ca_guid, rep.qpn)
                    };
                    cm.accept(now, id, &params).unwrap();
                    let ours = sent(&mut cm);
                    assert_eq!(ours.transaction_id, answer.transaction_id);
                    let Message::Rep(said) = ours.message else { panic!() };
                    let starting_psn = said.starting_psn;
                    assert_eq!(said, Rep { local_id: id, starting_psn, ..rep });
                    ids.insert(rep.local_id, id);
                }
                Message::SidrReq(req) => {
                    let bind = Bind::Address(*destination);
                    let listen =
                        ListenParams { service_id: req.service_id, bind, kind: Kind::Datagrams, backlog: 1 };
                    cm.listen(1, listen).unwrap();
                    give(&mut cm, mad.message).unwrap();
                    let answer = reply(&["SIDR_REP"], req.request_id);
                    let Message::SidrRep(rep) = answer.message else { panic!() };
                    let id = cm.poll_event().unwrap().id;
                    let SidrRep { status, qpn, qkey, ece, private, .. } = rep;
                    cm.answer_sidr(id, &SidrAnswer { status, qpn, qkey, ece, private }).unwrap();
                    assert_eq!(sent(&mut cm), answer);
                }
                Message::Rtu(rtu) => {
                    let remote_id = ids[&rtu.remote_id];
                    give(&mut cm, Message::Rtu(Rtu { remote_id, ..rtu })).unwrap();
                    assert_eq!(cm.poll_event().unwrap().kind, CmEventKind::Established);
                }
                Message::Dreq(dreq) if ids.contains_key(&dreq.remote_id) => {
                    let remote_id = ids[&dreq.remote_id];
                    give(&mut cm, Message::Dreq(Dreq { remote_id, ..dreq })).unwrap();
                    let end = CmEventKind::Disconnected(Disconnect::ByPeer);
                    assert_eq!(cm.poll_event().unwrap().kind, end);
                    cm.disconnect(now, remote_id).unwrap();
                    let drep = sent(&mut cm);
                    assert_eq!(drep.transaction_id, mad.transaction_id);
                    assert!(matches!(drep.message, Message::Drep(drep) if drep.remote_id == dreq.local_id));
                }
                // Messages that the server itself sent.
                _ => {}
            }
        }
    }
    assert_eq!((seen["REQ"], seen["RTU"], seen["SIDR_REQ"], seen["REJ"]), (12, 11, 2, 1));
}

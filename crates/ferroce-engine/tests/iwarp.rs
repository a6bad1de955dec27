//! Connections of iWARP over TCP on lo: the set-up, messages, the end, and peers that mean harm.
//!
//! Each test runs in a network namespace of its own, where the test makes the device.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::streams::{
    Events, Pair, accept, answer, connect, device, end, established, events, inside, listen, next, nothing,
    pair, port, rejected, request,
};
use common::*;
use ferroce_engine::cm::{CmError, EventKind, Request};
use ferroce_engine::{QpAttr, QpAttrMask, QpInit, QpState, RecvWr, SendOp, SrqInit, WcOpcode, WcStatus};
use ferroce_wire::cm::RejReason;
use ferroce_wire::iwarp::crc::Crc32c;
use ferroce_wire::iwarp::{Opcode, SegmentHeader};

/// The address of the peer of a process that [`fin_waits_although_the_process_exits`] starts.
const PEER: &str = "IWARP_TEST_PEER";
/// The part of its connection that such a process drops before it exits.
const DROPS: &str = "IWARP_TEST_DROPS";
/// siw's request of one read in each direction, without private data (`reference/iwarp.md` section 8, vector A).
const REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x01\x00\x01";
const REPLY: &[u8] = b"MPA ID Rep Frame";

/// The peer closes the connection: the octets that it sent before.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut octets = Vec::new();
    match stream.read_to_end(&mut octets) {
        Ok(_) => octets,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => octets,
        Err(error) => panic!("{error}"),
    }
}

/// A connection that a peer made by hand, up to the reply.
fn by_hand(address: SocketAddr, requests: &Events, end: &End) -> (TcpStream, Request, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(REQUEST).unwrap();
    let request = request(requests);
    accept(&request, end, b"");
    let mut reply = vec![0; 24];
    stream.read_exact(&mut reply).unwrap();
    assert!(reply.starts_with(REPLY));
    (stream, request, reply)
}

#[test]
fn messages_in_both_directions_and_the_end() {
    inside("messages_in_both_directions_and_the_end", || {
        let Pair { active: (a, connection, events), passive: (b, other, others), .. } = pair(16, 1 << 20);
        for (from, to, len) in [(&a, &b, 100_000), (&b, &a, 1)] {
            from.memory.fill(len, len);
            to.receive(2, to.sge(0, len));
            from.post(1, SendOp::Send, from.sge(0, len));
            from.expect(1, WcOpcode::Send);
            assert_eq!(to.expect(2, WcOpcode::Recv).byte_len as usize, len);
            to.memory.check(len, len);
            from.memory.fill(7, len);
            from.post(3, SendOp::Write { remote: to.remote(0) }, from.sge(0, len));
            from.expect(3, WcOpcode::RdmaWrite);
            from.post(4, SendOp::Read { remote: to.remote(0) }, from.sge(500_000, len));
            from.expect(4, WcOpcode::RdmaRead);
            from.memory.check_at(500_000, 7, len);
        }
        b.receive(9, b.sge(0, 1));
        connection.disconnect().unwrap();
        assert!(
            matches!(next(&events), EventKind::Disconnected(_))
                && matches!(next(&others), EventKind::Disconnected(_))
        );
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Error, QpState::Error));
        let flushed = b.complete();
        assert_eq!((flushed.wr_id, flushed.status), (9, WcStatus::WrFlushErr));
        other.disconnect().unwrap();
        drop((connection, other));
        nothing(&events, Duration::from_millis(50));
        nothing(&others, Duration::from_millis(50));
    });
}

/// Messages of four connections take the receives of one queue, in any order and each whole. A message for which none comes within a
/// second ends its own connection, and no other: iWARP has no RNR (RFC 5041 section 7.2).
#[test]
fn queue_pairs_of_a_shared_receive_queue() {
    inside("queue_pairs_of_a_shared_receive_queue", || {
        const PEERS: usize = 4;
        const LEN: usize = 8000;
        let (_listener, address, requests) = listen(PEERS as u16);
        let passive = end(64, 2 * PEERS * LEN);
        let srq = passive.pd.create_srq(SrqInit { max_wr: 64, max_sge: 1, user: 0 }).unwrap();
        let post = |wr_id: usize| {
            let sge = passive.sge(wr_id * LEN, LEN);
            srq.post_recv([RecvWr { wr_id: wr_id as u64, sges: &[sge] }]).unwrap();
        };
        let shared = || {
            let wanted = QpInit { srq: Some(Arc::clone(&srq)), ..init(&passive.cq, &passive.cq, 64) };
            let qp = passive.pd.create_qp(wanted).unwrap();
            qp.modify(&QpAttr { state: QpState::Init, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
            qp
        };
        let join = |_| {
            let (from, to) = (end(64, LEN), shared());
            let (connection, events) = connect(&from, address, b"");
            let request = request(&requests);
            request.connection.accept(&answer(to.qpn(), 1, 1), b"").unwrap();
            established(next(&events));
            established(next(&requests));
            (from, to, connection, events, request.connection)
        };
        let pairs: Vec<_> = (0..PEERS).map(join).collect();
        (0..2 * PEERS).for_each(post);
        for round in 0..50 {
            // Not in the order of the connections, and from each of them two at once.
            for peer in (0..PEERS).map(|peer| (peer + round) % PEERS) {
                let from = &pairs[peer].0;
                from.memory.fill(peer, LEN);
                (0..2).for_each(|wr_id| from.post(wr_id, SendOp::Send, from.sge(0, LEN)));
            }
            let mut came = [0; PEERS];
            for _ in 0..2 * PEERS {
                let wc = passive.complete();
                assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, LEN), "{wc:?}");
                let peer = pairs.iter().position(|(_, to, ..)| to.qpn() == wc.qpn).unwrap();
                passive.memory.check_at(wc.wr_id as usize * LEN, peer, LEN);
                came[peer] += 1;
                post(wc.wr_id as usize);
            }
            assert_eq!(came, [2; PEERS], "round {round}");
            for (from, ..) in &pairs {
                for wr_id in 0..2 {
                    from.expect(wr_id, WcOpcode::Send);
                }
            }
        }
        // The first peer takes all receives, and one more.
        let ((first, to, _, events, _), others) = pairs.split_first().unwrap();
        for wr_id in 0..=2 * PEERS as u64 {
            first.post(wr_id, SendOp::Send, first.sge(0, 1));
        }
        let mut receives: Vec<_> = (0..2 * PEERS).map(|_| passive.complete()).collect();
        assert!(
            receives.iter().all(|wc| wc.status == WcStatus::Success && wc.qpn == to.qpn()),
            "{receives:?}"
        );
        assert!(matches!(next(events), EventKind::Disconnected(_)));
        assert!(matches!(next(&requests), EventKind::Disconnected(_)));
        assert_eq!((first.qp.state(), to.state()), (QpState::Error, QpState::Error));
        for (wr_id, (from, to, ..)) in others.iter().enumerate() {
            post(wr_id);
            from.post(7, SendOp::Send, from.sge(0, LEN));
            from.expect(7, WcOpcode::Send);
            receives.push(passive.expect(wr_id as u64, WcOpcode::Recv));
            assert_eq!(receives.last().unwrap().qpn, to.qpn());
        }
        assert_eq!(receives.len(), 3 * PEERS - 1);
    });
}

/// TCP has no room for all of it: the rest waits for room.
#[test]
fn much_is_under_way_at_once() {
    inside("much_is_under_way_at_once", || {
        const PIECE: usize = 1 << 20;
        let pair = pair(64, 32 * PIECE);
        let (a, b) = (&pair.active.0, &pair.passive.0);
        for round in 0..4 {
            a.memory.fill(round, 32 * PIECE);
            for piece in 0..32 {
                let at = piece * PIECE;
                a.post(piece as u64, SendOp::Write { remote: b.remote(at) }, a.sge(at, PIECE));
                b.post(piece as u64, SendOp::Read { remote: a.remote(at) }, b.sge(at, PIECE));
            }
            let (mut writes, mut reads) = (0, 0);
            let start = Instant::now();
            while writes < 32 || reads < 32 {
                let mut wc = [blank(); 8];
                for (end, done) in [(a, &mut writes), (b, &mut reads)] {
                    let count = end.cq.poll(&mut wc).unwrap();
                    assert!(wc[..count].iter().all(|wc| wc.status == WcStatus::Success), "{wc:?}");
                    *done += count;
                }
                assert!(start.elapsed() < PATIENCE, "{writes} writes, {reads} reads in round {round}");
            }
            b.memory.check(round, 32 * PIECE);
        }
    });
}

#[test]
fn connections_that_do_not_come_about() {
    inside("connections_that_do_not_come_about", || {
        let (listener, address, requests) = listen(0);
        let a = end(4, 4096);
        let (_rejected, events) = connect(&a, address, b"");
        request(&requests).connection.reject(RejReason::CONSUMER, b"no").unwrap();
        assert_eq!(rejected(next(&events)), (RejReason::CONSUMER, b"no".to_vec()));
        let (_forgotten, events) = connect(&a, address, b"");
        drop(request(&requests));
        assert_eq!(rejected(next(&events)), (RejReason::CONSUMER, Vec::new()));
        let (given_up, events) = connect(&a, address, b"");
        let unwanted = request(&requests);
        drop(given_up);
        nothing(&events, Duration::from_millis(50));
        drop(unwanted);
        drop(listener);
        let (_refused, events) = connect(&a, address, b"");
        assert_eq!(rejected(next(&events)), (RejReason::INVALID_SERVICE_ID, Vec::new()));
        assert_eq!(a.qp.state(), QpState::Init, "it can be used for the next one");
        let (two, three) = (port(address), port(address));
        let (sink, _events) = self::events();
        two.listen(1, sink.clone()).unwrap();
        let taken = three.listen(1, sink).unwrap_err();
        assert!(matches!(taken, CmError::InUse(_)), "{taken:?}");
    });
}

#[test]
fn responders_of_other_protocols() {
    inside("responders_of_other_protocols", || {
        device();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let a = end(4, 4096);
        let (_garbage, events) = connect(&a, address, b"");
        let (mut stream, _) = server.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        assert!(matches!(next(&events), EventKind::Failed(CmError::Protocol)));
        let octets = rest(&mut stream);
        let terminate = octets.get(24..).expect("the request, and a Terminate");
        assert_eq!(&terminate[..4], b"\x00\x16\x41\x47", "{octets:x?}");
        assert_eq!(&terminate[20..22], b"\x20\x04", "MPA: a bad frame");
        let (_closed, events) = connect(&a, address, b"");
        for _ in [2, 1] {
            drop(server.accept().unwrap());
        }
        assert_eq!(rejected(next(&events)).0, RejReason::CONSUMER);
        let (_silent, events) = connect(&a, address, b"");
        let (_stream, _) = server.accept().unwrap();
        let start = Instant::now();
        assert!(matches!(next(&events), EventKind::Unreachable));
        assert!(start.elapsed() >= Duration::from_secs(9));
    });
}

/// RFC 5044 7.1.1: a responder closes the connection at a request of a revision that it does not know. RFC 6581 10: the initiator then
/// asks in revision 1, in which the ends do not exchange their depths.
#[test]
fn responders_of_revision_1() {
    inside("responders_of_revision_1", || {
        device();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        // The first peer closes in silence, and the second one answers in its own revision.
        for first_answer in [&b""[..], b"MPA ID Rep Frame\x00\x01\0\0"] {
            let a = end(4, 4096);
            let (_connection, events) = connect(&a, address, b"question");
            let (mut stream, from) = server.accept().unwrap();
            let mut request = [0; 32];
            stream.read_exact(&mut request).unwrap();
            assert_eq!(request[17], 2);
            stream.write_all(first_answer).unwrap();
            if first_answer.is_empty() {
                drop(stream);
            } else {
                assert_eq!(rest(&mut stream), b"", "closed without a Terminate");
            }
            let (mut stream, again) = server.accept().unwrap();
            assert_eq!(again, from, "the port that the program has");
            let mut request = [0; 28];
            stream.read_exact(&mut request).unwrap();
            assert_eq!((&request[17..20], &request[20..]), (&b"\x01\0\x08"[..], &b"question"[..]));
            stream.write_all(b"MPA ID Rep Frame\x00\x01\0\x06answer").unwrap();
            assert_eq!(established(next(&events)), (4, 8, b"answer".to_vec()), "its own depths");
            let mut fpdu = [0; 20];
            stream.read_exact(&mut fpdu).unwrap();
            assert_eq!(&fpdu[..4], b"\x00\x0e\xc1\x40", "a WRITE of nothing");
            drop(stream);
            assert!(matches!(next(&events), EventKind::Disconnected(_)));
        }
    });
}

#[test]
fn initiators_that_mean_harm_before_the_request() {
    inside("initiators_that_mean_harm_before_the_request", || {
        let (_listener, address, requests) = listen(8);
        let mut garbage = TcpStream::connect(address).unwrap();
        garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(rest(&mut garbage), b"", "closed without an answer");
        let mut behind = TcpStream::connect(address).unwrap();
        behind.write_all(&[REQUEST, b"more"].concat()).unwrap();
        assert_eq!(rest(&mut behind), b"");
        // One octet a second does not reach the end of the request in five seconds, and neither does silence.
        let start = Instant::now();
        let mut slow = TcpStream::connect(address).unwrap();
        let mut silent = TcpStream::connect(address).unwrap();
        let octets = REQUEST.iter().take_while(|octet| {
            std::thread::sleep(Duration::from_secs(1));
            slow.write_all(&[**octet]).is_ok()
        });
        assert!(octets.count() <= 7, "closed");
        assert_eq!(rest(&mut silent), b"");
        assert!(start.elapsed() >= Duration::from_secs(5));
        nothing(&requests, Duration::ZERO);
        // A connection takes a place with its request: silent ones are in nobody's way.
        let silent: Vec<_> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
        let a = end(4, 4096);
        let (_connection, _events) = connect(&a, address, b"");
        drop(request(&requests));
        drop(silent);
    });
}

/// A request leaves the backlog when the program fetches it. Those beyond the backlog wait.
#[test]
fn the_backlog_counts_requests_that_the_program_has_not_fetched() {
    inside("the_backlog_counts_requests_that_the_program_has_not_fetched", || {
        let (_listener, address, requests) = listen(2);
        let ask = |_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(REQUEST).unwrap();
            stream
        };
        let _streams: Vec<_> = (0..4).map(ask).collect();
        let (first, second) = (request(&requests), request(&requests));
        nothing(&requests, Duration::from_millis(100));
        first.connection.was_fetched();
        let third = request(&requests);
        nothing(&requests, Duration::from_millis(100));
        drop(second);
        drop((request(&requests), first, third));
    });
}

#[test]
fn initiators_that_mean_harm_behind_the_request() {
    inside("initiators_that_mean_harm_behind_the_request", || {
        let (_listener, address, requests) = listen(8);
        // FIN in the middle of a message.
        let b = end(4, 4096);
        b.receive(1, b.sge(0, 64));
        let (mut stream, _request, _) = by_hand(address, &requests, &b);
        assert!(matches!(next(&requests), EventKind::Established(_)));
        stream.write_all(b"\x00\x22\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0half").unwrap();
        drop(stream);
        assert!(matches!(next(&requests), EventKind::Disconnected(_)));
        assert_eq!(b.complete().status, WcStatus::WrFlushErr);
        // Octets that are no FPDU: a Terminate arrives before the end, although more octets than TCP takes are under way.
        let b = end(4, 4096);
        let (mut stream, _request, _) = by_hand(address, &requests, &b);
        assert!(matches!(next(&requests), EventKind::Established(_)));
        stream.write_all(&[0xff; 300_000]).unwrap();
        let octets = rest(&mut stream);
        assert_eq!(octets.get(2..4), Some(&b"\x41\x47"[..]), "{octets:x?}");
        assert!(matches!(next(&requests), EventKind::Disconnected(_)));
        // A queue pair that is destroyed in the middle of everything.
        let b = end(4, 4096);
        let (mut stream, _request, _) = by_hand(address, &requests, &b);
        stream.write_all(b"\x00\x22\x41\x43\0\0\0\0").unwrap();
        b.qp.destroy();
        assert_eq!(rest(&mut stream), b"");
        assert!(matches!(next(&requests), EventKind::Established(_)));
        assert!(matches!(next(&requests), EventKind::Disconnected(_)));
    });
}

/// The peer asks for peer-to-peer mode, in which the responder waits for the first FPDU, and sends none.
#[test]
fn an_initiator_that_stays_silent_behind_the_reply() {
    inside("an_initiator_that_stays_silent_behind_the_reply", || {
        let (_listener, address, requests) = listen(8);
        let b = end(4, 4096);
        b.receive(1, b.sge(0, 64));
        let mut stream = TcpStream::connect(address).unwrap();
        // RFC 6581: enhanced, peer-to-peer, the first FPDU is a write without payload.
        stream.write_all(b"MPA ID Req Frame\x50\x02\x00\x04\x80\x04\x80\x04").unwrap();
        let request = request(&requests);
        let start = Instant::now();
        accept(&request, &b, b"");
        assert!(matches!(next(&requests), EventKind::Disconnected(_)), "never established");
        assert!(start.elapsed() >= Duration::from_secs(10));
        assert_eq!(b.complete().status, WcStatus::WrFlushErr);
        assert!(rest(&mut stream).starts_with(REPLY));
    });
}

/// Without peer-to-peer mode the responder sends first only when the peer has read the reply (RFC 5044 7.1.2).
#[test]
fn a_responder_that_has_the_first_word() {
    inside("a_responder_that_has_the_first_word", || {
        let (_listener, address, requests) = listen(8);
        let b = end(4, 4096);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(REQUEST).unwrap();
        let request = request(&requests);
        let start = Instant::now();
        accept(&request, &b, b"");
        b.post(1, SendOp::Send, b.sge(0, 8));
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reply = [0; 1024];
        assert_eq!(stream.read(&mut reply).unwrap(), 24, "the reply alone");
        let mut message = [0; 32];
        stream.read_exact(&mut message).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert_eq!(&message[..4], b"\x00\x1a\x41\x43");
        b.expect(1, WcOpcode::Send);
        b.qp.modify(&QpAttr { state: QpState::Error, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
        assert!(matches!(next(&requests), EventKind::Established(_)));
        assert!(matches!(next(&requests), EventKind::Disconnected(_)));
        assert_eq!(rest(&mut stream), b"");
    });
}

/// siw flushes on FIN what it has not completed yet. A process that drops the connection and exits gives it the same 20 ms as one that
/// disconnects, and so do one that drops the queue pair alone, as perftest does, and one that drops nothing. The least time is a rule, so the
/// test looks at the clock.
#[test]
fn fin_waits_although_the_process_exits() {
    inside("fin_waits_although_the_process_exits", || {
        if let Ok(peer) = std::env::var(PEER) {
            device();
            let a = end(4, 4096);
            a.receive(1, a.sge(0, 64));
            let (connection, events) = connect(&a, peer.parse().unwrap(), b"");
            established(next(&events));
            a.expect(1, WcOpcode::Recv);
            match &*std::env::var(DROPS).unwrap() {
                "connection" => drop(connection),
                "queue pair" => a.qp.try_destroy().unwrap(),
                _ => {}
            }
            std::process::exit(0);
        }
        for drops in ["connection", "queue pair", "nothing"] {
            let waited = fin_of_a_process(drops);
            assert!(waited >= Duration::from_millis(20), "{drops} dropped: FIN after {waited:?}");
        }
    });
}

/// The time between the last octets that a process of this test receives and its FIN.
fn fin_of_a_process(drops: &str) -> Duration {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "fin_waits_although_the_process_exits", "--nocapture", "--test-threads=1"]);
    command.env(DROPS, drops);
    let mut child = command.env(PEER, server.local_addr().unwrap().to_string()).spawn().unwrap();
    server.set_nonblocking(true).unwrap();
    let begun = Instant::now();
    let mut stream = loop {
        match server.accept() {
            Ok((stream, _)) => break stream,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                assert!(begun.elapsed() < PATIENCE && child.try_wait().unwrap().is_none(), "no connection");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 24]).unwrap();
    // siw's answer has no bit for the extensions of RFC 7306, by which the process knows another stack.
    stream.write_all(b"MPA ID Rep Frame\x10\x02\x00\x04\x00\x01\x00\x01").unwrap();
    stream.read_exact(&mut [0; 20]).expect("the initiator's first FPDU: a write of nothing");
    let start = Instant::now();
    let header = SegmentHeader::untagged(Opcode::Send, 1);
    let mut fpdu = (header.len() as u16).to_be_bytes().to_vec();
    fpdu.extend(&header.emit()[..header.len()]);
    let mut crc = Crc32c::new();
    crc.update(&fpdu);
    fpdu.extend(crc.octets());
    stream.write_all(&fpdu).unwrap();
    assert_eq!(rest(&mut stream), b"");
    let waited = start.elapsed();
    assert!(child.wait().unwrap().success());
    waited
}

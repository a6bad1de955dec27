// Applies one input to the parsers of ferroce-wire. Included by the fuzz target and by the test that replays its
// corpus, so it has no doc comment of its own.

use ferroce_wire::icrc::{self, Icrc, Verdict};
use ferroce_wire::{BatchLimits, Flow, Frame, IcrcChecker, Packet, Sink, TxBatch};

/// First octet: what the rest is. Panics on a broken promise.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => frame(Frame::parse(bytes)),
        1 => frame(Frame::parse_ip(bytes)),
        _ => packet(&ROCE, 0, bytes),
    }
}

const ROCE: Flow = Flow {
    source: std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
    destination: std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)),
    source_port: 0xc123,
    traffic_class: 0,
    hop_limit: 64,
    link: ferroce_wire::LinkLayer::UDP,
};

fn frame<E>(parsed: Result<Frame<'_>, E>) {
    let Ok(frame) = parsed else { return };
    let _ = frame.icrc_holds();
    let id = frame.ip_id().unwrap_or(0);
    match frame.flow() {
        Some(flow) => packet(&flow, id, frame.transport),
        None => packet(&ROCE, 0, frame.transport),
    }
}

fn packet(flow: &Flow, id: u16, transport: &[u8]) {
    // With the ICRC put right, so that a fuzzer need not guess it.
    let mut sealed = transport.to_vec();
    icrc::seal(flow, id, &mut sealed);
    if sealed.len() >= 4 {
        assert!(icrc::verify(flow, id, &sealed));
        let mut pieces = Icrc::new(flow, id, sealed.len());
        sealed[..sealed.len() - 4].chunks(5).for_each(|piece| pieces.update(piece));
        assert_eq!(Some(pieces.finish()), icrc::stored(&sealed));
        let verdict = IcrcChecker::new().check(flow, &sealed);
        assert!(matches!(verdict, Verdict::Good | Verdict::Solved(_)), "{verdict:?}");
    }

    let Ok(packet) = Packet::parse(&sealed) else { return };
    let payload = packet.op.payload();
    let mut out = vec![0xee; sealed.len()];
    assert_eq!(packet.emit(&mut out), Ok(sealed.len()));
    assert_eq!(Packet::parse(&out), Ok(packet), "meaning is kept");
    assert_eq!(out[packet.header_len().unwrap()..][..payload.len()], *payload);
    assert!(packet.emit(&mut out[1..]).is_err());

    let mut buf = vec![0xee; sealed.len() + 7];
    let mut batch = TxBatch::new(&mut buf, BatchLimits { max_segments: 64, gso: id & 1 != 0 });
    let pushed = batch.push(flow, &packet, payload.len(), |to| {
        to.copy_from_slice(payload);
        Ok::<_, ()>(())
    });
    assert_eq!(pushed, Ok(()));
    assert!(batch.segments().all(|segment| icrc::verify(flow, 0, segment)));
    let end = out.len() - 4;
    assert_eq!(batch.bytes()[..end], out[..end]);
}

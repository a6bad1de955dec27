//! Queue pair 1: the broker's own socket on each local address, and MADs in and out of datagrams.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_cm::{Route, Transmit};
use ferroce_datapath::udp::{RxBuffer, RxSocket, TxSocket, source_ports};
use ferroce_wire::icrc::{IcrcChecker, Verdict};
use ferroce_wire::mad::MAD_LEN;
use ferroce_wire::{
    BatchLimits, Bth, Deth, Flow, Frame, IcrcStatus, LinkLayer, Operation, Packet, Pkey, Psn, Qkey, Qpn,
    RoceVersion, Sink, TxBatch, UdPacket,
};
use tracing::{debug, warn};

use ferroce_host::fork::Guarded;
use ferroce_host::netdev::Address;

/// Octets asked of the kernel for requests that wait.
const RECEIVE_BUFFER: usize = 1 << 20;
/// Receive calls on one address before others have their turn.
const ROUNDS: usize = 8;
/// Hop limit of MADs in RoCE v1, which leave no subnet.
const HOP_LIMIT: u8 = 64;
/// A MAD with headers and ICRC, and room to spare.
const PACKET: usize = 512;

/// Queue pair 1 of every local address. Made with the first of them.
#[derive(Default)]
pub struct Gsi {
    ends: BTreeMap<Address, End>,
    receiver: Option<Box<Receiver>>,
    secret: u64,
    /// Datagrams that held no MAD.
    no_mad: u64,
    /// Counters of each address.
    traffic: BTreeMap<Address, Traffic>,
}

/// Packets of queue pair 1 and their octets, since this was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub rcvd_pkts: u64,
    pub rcvd_octets: u64,
    pub sent_pkts: u64,
    pub sent_octets: u64,
    pub send_err: u64,
}

struct End {
    rx: Guarded<RxSocket>,
    tx: Option<Guarded<TxSocket>>,
    psn: Psn,
}

struct Receiver {
    buffer: RxBuffer,
    icrc: IcrcChecker,
}

impl std::fmt::Debug for Gsi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.ends.keys()).finish()
    }
}

impl Gsi {
    /// `secret` spreads source ports.
    pub fn new(secret: u64) -> Self {
        Self { secret, ..Self::default() }
    }

    /// Serves these addresses and no others; `member` duplicates the broker's own socket of one.
    pub fn follow(&mut self, addresses: &[Address], member: impl Fn(Address) -> io::Result<OwnedFd>) {
        // All anew: a group may have been opened again under the same address.
        self.ends.clear();
        for address in addresses {
            let opened = member(*address).and_then(RxSocket::from_fd).and_then(|rx| {
                rx.set_rcvbuf(RECEIVE_BUFFER)?;
                Ok(End { rx: Guarded::new(rx), tx: None, psn: Psn::new(0) })
            });
            match opened {
                Ok(end) => {
                    self.ends.insert(*address, end);
                }
                Err(e) => warn!(%address, "no connection management here: {e}"),
            }
        }
    }

    /// The descriptors to wait for, by address.
    pub fn descriptors(&self) -> impl Iterator<Item = (Address, BorrowedFd<'_>)> {
        self.ends.iter().map(|(address, end)| (*address, end.rx.as_fd()))
    }

    /// Takes what waits on one address, with a right ICRC if that is to be checked; whether there may be
    /// more.
    pub fn receive(&mut self, address: Address, check: bool, mut take: impl FnMut(Route, &[u8])) -> bool {
        let Some(end) = self.ends.get(&address) else { return false };
        let receiver = self
            .receiver
            .get_or_insert_with(|| Box::new(Receiver { buffer: RxBuffer::new(), icrc: IcrcChecker::new() }));
        let Receiver { buffer, icrc } = &mut **receiver;
        for _ in 0..ROUNDS {
            match end.rx.recv(buffer) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(e) => {
                    debug!(%address, "cannot receive: {e}");
                    return false;
                }
            }
            let traffic = self.traffic.entry(address).or_default();
            for datagram in buffer.datagrams() {
                traffic.rcvd_pkts += 1;
                traffic.rcvd_octets += datagram.bytes.len() as u64;
                let flow = Flow {
                    source: datagram.source,
                    destination: address.ip,
                    source_port: datagram.source_port,
                    traffic_class: 0,
                    hop_limit: 0,
                    link: Default::default(),
                };
                let honest = is_honest(&self.ends, address.scope_id, &flow);
                match honest.and_then(|()| mad(check.then_some(&mut *icrc), &flow, datagram.bytes)) {
                    Ok(mad) => {
                        let route =
                            Route { local: address.ip, remote: datagram.source, interface: address.scope_id };
                        take(route, mad);
                    }
                    Err(why) => {
                        self.no_mad = self.no_mad.wrapping_add(1);
                        debug!(source = %datagram.source, "dropped a datagram to queue pair 1: {why}")
                    }
                }
            }
        }
        true
    }

    /// Takes the counters of each address since the last call.
    pub fn take_traffic(&mut self) -> BTreeMap<Address, Traffic> {
        std::mem::take(&mut self.traffic)
    }

    /// Datagrams that held no MAD, since this was last asked.
    pub fn take_no_mad(&mut self) -> u64 {
        std::mem::take(&mut self.no_mad)
    }

    /// Whether queue pair 1 of this address is ours.
    pub fn serves(&self, address: Address) -> bool {
        self.ends.contains_key(&address)
    }

    /// Sends a MAD. If the socket cannot send it, it is lost, as a packet on the way may be.
    pub fn send(&mut self, transmit: &Transmit) {
        let Route { local, remote, interface } = transmit.route;
        let Some(end) = self.ends.get_mut(&Address { ip: local, scope_id: interface }) else {
            debug!(%local, "no address to send from");
            return;
        };
        let tx = match &end.tx {
            Some(tx) => tx,
            None => match sender(self.secret, local, interface) {
                Ok(tx) => end.tx.insert(Guarded::new(tx)),
                Err(e) => {
                    warn!(%local, "cannot send MADs: {e}");
                    return;
                }
            },
        };
        let flow = Flow {
            source: local,
            destination: remote,
            source_port: tx.port(),
            traffic_class: transmit.traffic_class,
            hop_limit: 0,
            link: Default::default(),
        };
        let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI };
        let head = Packet {
            bth: Bth::new(Qpn::GSI, end.psn),
            op: Operation::Ud(UdPacket { deth, payload: &[], imm: None }),
            icrc: IcrcStatus::Pending,
        };
        end.psn = end.psn.next();
        let mut octets = [0; PACKET];
        let mut batch = TxBatch::new(&mut octets, tx.limits());
        if let Err(e) = batch.push(&flow, &head, MAD_LEN, fill(transmit)) {
            warn!("a MAD cannot be written: {e}");
            return;
        }
        let traffic = self.traffic.entry(Address { ip: local, scope_id: interface }).or_default();
        traffic.sent_pkts += 1;
        traffic.sent_octets += batch.bytes().len() as u64;
        match tx.send(&mut batch) {
            Ok(sent) if sent.lost == 0 => {}
            Ok(sent) => {
                traffic.send_err += 1;
                debug!(%remote, reason = ?sent.reason, "a MAD was not sent");
            }
            Err(e) => {
                traffic.send_err += 1;
                warn!("{e}");
                end.tx = None;
            }
        }
    }
}

/// Refuses a datagram that claims to come from queue pair 1 of this broker and does not. Any program of the
/// host may send from the host's addresses, but only the broker can send from the port that its own socket is
/// bound to.
fn is_honest(ends: &BTreeMap<Address, End>, scope_id: u32, flow: &Flow) -> Result<(), &'static str> {
    let [first, last] = [0, u32::MAX].map(|scope_id| Address { ip: flow.source, scope_id });
    // A link-local address on another interface is another host's, even if it is equal.
    let there = |own: &Address| own.scope_id == 0 || scope_id == 0 || own.scope_id == scope_id;
    let mut own = ends.range(first..=last).filter(|(own, _)| there(own)).map(|(_, end)| end).peekable();
    let none = own.peek().is_none();
    match none || own.any(|end| end.tx.as_ref().is_some_and(|tx| tx.port() == flow.source_port)) {
        true => Ok(()),
        false => Err("claims an address of ours"),
    }
}

/// A MAD as a packet of RoCE v1, from the GRH on, and its addressing.
pub fn frame(transmit: &Transmit) -> Option<(Flow, Vec<u8>)> {
    let Route { local, remote, .. } = transmit.route;
    let flow = Flow {
        source: local,
        destination: remote,
        source_port: 0,
        traffic_class: transmit.traffic_class,
        hop_limit: HOP_LIMIT,
        link: LinkLayer { version: RoceVersion::V1, sl: 0, ifindex: transmit.route.ifindex() },
    };
    let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI };
    let head = Packet {
        bth: Bth::new(Qpn::GSI, Psn::new(0)),
        op: Operation::Ud(UdPacket { deth, payload: &[], imm: None }),
        icrc: IcrcStatus::Pending,
    };
    let mut octets = [0; PACKET];
    let mut batch = TxBatch::new(&mut octets, BatchLimits { max_segments: 1, gso: false });
    batch.push(&flow, &head, MAD_LEN, fill(transmit)).inspect_err(|e| warn!("no MAD: {e}")).ok()?;
    let mut headers = [0; 48];
    let len = flow.write_headers(0, batch.bytes().len(), &mut headers);
    Some((flow, [&headers[..len], batch.bytes()].concat()))
}

/// The MAD in a packet of RoCE v1 that came by interface `ifindex`, from the GRH on.
pub fn of_frame(ifindex: u32, packet: &[u8]) -> Result<(Route, &[u8]), &'static str> {
    let frame = Frame::parse_grh(packet).map_err(|_| "malformed")?;
    if !frame.icrc_holds() {
        return Err("wrong ICRC");
    }
    let way = frame.way();
    let route = Route { local: way.destination, remote: way.source, interface: ifindex | Route::V1 };
    Ok((route, mad_of(frame.transport)?))
}

fn fill(transmit: &Transmit) -> impl FnOnce(&mut [u8]) -> Result<(), std::convert::Infallible> {
    |to| {
        to.copy_from_slice(&transmit.mad[..]);
        Ok(())
    }
}

/// The socket for all MADs of an address: the receiver of each is slot 0.
fn sender(secret: u64, local: std::net::IpAddr, scope_id: u32) -> io::Result<TxSocket> {
    let mut failure = io::ErrorKind::AddrInUse.into();
    for port in source_ports(secret, local, 0, 1, 1) {
        match TxSocket::bind(local, scope_id, port) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => failure = e,
            other => return other,
        }
    }
    Err(failure)
}

/// The MAD in a datagram that is for queue pair 1; without `icrc` the ICRC is not looked at (IBTA 13.5.3,
/// 9.6).
fn mad<'a>(icrc: Option<&mut IcrcChecker>, flow: &Flow, bytes: &'a [u8]) -> Result<&'a [u8], &'static str> {
    if icrc.is_some_and(|icrc| icrc.check(flow, bytes) == Verdict::Bad) {
        return Err("wrong ICRC");
    }
    mad_of(bytes)
}

fn mad_of(bytes: &[u8]) -> Result<&[u8], &'static str> {
    let packet = Packet::parse(bytes).map_err(|_| "malformed")?;
    let Operation::Ud(UdPacket { deth, payload, imm: None }) = packet.op else { return Err("no MAD") };
    if packet.bth.dest_qp != Qpn::GSI {
        return Err("another queue pair");
    }
    if deth.qkey != Qkey::GSI {
        return Err("wrong Q_Key");
    }
    if !packet.bth.pkey.matches(Pkey::DEFAULT) {
        return Err("wrong P_Key");
    }
    if payload.len() != MAD_LEN {
        return Err("not 256 octets");
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Flow {
        let ip = [192, 0, 2, 1].into();
        Flow {
            source: ip,
            destination: ip,
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            link: Default::default(),
        }
    }

    fn datagram(change: impl Fn(&mut Packet<'_>), len: usize) -> Vec<u8> {
        let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI };
        let mut head = Packet {
            bth: Bth::new(Qpn::GSI, Psn::new(5)),
            op: Operation::Ud(UdPacket { deth, payload: &[], imm: None }),
            icrc: IcrcStatus::Pending,
        };
        change(&mut head);
        let mut octets = [0; 1024];
        let mut batch = TxBatch::new(&mut octets, BatchLimits { max_segments: 1, gso: false });
        let fill = |to: &mut [u8]| {
            to.fill(7);
            Ok::<(), std::convert::Infallible>(())
        };
        batch.push(&flow(), &head, len, fill).unwrap();
        batch.bytes().to_vec()
    }

    fn judge(bytes: &[u8]) -> Result<usize, &'static str> {
        mad(Some(&mut IcrcChecker::new()), &flow(), bytes).map(<[u8]>::len)
    }

    fn deth<'p>(packet: &'p mut Packet<'_>) -> &'p mut Deth {
        let Operation::Ud(datagram) = &mut packet.op else { unreachable!() };
        &mut datagram.deth
    }

    #[test]
    fn packets_that_are_no_mad_for_this_port_are_dropped() {
        let good = datagram(|_| {}, MAD_LEN);
        assert_eq!(judge(&good), Ok(MAD_LEN));
        let mut spoiled = good.clone();
        spoiled[70] ^= 1;
        assert_eq!(judge(&spoiled), Err("wrong ICRC"));
        let unchecked = mad(None, &flow(), &spoiled);
        assert_eq!(unchecked.map(<[u8]>::len), Ok(MAD_LEN), "where nobody looks at it");
        for (why, change) in [
            ("another queue pair", (|packet| packet.bth.dest_qp = Qpn::new(2)) as fn(&mut Packet<'_>)),
            ("wrong Q_Key", |packet| deth(packet).qkey = Qkey::new(5)),
            ("wrong P_Key", |packet| packet.bth.pkey = Pkey::new(0x8001)),
        ] {
            assert_eq!(judge(&datagram(change, MAD_LEN)), Err(why));
        }
        for len in [0, 252, 260] {
            assert_eq!(judge(&datagram(|_| {}, len)), Err("not 256 octets"));
        }
    }

    /// rxe asks for acknowledgements of datagrams.
    #[test]
    fn the_ack_request_bit_of_a_mad_is_ignored() {
        assert_eq!(judge(&datagram(|packet| packet.bth.ack_req = true, MAD_LEN)), Ok(MAD_LEN));
    }
}

//! Packets of RoCE v2 to multicast groups leave by UDP sockets, which need no privilege.
//!
//! A group may have members on the sending host, and they listen on UDP sockets. The kernel gives them a copy
//! of each datagram that its IP stack sends, but not of a frame that a packet socket or a port of DPDK sends.
//!
//! On a loopback interface a frame cannot carry them at all. The IP stack routes each received frame anew,
//! also one from `lo`, and discards what comes from 127.0.0.1 to a group, because it takes such a source for
//! a forgery. A datagram that the stack sends itself keeps its route when it comes back from `lo`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use ferroce_datapath::udp::TxSocket;
use ferroce_host::fork::Guarded;
use ferroce_wire::{Encapsulation, Frame};
use tracing::debug;

use super::rules::Reason;

/// Sockets that are open at a time. Programs of this version use one source port at each address.
const MOST: usize = 64;

/// The sending sockets of one interface, by local address and source port.
#[derive(Debug, Default)]
pub struct GroupSockets(BTreeMap<(IpAddr, u16), Guarded<TxSocket>>);

impl GroupSockets {
    /// Sends a packet of RoCE v2, from the IP header on, to the members of its group on interface `ifindex`.
    ///
    /// # Errors
    /// [`Reason::Refused`] if the kernel does not send it, or if another program has its source port, which
    /// the ICRC covers.
    pub fn send(&mut self, ifindex: u32, packet: &[u8]) -> Result<(), Reason> {
        let frame = Frame::parse_ip(packet).map_err(|_| Reason::Malformed)?;
        let flow = frame.way();
        if !matches!(frame.encapsulation, Encapsulation::V2 { .. }) || !flow.destination.is_multicast() {
            return Err(Reason::Malformed);
        }
        let key = (flow.source, flow.source_port);
        if self.0.len() >= MOST && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let socket = match self.0.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let opened = TxSocket::bind(flow.source, 0, flow.source_port)
                    .and_then(|socket| socket.set_multicast_interface(ifindex).map(|()| socket));
                let refused = |e| {
                    debug!(ifindex, source = %flow.source, "no socket for packets to groups: {e}");
                    Reason::Refused
                };
                place.insert(Guarded::new(opened.map_err(refused)?))
            }
        };
        if socket.send_datagram(&flow, frame.transport).is_ok_and(|sent| sent.lost == 0) {
            return Ok(());
        }
        // The address may be gone, and come back.
        self.0.remove(&key);
        Err(Reason::Refused)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ferroce_datapath::udp::{RxBuffer, RxSocket};
    use ferroce_host::netdev::Netdev;
    use ferroce_wire::Flow;

    use super::*;

    const TRANSPORT: [u8; 40] = [7; 40];

    fn packet(source: &str, group: &str, source_port: u16) -> Vec<u8> {
        let flow = Flow {
            source: source.parse().expect("an address"),
            destination: group.parse().expect("an address"),
            source_port,
            traffic_class: 0,
            hop_limit: 1,
            link: Default::default(),
        };
        let mut headers = [0; 48];
        let len = flow.write_headers(0, TRANSPORT.len(), &mut headers);
        [&headers[..len], &TRANSPORT].concat()
    }

    #[test]
    fn members_on_lo_receive_what_is_sent() {
        let lo = Netdev::assumed_loopback().ifindex;
        let [.., high, low] = std::process::id().to_be_bytes();
        let group = format!("239.195.{high}.{low}");
        let member = RxSocket::join(group.parse().expect("an address"), lo).expect("no privilege is needed");
        let mut sockets = GroupSockets::default();
        let free = std::net::UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = free.expect("a free port").port();
        for _ in 0..2 {
            assert_eq!(sockets.send(lo, &packet("127.0.0.1", &group, port)), Ok(()));
        }
        assert_eq!(sockets.0.len(), 1);
        let mut buffer = RxBuffer::new();
        let (mut got, deadline) = (0, Instant::now() + Duration::from_secs(5));
        while got < 2 && Instant::now() < deadline {
            member.recv(&mut buffer).expect("a socket that works");
            for datagram in buffer.datagrams() {
                assert_eq!((datagram.bytes, datagram.source_port), (&TRANSPORT[..], port));
                got += 1;
            }
        }
        assert_eq!(got, 2);
    }

    #[test]
    fn what_cannot_be_sent_is_an_error() {
        let lo = Netdev::assumed_loopback().ifindex;
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let port = taken.local_addr().expect("bound").port();
        let mut sockets = GroupSockets::default();
        assert_eq!(sockets.send(lo, &packet("127.0.0.1", "239.195.1.1", port)), Err(Reason::Refused));
        assert_eq!(sockets.send(lo, &packet("192.0.2.1", "239.195.1.1", 0xc0ff)), Err(Reason::Refused));
        assert_eq!(sockets.send(lo, &packet("127.0.0.1", "127.0.0.1", 0xc0ff)), Err(Reason::Malformed));
        assert_eq!(sockets.send(lo, &[0x45; 20]), Err(Reason::Malformed));
        assert!(sockets.0.is_empty());
    }

    #[test]
    fn a_program_that_uses_every_port_opens_few_sockets() {
        let lo = Netdev::assumed_loopback().ifindex;
        let mut sockets = GroupSockets::default();
        for port in 0xd000..0xd000 + 3 * MOST as u16 {
            let _ = sockets.send(lo, &packet("127.0.0.1", "239.195.1.1", port));
            assert!(sockets.0.len() <= MOST);
        }
        assert!(!sockets.0.is_empty());
    }
}

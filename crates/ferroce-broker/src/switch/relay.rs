//! Packets of RoCE v2 between the rings of programs without sockets and UDP sockets that the broker keeps.
//!
//! A program of another user gets no socket of a group: its holder could detach the group's BPF program, or
//! connect the socket to a peer, and so take the packets of others. Neither is there a member for each of
//! more than a few hundred programs. The broker receives from the sockets of divided members, checks the
//! ICRC, and writes an IP header with identification 0 in front. It sends from sockets of its own and
//! computes the ICRC anew, because the source port and the identification are the socket's.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ferroce_datapath::udp::{Class, Datagram, RxBuffer, RxSocket, TxPorts, TxSocket};
use ferroce_host::fork::Guarded;
use ferroce_host::netdev::Address;
use ferroce_wire::icrc::{self, IcrcChecker, Verdict};
use ferroce_wire::{Flow, LinkLayer, Qpn, RoceVersion};
use tracing::{debug, warn};

use super::rules::Reason;
use super::table::Table;
use super::view::RelayView;

/// The socket of a divided member.
#[derive(Debug)]
pub(super) struct Relay {
    view: RelayView,
    /// The count of changes of the groups when it was opened.
    epoch: u64,
    socket: Guarded<RxSocket>,
}

impl Relay {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The sockets of divided members, and those that send for their programs.
#[derive(Debug, Default)]
pub(super) struct Relays {
    pub(super) sockets: Vec<Arc<Relay>>,
    /// Source ports, by local address.
    ports: BTreeMap<(IpAddr, u32), TxPorts>,
    /// Sockets, by local address, member of the destination and priority.
    senders: BTreeMap<(IpAddr, u32, u8, u8), Arc<TxSocket>>,
}

/// The memory that receiving needs.
pub(super) struct RelayBuffers {
    datagrams: RxBuffer,
    icrc: IcrcChecker,
    packet: Vec<u8>,
}

impl RelayBuffers {
    pub(super) fn new() -> Self {
        Self { datagrams: RxBuffer::new(), icrc: IcrcChecker::new(), packet: Vec::new() }
    }
}

impl Relays {
    /// Serves these members from now on. `open` hands out the socket of a member.
    pub(super) fn follow(
        &mut self,
        views: Vec<RelayView>,
        epoch: u64,
        mut open: impl FnMut(Address, u8) -> io::Result<OwnedFd>,
    ) {
        let mut before = std::mem::take(&mut self.sockets);
        for view in views {
            if let Some(place) = before.iter().position(|relay| relay.view == view && relay.epoch == epoch) {
                self.sockets.push(before.swap_remove(place));
                continue;
            }
            let opened = open(view.address, view.member).and_then(|fd| {
                let socket = RxSocket::from_fd(fd)?;
                socket.receive_headers()?;
                Ok(Arc::new(Relay { view, epoch, socket: Guarded::new(socket) }))
            });
            match opened {
                Ok(relay) => self.sockets.push(relay),
                Err(e) => warn!(address = %view.address, member = view.member, "nothing is received: {e}"),
            }
        }
        let sockets = &self.sockets;
        let served = |ip: IpAddr, scope_id: u32| {
            sockets.iter().any(|relay| relay.view.address == Address { ip, scope_id })
        };
        self.ports.retain(|(ip, scope_id), _| served(*ip, *scope_id));
        self.senders.retain(|(ip, scope_id, ..), _| served(*ip, *scope_id));
    }

    /// Sends the octets from BTH to ICRC of a packet that passed the rules.
    pub(super) fn send(&mut self, way: &Flow, dest_qp: Qpn, transport: &mut [u8]) -> Result<(), Reason> {
        let Address { ip, scope_id } = Address::of(way.source, way.link.ifindex);
        let class = Class { traffic_class: 0, service_level: way.link.sl & 7 };
        let key = (ip, scope_id, dest_qp.member(), class.service_level);
        let socket = match self.senders.get(&key) {
            Some(socket) => Arc::clone(socket),
            None => {
                let ports = self.ports.entry((ip, scope_id)).or_insert_with(|| TxPorts::new(ip, scope_id, 0));
                let opened = ports.get_any(way.destination, dest_qp.member(), class).and_then(|socket| {
                    socket.set_multicast_interface(way.link.ifindex)?;
                    Ok(socket)
                });
                let socket = opened.map_err(|e| {
                    debug!(%ip, "no socket for a program's packets: {e}");
                    Reason::Refused
                })?;
                self.senders.insert(key, Arc::clone(&socket));
                socket
            }
        };
        let flow = Flow { source_port: socket.port(), link: LinkLayer::default(), ..*way };
        icrc::seal(&flow, 0, transport);
        match socket.send_datagram(&flow, transport) {
            Ok(sent) if sent.lost == 0 => Ok(()),
            Ok(_) => Err(Reason::Refused),
            Err(e) => {
                debug!(%ip, "a program's packet cannot be sent: {e}");
                self.senders.remove(&key);
                Err(Reason::Refused)
            }
        }
    }
}

impl Table {
    /// Takes some of what arrived for the programs of a divided member. Returns whether there may be more.
    pub(super) fn receive_relayed(&mut self, relay: &Relay, buffers: &mut RelayBuffers) -> bool {
        let RelayBuffers { datagrams, icrc, packet } = buffers;
        let RelayView { ifindex, .. } = relay.view;
        match relay.socket.recv(datagrams) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(e) => {
                debug!(ifindex, "cannot receive: {e}");
                return false;
            }
        }
        for datagram in datagrams.datagrams() {
            if let Err(reason) = self.take_relayed(relay, &datagram, icrc, packet) {
                self.count(ifindex, reason);
            }
        }
        true
    }

    fn take_relayed(
        &mut self,
        relay: &Relay,
        datagram: &Datagram<'_>,
        icrc: &mut IcrcChecker,
        packet: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        let RelayView { address, member, ifindex, checks } = relay.view;
        let [_, _, _, _, _, a, b, c, ..] = *datagram.bytes else { return Err(Reason::Malformed) };
        let dest_qp = Qpn::from_be_bytes([a, b, c]);
        let way = Flow {
            source: datagram.source,
            destination: address.ip,
            source_port: datagram.source_port,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            link: LinkLayer::default(),
        };
        packet.clear();
        packet.extend_from_slice(datagram.bytes);
        if checks {
            match icrc.check(&way, packet) {
                Verdict::Good => {}
                // The program sees a header with identification 0.
                Verdict::Solved(_) => icrc::seal(&way, 0, packet),
                Verdict::Bad => return Err(Reason::Icrc),
            }
        }
        if dest_qp.member() != member {
            return Err(Reason::Slot);
        }
        let mut headers = [0; 48];
        let len = way.write_headers(0, packet.len(), &mut headers);
        let link = LinkLayer { version: RoceVersion::V2, sl: 0, ifindex };
        self.deliver(link, dest_qp, headers.get(..len).unwrap_or_default(), packet);
        Ok(())
    }
}

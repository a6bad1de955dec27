//! The receive sockets of hosts and the processes behind them.

use std::fmt;
use std::time::Duration;

use ferroce_fault::Dir;
use ferroce_proto::NoSharedQueue;

use super::{Carried, Due, EndId, Event, Hosts, PACKET_CHARGE, mark, seat_of};
use crate::faults::{Faults, Tagged, View};
use crate::tcp::{Kind, Segment};
use crate::{Datagram, Frame};

/// The faults of a process. A packet that waits knows whether it leaves or came, and its queue pair.
pub(super) type OwnFaults = Faults<'static, Tagged<(Dir, usize), Carried>>;

impl Hosts<'_> {
    /// A packet reaches the socket of a host.
    pub(super) fn arrive(&mut self, index: usize, packet: Carried) {
        let host = &mut self.hosts[index];
        if let Carried::Tcp(segment) = packet {
            self.take_segment(segment);
            return;
        }
        let charge = packet.wire_len() as u64 + PACKET_CHARGE;
        if host.octets + charge > host.socket.buffer as u64 {
            host.stats.dropped += 1;
            return;
        }
        host.octets += charge;
        host.stats.longest = host.stats.longest.max(host.octets);
        host.waiting.push_back(packet);
        if host.in_hand.is_empty() {
            self.take(index);
        }
    }

    /// The process takes a batch from its socket.
    fn take(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let count = host.waiting.len().min(host.socket.batch.max(1));
        if count == 0 {
            return;
        }
        host.in_hand.extend(host.waiting.drain(..count));
        let octets: u64 = host.in_hand.iter().map(|packet| packet.wire_len() as u64 + PACKET_CHARGE).sum();
        host.octets -= octets;
        host.stats.taken += count as u64;
        let jitter = Duration::from_nanos(host.rng.below(host.socket.jitter.as_nanos() as u64 + 1));
        let done = self.now + host.socket.per_packet * count as u32 + jitter;
        self.due.insert((done, Due::Process(index)));
    }

    /// The process is done with its batch.
    pub(super) fn process(&mut self, index: usize) {
        for packet in std::mem::take(&mut self.hosts[index].in_hand) {
            if let Carried::Roce(frame) = packet {
                self.handle(index, &frame);
            }
        }
        self.take(index);
    }

    /// The seat of a packet that reached a host.
    fn seat(&self, host: usize, frame: &Frame) -> Option<usize> {
        let of_host = |seat: &usize| self.seats.get(*seat).is_some_and(|seat| seat.host == host);
        let dest = ferroce_wire::Packet::parse(&frame.bytes).ok().map(|packet| packet.bth.dest_qp);
        dest.and_then(seat_of).filter(of_host)
    }

    fn handle(&mut self, host: usize, frame: &Frame) {
        let Some(index) = self.seat(host, frame) else { return };
        self.note(mark(frame) ^ 1 << 63);
        self.touched.insert(index);
        if frame.packet().is_none() {
            self.seats[index].end.bad_icrc += 1;
            if let Some(trace) = &mut self.trace {
                trace(self.now, Event::Received(EndId(index), frame, Some(&"wrong ICRC")));
            }
            return;
        }
        let Some(faults) = self.hosts[host].faults.as_mut() else {
            self.deliver(index, frame);
            return;
        };
        let view = View { dir: Dir::Rx, qp: self.seats[index].number, peer: Some(frame.flow.source) };
        let mut out = Vec::new();
        let packet = Tagged { tag: (Dir::Rx, index), packet: Carried::Roce(frame.clone()) };
        faults.send(self.now, &view, packet, &mut out);
        self.go_on(host, out);
    }

    /// A packet of a queue pair leaves its process; the faults of the process first.
    pub(super) fn leave(&mut self, host: usize, index: usize, packet: Carried) {
        let peer = self.seats[index].peer;
        let Some(faults) = self.hosts[host].faults.as_mut() else {
            let to = self.seats[peer].host;
            self.depart(host, to, peer, packet);
            return;
        };
        let destination = match &packet {
            Carried::Roce(frame) => Some(frame.flow.destination),
            Carried::Tcp(_) => None,
        };
        let view = View { dir: Dir::Tx, qp: self.seats[index].number, peer: destination };
        let mut out = Vec::new();
        faults.send(self.now, &view, Tagged { tag: (Dir::Tx, index), packet }, &mut out);
        self.go_on(host, out);
    }

    /// Packets go on behind the faults of their process.
    fn go_on(&mut self, host: usize, packets: Vec<Tagged<(Dir, usize), Carried>>) {
        for Tagged { tag: (dir, index), packet } in packets {
            match (dir, packet) {
                (Dir::Tx, packet) => {
                    let peer = self.seats[index].peer;
                    self.depart(host, self.seats[peer].host, peer, packet);
                }
                (Dir::Rx, Carried::Roce(frame)) => self.deliver(index, &frame),
                (Dir::Rx, Carried::Tcp(_)) => {}
            }
        }
        let next = self.hosts[host].faults.as_ref().and_then(|faults| faults.next());
        let before = std::mem::replace(&mut self.hosts[host].due, next);
        self.replace(Due::Held(host), before, next);
    }

    /// The faults of a process let packets go on.
    pub(super) fn release(&mut self, host: usize) {
        self.hosts[host].due = None;
        let mut out = Vec::new();
        if let Some(faults) = self.hosts[host].faults.as_mut() {
            faults.take(self.now, &mut out);
        }
        self.go_on(host, out);
    }

    /// A queue pair handles a packet.
    fn deliver(&mut self, index: usize, frame: &Frame) {
        self.touched.insert(index);
        let end = &mut self.seats[index].end;
        // A fault may have changed it behind the check.
        let Some(packet) = frame.packet() else {
            end.bad_icrc += 1;
            return;
        };
        let result = end.qp.handle_datagram(self.now, &frame.flow, &packet, &mut NoSharedQueue, &mut end.mem);
        if let Some(trace) = &mut self.trace {
            let reason = result.as_ref().err().map(|reason| reason as &dyn fmt::Debug);
            trace(self.now, Event::Received(EndId(index), frame, reason));
        }
    }

    fn take_segment(&mut self, segment: Segment) {
        let stream = segment.stream;
        self.note(segment.mark() ^ 3 << 60);
        let flow = &mut self.streams[stream].flow;
        let mut out = Vec::new();
        match segment.kind {
            Kind::Data(number) => out.push(flow.receive(self.now, number, &segment)),
            Kind::Ack(to, marked) => flow.acknowledged(self.now, to, marked, segment.sent, &mut out),
        }
        self.send_segments(stream, out);
    }
}

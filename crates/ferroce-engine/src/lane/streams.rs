//! The lane of all iWARP connections of the process.

use ferroce_paths::clock;
use ferroce_paths::streams::{Arrivals, Arrived, Ready, StreamSocket, Streams};
use ferroce_wire::Instant;
use rustix::io::Errno;

use super::{Lane, Receiver};

impl Lane {
    /// Looks at the connections once, and processes what arrived; when that was, or `None` if nothing did.
    /// Few connections are asked one after the other, which is one system call for each of them; of many, the
    /// epoll set knows those that have something.
    pub(super) fn receive_streams(&self, receiver: &mut Receiver, streams: &Streams) -> Option<Instant> {
        let Receiver { streams: arrivals, .. } = receiver;
        let arrivals = arrivals.get_or_insert_with(Arrivals::default);
        let mut last = None;
        match streams.few() {
            Some(few) => {
                for socket in few.iter().flat_map(|few| few.iter()) {
                    let received = self.receive_stream(socket, &mut arrivals.buffer, false);
                    last = received.or(last);
                }
            }
            None => {
                streams.find_ready(arrivals);
                let Arrivals { buffer, ready, .. } = arrivals;
                for Ready { socket, room, arrived } in ready.drain(..) {
                    // Without octets, its queue pair may send again.
                    let buffer = if arrived { &mut buffer[..] } else { &mut [] };
                    last = self.receive_stream(&socket, buffer, room).or(last);
                }
            }
        }
        if let Some(now) = last {
            self.follow.received();
            receiver.delivery.look_at_guard(now);
        }
        last
    }

    /// Receives from one connection into `buffer`, unless that is empty, and gives it to its queue pair,
    /// which may send if there is `room`. When that was, or `None` if nothing had come.
    fn receive_stream(&self, socket: &StreamSocket, buffer: &mut [u8], room: bool) -> Option<Instant> {
        // The epoll set watches a stalled connection for no arrivals, but still tells of an end by RST.
        let stalled = socket.is_stalled();
        let broke = stalled && !buffer.is_empty() && socket.is_broken();
        let buffer = if stalled { &mut [] } else { buffer };
        let most = socket.most().filter(|_| !buffer.is_empty());
        let in_place = most.is_none() && !buffer.is_empty();
        let mut received = match most {
            None => Err(Errno::AGAIN),
            Some(most) => {
                let most = most.min(buffer.len());
                let received = socket.receive(buffer.get_mut(..most).unwrap_or_default());
                received.map(|len| Arrived { total: len, behind: len })
            }
        };
        if !room && !in_place && !broke && matches!(received, Err(Errno::AGAIN | Errno::INTR)) {
            return None;
        }
        let found = self.hub.table.get(socket.qpn());
        let endpoint = found.as_deref().and_then(Option::as_ref)?;
        let mut locked = endpoint.lock();
        if in_place {
            received = locked.receive_in_place(socket, buffer);
            if !room && matches!(received, Err(Errno::AGAIN | Errno::INTR)) {
                return None;
            }
        }
        let now = clock::now();
        if room {
            locked.has_room(socket);
        }
        if broke {
            locked.stream_ended(socket);
        }
        match received {
            Ok(Arrived { total: 0, .. }) => locked.stream_ended(socket),
            Ok(arrived) => {
                locked.receive_stream(socket, buffer, arrived, now);
                return Some(now);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => {
                tracing::debug!(qpn = socket.qpn().value(), %errno, "a connection broke");
                locked.stream_ended(socket);
            }
        }
        locked.finish_batch(now);
        Some(now)
    }
}

//! The lane of all iWARP connections of the process.

use ferroce_paths::streams::{Arrivals, Found, Ready, StreamSocket, Streams};
use ferroce_wire::Instant;

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
                    let found = socket.look(&mut arrivals.buffer);
                    last = self.receive_stream(socket, found, false, &mut arrivals.buffer).or(last);
                }
            }
            None => {
                streams.find_ready(arrivals);
                let Arrivals { buffer, ready, .. } = arrivals;
                for Ready { socket, room, arrived } in ready.drain(..) {
                    let found = if arrived { socket.look(buffer) } else { Found::Nothing };
                    last = self.receive_stream(&socket, found, room, buffer).or(last);
                }
            }
        }
        if let Some(now) = last {
            self.follow.received();
            receiver.delivery.look_at_guard(now);
        }
        last
    }

    /// Gives what was found on a connection to its queue pair, which may send if there is `room`. Returns
    /// when that was, or `None` if nothing had come.
    fn receive_stream(
        &self,
        socket: &StreamSocket,
        found: Found,
        room: bool,
        buffer: &mut [u8],
    ) -> Option<Instant> {
        if found == Found::Nothing && !room {
            return None;
        }
        let endpoint = self.hub.table.get(socket.qpn())?;
        endpoint.lock().receive_stream(socket, found, room, buffer)
    }
}

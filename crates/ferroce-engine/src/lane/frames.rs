//! The lane of a raw packet queue pair.

use std::sync::Weak;

use ferroce_datapath::packet::FrameBuffer;
use ferroce_paths::clock;
use ferroce_paths::frames::FramePort;
use ferroce_wire::Instant;

use super::{Endpoint, Lane, Receiver};
use ferroce_ipc::ledger::DeviceCounters;

/// Frames that are looked at in one turn.
const FRAMES: usize = 32;

impl Lane {
    /// Receives and processes one batch; when that was, or `None` if nothing waits.
    pub(super) fn receive_frames(
        &self,
        receiver: &mut Receiver,
        port: &FramePort,
        endpoint: &Weak<Endpoint>,
    ) -> Option<Instant> {
        let counters = self.counters();
        let endpoint = endpoint.upgrade()?;
        let rules = port.rules();
        let buffer = receiver.frames.get_or_insert_with(FrameBuffer::new);
        let (mut batch_time, mut locked) = (None, None);
        for _ in 0..FRAMES {
            match port.socket().recv(buffer) {
                Ok(Some(frame)) => {
                    batch_time.get_or_insert_with(clock::now);
                    if rules.iter().any(|(_, rule)| rule.matches(frame.bytes, frame.outgoing)) {
                        DeviceCounters::count(&counters.rcvd_pkts);
                        DeviceCounters::add(&counters.rcvd_octets, frame.bytes.len() as u64);
                        locked.get_or_insert_with(|| endpoint.lock()).receive_frame(frame.bytes, counters);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    DeviceCounters::count(&counters.rx_err);
                    tracing::debug!(%error, "cannot receive frames");
                    break;
                }
            }
        }
        let now = batch_time?;
        DeviceCounters::count(&counters.rx_calls);
        if let Some(locked) = locked {
            locked.finish_batch(now);
        }
        receiver.delivery.look_at_guard(now);
        Some(now)
    }
}

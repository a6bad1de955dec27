//! Counters under the names that Linux uses in `/sys/class/infiniband_cm`.

use super::CmDropReason;

/// Offset of the attribute id in a MAD.
const ATTRIBUTE: usize = 16;
/// The attribute id of the first message, REQ.
const FIRST: u16 = 0x10;

/// A counter for each message of the CM; the counters wrap.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PerMessage(pub [u64; 11]);

impl PerMessage {
    /// The names of the messages, in the order of the counters and of the attribute ids.
    pub const NAMES: [&'static str; 11] =
        ["req", "mra", "rej", "rep", "rtu", "dreq", "drep", "sidr_req", "sidr_rep", "lap", "apr"];

    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Counts a message; a MAD that is no CM message is not counted.
    pub(super) fn count(&mut self, mad: &[u8]) {
        let attribute = mad.get(ATTRIBUTE..).and_then(<[u8]>::first_chunk).copied().map(u16::from_be_bytes);
        let place = attribute.and_then(|attribute| attribute.checked_sub(FIRST)).map(usize::from);
        if let Some(count) = place.and_then(|place| self.0.get_mut(place)) {
            *count = count.wrapping_add(1);
        }
    }
}

/// Messages since creation. They wrap.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CmCounters {
    /// Messages given to `handle_mad`.
    pub rx_msgs: PerMessage,
    /// The part of `rx_msgs` that had been handled before.
    pub rx_duplicates: PerMessage,
    /// Messages returned by `poll_transmit`, repetitions included.
    pub tx_msgs: PerMessage,
    /// The part of `tx_msgs` that was repeated because no answer came.
    pub tx_retries: PerMessage,
    /// MADs without effect, by reason: [`CmDropReason::NAMES`].
    pub drops: [u64; 8],
}

impl CmCounters {
    pub fn dropped(&self) -> u64 {
        self.drops.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    pub(super) fn drop_of(&mut self, reason: CmDropReason) {
        if let Some(count) = self.drops.get_mut(reason.place()) {
            *count = count.wrapping_add(1);
        }
    }
}

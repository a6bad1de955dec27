//! The cuts of the windows after losses, and their undoing.

use ferroce_wire::Psn;

use super::super::common::Common;
use super::super::pipeline::Pipeline;
use super::repair::REPORTED;
use super::{Requester, full_charge};

/// Responses that a requester keeps behind a gap, with a margin.
const KEPT_RESPONSES: u32 = 1000;
/// Octets that a responder holds.
const HELD_OCTETS: u32 = 256 << 10;

impl Requester {
    /// A packet is lost, and it alone is sent again: `response` is one of a READ. The window shrinks a little
    /// if that is all of a round trip, and as behind a NAK if packets wait in queues, or if more than a
    /// sixteenth of what is on its way is lost, at least four.
    pub(in super::super) fn lost_one(
        &mut self,
        response: bool,
        psn: Psn,
        common: &Common,
        pipeline: &Pipeline,
    ) {
        let many = (pipeline.outstanding() / 16).max(3) + 1;
        if psn.since(self.recovery) >= 0 {
            // Without selective repeat a lost request has everything behind it sent again, and more the
            // larger the window is.
            if self.queueing || !self.repair.is_agreed() {
                self.losses = many;
                return self.lost(response, psn, pipeline.next());
            }
            self.recovery = pipeline.next();
            self.losses = 0;
            let packets =
                if response { KEPT_RESPONSES } else { (HELD_OCTETS / common.mtu()).min(REPORTED) - 4 };
            let kept = u64::from(packets) * full_charge(common);
            self.before = (self.data, self.reads);
            if response { self.reads.ease(kept) } else { self.data.ease(kept) }
        }
        self.losses = self.losses.saturating_add(1);
        self.cut_for_one = self.losses == 1;
        if self.losses == many {
            let window = if response { &mut self.reads } else { &mut self.data };
            window.shrink(self.queueing);
        }
    }

    /// Undoes the last cut if it was made for a single packet whose original has arrived after all (as RFC
    /// 4015 does for TCP).
    pub(super) fn undo_needless_cut(&mut self) {
        if self.repair.take_needless() && self.cut_for_one {
            self.undo_cut();
        }
    }

    /// The packet `psn` was lost: a read or atomic, or not; `next` was never sent. The windows shrink once
    /// for all that is on its way.
    pub(in super::super) fn lost(&mut self, read: bool, psn: Psn, next: Psn) {
        let cuts = psn.since(self.recovery) >= 0;
        // Without a new cut, the earlier cut for a single packet may still prove needless, and needs its
        // windows.
        if cuts || !self.cut_for_one {
            self.before = (self.data, self.reads);
        }
        self.cut_for_one = false;
        if cuts {
            self.recovery = next;
            let window = if read { &mut self.reads } else { &mut self.data };
            window.shrink(self.queueing);
        }
    }

    /// Undoes the last cut, which was needless: the windows are at least as large as before it.
    pub(in super::super) const fn undo_cut(&mut self) {
        self.cut_for_one = false;
        self.data.restore(self.before.0);
        self.reads.restore(self.before.1);
    }

    /// The READ response `psn` came marked; `next` was never sent. The window shrinks once for all that is on
    /// its way.
    pub(in super::super) fn read_congested(&mut self, psn: Psn, next: Psn) {
        if psn.since(self.recovery) >= 0 {
            self.recovery = next;
            self.cut_for_one = false;
            self.reads.shrink(self.queueing);
        }
    }
}

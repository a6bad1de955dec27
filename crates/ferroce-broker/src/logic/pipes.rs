//! Which two programs get a pipe.

use ferroce_ipc::{Refusal, RefusalCode};

use super::{Broker, Output, PipeEnd};
use crate::slots::Slot;
use crate::system::System;
use crate::{ClientId, refusal};

impl<S: System> Broker<S> {
    /// A program wants a pipe to the holder of `slot`. Both must have offered to take pipes.
    pub(super) fn open_pipe(&mut self, client: ClientId, id: u32, slot: u16) -> Result<(), Refusal> {
        let Some(Slot::Leased(other)) = self.slots.get(slot) else {
            return Err(refusal(RefusalCode::UnknownId, format!("no program holds slot {slot}")));
        };
        // A doorbell belongs to all that hold it: another user could shut it down for everybody.
        if self.uid_of(client) != self.uid_of(other) {
            let sentence = "programs of two users exchange packets through ferroced";
            return Err(refusal(RefusalCode::WrongState, sentence));
        }
        let first = self.pipe_end(client)?;
        let second = self.pipe_end(other)?;
        self.output.push_back(Output::OpenPipe { id, ends: [first, second] });
        Ok(())
    }

    fn pipe_end(&self, client: ClientId) -> Result<PipeEnd, Refusal> {
        let known = self.clients.get(&client);
        let known = known.filter(|known| !known.offered.is_empty() && known.watched);
        let Some(known) = known else {
            let sentence = "one of the two programs takes no pipes (FERROCE_DATAPATH)";
            return Err(refusal(RefusalCode::WrongState, sentence));
        };
        let offered: std::io::Result<Vec<_>> = known.offered.iter().map(|fd| fd.try_clone()).collect();
        let offered = offered
            .map_err(|e| refusal(RefusalCode::Failed, format!("ferroced cannot pass descriptors on: {e}")))?;
        Ok(PipeEnd { client, process: known.process, slots: self.slots.of(client), offered })
    }
}

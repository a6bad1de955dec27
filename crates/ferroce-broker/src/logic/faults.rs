//! Orders about faults, which the broker passes on to running programs.

use std::time::{Duration, Instant};

use ferroce_ipc::{FAULTS_MINOR, FaultOrder, FaultReport, Message, Peer, Refusal, RefusalCode};

use super::Broker;
use super::orders::Open;
use crate::slots::Slot;
use crate::system::System;
use crate::{ClientId, refusal};

/// How long a program may take to answer an order.
const LIMIT: Duration = Duration::from_secs(2);
/// Most orders to a program that it has not answered. A stopped program must not gather enough to be given
/// up.
const MOST_OPEN: usize = 8;

impl<S: System> Broker<S> {
    /// Passes an order on to the program that holds the slot, if that has the process id and is of the
    /// client's user.
    pub(super) fn pass_order(
        &mut self,
        now: Instant,
        asker: ClientId,
        id: u32,
        (slot, pid): (u16, u32),
        order: FaultOrder,
    ) -> Result<(), Refusal> {
        let unknown = || refusal(RefusalCode::UnknownId, format!("process {pid} uses no device any more"));
        let Some(Slot::Leased(program)) = self.slots.get(slot) else { return Err(unknown()) };
        let Some(known) = self.clients.get(&program) else { return Err(unknown()) };
        if self.uid_of(asker) != Some(known.peer.uid) {
            let sentence = format!(
                "process {pid} is a program of another user: only programs of {} take faults from here",
                Peer::user(self.uid_of(asker).unwrap_or_default())
            );
            return Err(refusal(RefusalCode::Permission, sentence));
        }
        if known.peer.pid != pid {
            return Err(unknown());
        }
        if known.minor < FAULTS_MINOR {
            let sentence = format!(
                "process {pid} ({}) uses a library of an older ferroce, which takes no faults while it runs: restart it",
                self.system.command(pid)
            );
            return Err(refusal(RefusalCode::Failed, sentence));
        }
        if self.orders.open.values().filter(|open| open.program == program).count() >= MOST_OPEN {
            return Err(self.silent(program));
        }
        // A number is free again long before the count comes round.
        self.orders.last = self.orders.last.wrapping_add(1);
        let number = self.orders.last;
        self.orders.open.insert(number, Open { program, asker: Some((asker, id)), until: now + LIMIT });
        self.send(program, 0, Message::FaultOrder { number, order }, Vec::new());
        Ok(())
    }

    /// A program answered an order. An answer to an order of another program is nobody's.
    pub(super) fn order_done(&mut self, program: ClientId, number: u32, result: Result<FaultReport, String>) {
        if self.orders.open.get(&number).is_none_or(|open| open.program != program) {
            return;
        }
        let asker = self.orders.open.remove(&number).and_then(|open| open.asker);
        let Some((asker, id)) = asker else { return };
        let answer = match result {
            Ok(_) => Message::FaultReport { number, result },
            Err(reason) => Message::Refused(refusal(RefusalCode::Failed, reason)),
        };
        self.send(asker, id, answer, Vec::new());
    }

    /// Refuses orders whose program did not answer in time. It may be stopped, and obeys when it goes on.
    pub(super) fn expire_orders(&mut self, now: Instant) {
        let late = self.orders.open.values_mut().filter(|open| open.until <= now);
        let late: Vec<_> = late.filter_map(|open| Some((open.program, open.asker.take()?))).collect();
        for (program, (asker, id)) in late {
            let refusal = self.silent(program);
            self.send(asker, id, Message::Refused(refusal), Vec::new());
        }
    }

    /// A client is gone, and with it the orders to it and those that it gave.
    pub(super) fn end_orders(&mut self, gone: ClientId, pid: u32) {
        let mut askers = Vec::new();
        self.orders.open.retain(|_, open| {
            let ends = open.program == gone;
            askers.extend(open.asker.filter(|_| ends));
            !ends
        });
        for open in self.orders.open.values_mut() {
            open.asker = open.asker.filter(|(asker, _)| *asker != gone);
        }
        for (asker, id) in askers.into_iter().filter(|(asker, _)| *asker != gone) {
            let sentence = format!("process {pid} ended before it answered");
            let refusal = refusal(RefusalCode::UnknownId, sentence);
            self.send(asker, id, Message::Refused(refusal), Vec::new());
        }
    }

    fn silent(&self, program: ClientId) -> Refusal {
        let pid = self.clients.get(&program).map_or(0, |known| known.peer.pid);
        let command = self.system.command(pid);
        let sentence = format!(
            "process {pid} ({command}) does not answer: it may be stopped, and obeys when it goes on"
        );
        refusal(RefusalCode::Busy, sentence)
    }
}

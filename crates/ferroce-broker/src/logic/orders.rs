//! Orders about faults, which the broker passes on to running programs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferroce_ipc::{FaultOrder, FaultReport, Message, Peer, Refusal, RefusalCode};

use super::Clients;
use crate::system::System;
use crate::{ClientId, refusal};

/// How long a program may take to answer an order.
const LIMIT: Duration = Duration::from_secs(2);
/// Most orders to a program that it has not answered. A stopped program must not gather enough to be given
/// up.
const MOST_OPEN: usize = 8;

/// The orders that programs have not answered, by number.
#[derive(Debug, Default)]
pub(super) struct FaultOrders {
    /// The number of the last order.
    last: u32,
    open: BTreeMap<u32, Open>,
}

#[derive(Debug)]
struct Open {
    program: ClientId,
    /// The client that waits, with its request. `None` once it was answered or is gone; the program may still
    /// answer.
    asker: Option<(ClientId, u32)>,
    until: Instant,
}

impl FaultOrders {
    /// Time at which the next client has waited long enough; `None` if no client waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.open.values().filter(|open| open.asker.is_some()).map(|open| open.until).min()
    }

    /// Passes an order, which a request of the `asker` brought, on to the program that holds its slot, if
    /// that has the process id and is of the asker's user.
    pub(super) fn pass(
        &mut self,
        now: Instant,
        asker: (ClientId, u32),
        (holder, pid): (Option<ClientId>, u32),
        order: FaultOrder,
        clients: &mut Clients,
        system: &impl System,
    ) -> Result<(), Refusal> {
        let unknown = || refusal(RefusalCode::UnknownId, format!("process {pid} uses no device any more"));
        let Some(program) = holder else { return Err(unknown()) };
        let Some(known) = clients.get(program) else { return Err(unknown()) };
        let uid = clients.uid_of(asker.0);
        if uid != Some(known.peer.uid) {
            let sentence = format!(
                "process {pid} is a program of another user: only programs of {} take faults from here",
                Peer::user(uid.unwrap_or_default())
            );
            return Err(refusal(RefusalCode::Permission, sentence));
        }
        if known.peer.pid != pid {
            return Err(unknown());
        }
        if self.open.values().filter(|open| open.program == program).count() >= MOST_OPEN {
            return Err(silent(pid, system));
        }
        // A number is free again long before the count comes round.
        self.last = self.last.wrapping_add(1);
        let number = self.last;
        self.open.insert(number, Open { program, asker: Some(asker), until: now + LIMIT });
        clients.send(program, 0, Message::FaultOrder { number, order }, Vec::new());
        Ok(())
    }

    /// A program answered an order. An answer to an order of another program is nobody's.
    pub(super) fn done(
        &mut self,
        program: ClientId,
        number: u32,
        result: Result<FaultReport, String>,
        clients: &mut Clients,
    ) {
        if self.open.get(&number).is_none_or(|open| open.program != program) {
            return;
        }
        let asker = self.open.remove(&number).and_then(|open| open.asker);
        let Some((asker, id)) = asker else { return };
        match result {
            Ok(_) => clients.send(asker, id, Message::FaultReport { number, result }, Vec::new()),
            Err(reason) => clients.refuse(asker, id, refusal(RefusalCode::Failed, reason)),
        }
    }

    /// Refuses orders whose program did not answer in time. It may be stopped, and obeys when it goes on.
    pub(super) fn expire(&mut self, now: Instant, clients: &mut Clients, system: &impl System) {
        for open in self.open.values_mut().filter(|open| open.until <= now) {
            if let Some((asker, id)) = open.asker.take() {
                let pid = clients.pid_of(open.program).unwrap_or(0);
                clients.refuse(asker, id, silent(pid, system));
            }
        }
    }

    /// A client is gone, and with it the orders to it and those that it gave.
    pub(super) fn end(&mut self, gone: ClientId, pid: u32, clients: &mut Clients) {
        self.open.retain(|_, open| {
            let asker = open.asker.take_if(|(asker, _)| *asker == gone || open.program == gone);
            if let Some((asker, id)) = asker.filter(|(asker, _)| *asker != gone) {
                let sentence = format!("process {pid} ended before it answered");
                clients.refuse(asker, id, refusal(RefusalCode::UnknownId, sentence));
            }
            open.program != gone
        });
    }
}

fn silent(pid: u32, system: &impl System) -> Refusal {
    let command = system.command(pid);
    let sentence =
        format!("process {pid} ({command}) does not answer: it may be stopped, and obeys when it goes on");
    refusal(RefusalCode::Busy, sentence)
}

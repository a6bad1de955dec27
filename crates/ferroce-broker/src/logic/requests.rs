//! The requests of programs that have said hello, and what each of them is answered.

use std::time::Instant;

use ferroce_host::fork::Guarded;
use ferroce_ipc::{Message, Refusal, RefusalCode, Strange};

use super::{Broker, Output, SURVIVORS, Waiting, Want};
use crate::system::System;
use crate::{ClientId, refusal};

/// Programs that a refusal names.
const MOST_NAMED: usize = 5;

impl<S: System> Broker<S> {
    /// Answers a greeted client: with a message, with a refusal, with nothing yet, or (`Err(None)`) by
    /// closing.
    pub(super) fn request(
        &mut self,
        now: Instant,
        client: ClientId,
        id: u32,
        message: Message,
        descriptors: Vec<Strange>,
    ) -> Result<Option<Message>, Option<Refusal>> {
        match message {
            Message::ListDevices => {
                let Some(known) = self.clients.get(&client) else { return Ok(None) };
                Ok(Some(Message::Devices(self.told(known.view, known.minor))))
            }
            Message::Devices(devices) => {
                // A broker that follows another one takes over what programs knew, links and their settings
                // included: from programs whose user may change these alone.
                let restricted = self.is_restricted(client);
                if let Some(known) = self.clients.get_mut(&client).filter(|_| !restricted) {
                    known.known = devices;
                }
                Ok(None)
            }
            Message::Lease(count) => {
                let want = Want::Lease(count);
                self.lease_or_refuse(now, &Waiting { client, id, want, until: now + SURVIVORS }, false);
                Ok(None)
            }
            Message::Release(slots) => {
                let held = self.slots.of(client);
                let given = if slots.is_empty() { held.clone() } else { slots };
                if !given.iter().all(|slot| held.contains(slot)) {
                    let sentence = "only slots that one holds can be given back".to_owned();
                    return Err(Some(refusal(RefusalCode::BadRequest, sentence)));
                }
                self.free(&given);
                Ok(Some(Message::Done))
            }
            Message::Resume(slots) => match descriptors.into_iter().next() {
                Some(parked) => {
                    self.resume(now, client, id, &slots, parked);
                    Ok(None)
                }
                None => Err(None),
            },
            Message::ResumeByRings(slots) => {
                let want = Want::Back(slots);
                self.lease_or_refuse(now, &Waiting { client, id, want, until: now + SURVIVORS }, false);
                Ok(None)
            }
            Message::LinkAdd { .. }
            | Message::LinkDel { .. }
            | Message::LinkSet { .. }
            | Message::LinkStart
            | Message::LinkRename { .. } => {
                self.only_for_administrators(client)?;
                self.links(message)?;
                Ok(Some(Message::Done))
            }
            Message::ListNetdevs => Ok(Some(Message::Netdevs(self.netdevs()))),
            Message::OpenRings { v2 } => self.open_rings(client, id, v2, descriptors).map(|()| None),
            Message::SettleRings => {
                self.output.push_back(Output::SettleRings { client, id });
                Ok(None)
            }
            Message::OfferPipes { .. } => {
                if let Some(known) = self.clients.get_mut(&client) {
                    known.offered = descriptors.into_iter().map(Guarded::new).collect();
                }
                Ok(Some(Message::Done))
            }
            Message::OpenPipe(slot) => self.open_pipe(client, id, slot).map(|()| None).map_err(Some),
            Message::OpenXdp { ifindex, direct } => {
                self.open_xdp(client, id, ifindex, direct).map(|()| None).map_err(Some)
            }
            Message::GetStatus => Ok(Some(Message::Status(self.status(client)))),
            Message::Stop { force } => self.stop(client, force).map(|()| Some(Message::Done)).map_err(Some),
            Message::Report(counts) => {
                if let Some(known) = self.clients.get_mut(&client) {
                    known.resources = counts;
                }
                Ok(None)
            }
            Message::Cm(request) => self.connections(client, request).map(Some).map_err(Some),
            Message::Ledger => match descriptors.into_iter().next() {
                Some(file) => {
                    self.take_ledger(client, file);
                    Ok(None)
                }
                None => Err(None),
            },
            Message::GetStatistics(device) => self.statistics(client, &device).map(Some).map_err(Some),
            Message::GetCmIds(without) => {
                let visible = self.visible_slots(client);
                let sees = |slot: u16| visible.as_ref().is_none_or(|slots| slots.contains(&slot));
                Ok(Some(self.cm.ids(without as usize, sees)))
            }
            Message::GetLedgers => {
                self.send_ledgers(client, id);
                Ok(None)
            }
            Message::FaultRequest { slot, pid, order } => {
                self.pass_order(now, client, id, (slot, pid), order).map(|()| None).map_err(Some)
            }
            Message::FaultReport { number, result } => {
                self.order_done(client, number, result);
                Ok(None)
            }
            Message::MadFaults { generation, rules } => {
                // A leased member is its first slot, as owner of connections and when it is free again.
                let slots = self.slots.leases_of(client);
                self.cm.take_rules(&slots, generation, &rules).map_err(Some)?;
                Ok(Some(Message::Done))
            }
            Message::GetMadFaults => {
                let slots = self.slots.leases_of(client);
                Ok(Some(Message::MadFaultReport(self.cm.report_rules(&slots))))
            }
            // Only a broker may send these messages; a program may send `Hello` only once.
            Message::Hello(_)
            | Message::Refused(_)
            | Message::Done
            | Message::Leased(_)
            | Message::Address(_)
            | Message::Parked
            | Message::Status(_)
            | Message::Netdevs(_)
            | Message::CmDone(_)
            | Message::CmEvent(_)
            | Message::Rings { .. }
            | Message::Pipe { .. }
            | Message::Xdp { .. }
            | Message::Statistics(_)
            | Message::Ledgers(_)
            | Message::LedgerOf(_)
            | Message::FaultOrder { .. }
            | Message::MadFaultReport(_)
            | Message::MadFaultHits
            | Message::CmIds { .. } => Err(None),
        }
    }

    /// Ends the broker as soon as the answer is sent, unless others use it and it is not to be `force`d.
    fn stop(&mut self, asker: ClientId, force: bool) -> Result<(), Refusal> {
        self.only_for_administrators(asker)?;
        let others = self.clients.iter().filter(|(id, _)| **id != asker);
        let mut users: Vec<u32> = others.map(|(_, client)| client.peer.pid).collect();
        users.sort_unstable();
        users.dedup();
        if !force && (!users.is_empty() || !self.slots.all_free()) {
            let names: Vec<String> = users
                .iter()
                .take(MOST_NAMED)
                .map(|pid| format!("process {pid} ({})", self.system.command(*pid)))
                .collect();
            let users =
                if names.is_empty() { "a program that is stopped".to_owned() } else { names.join(", ") };
            let sentence = format!(
                "ferroced is in use by {users}: end them first, or use `ferroce stop --force`: they keep running and start a new ferroced"
            );
            return Err(refusal(RefusalCode::Busy, sentence));
        }
        self.stopped = true;
        Ok(())
    }
}

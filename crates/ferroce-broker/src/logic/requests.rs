//! The requests of programs that have said hello, and what each of them is answered.

use std::time::Instant;

use ferroce_host::fork::Guarded;
use ferroce_ipc::{Message, Refusal, RefusalCode, Strange};

use super::leases::{RETURN_GRACE, Waiting, Want};
use super::{Broker, Output};
use crate::slots::Slot;
use crate::system::System;
use crate::{ClientId, refusal};

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
                let Some(known) = self.clients.get(client) else { return Ok(None) };
                Ok(Some(Message::Devices(self.links.view(known.view))))
            }
            Message::Devices(devices) => {
                // A broker that follows another one takes over what programs knew, links and their settings
                // included: from programs whose user may change these alone.
                let restricted = self.clients.is_restricted(client);
                if let Some(known) = self.clients.get_mut(client).filter(|_| !restricted) {
                    known.devices_before = devices;
                }
                Ok(None)
            }
            Message::Lease(count) => {
                let want = Want::Lease(count);
                self.lease_or_refuse(now, Waiting { client, id, want, until: now + RETURN_GRACE }, false);
                Ok(None)
            }
            Message::Release(slots) => {
                let held = self.leases.slots.of(client);
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
                self.lease_or_refuse(now, Waiting { client, id, want, until: now + RETURN_GRACE }, false);
                Ok(None)
            }
            Message::LinkAdd { .. }
            | Message::LinkDel { .. }
            | Message::LinkSet { .. }
            | Message::LinkRename { .. } => {
                self.clients.only_for_administrators(client)?;
                let hidden = |address| self.addresses.hides(address);
                self.links.execute(message, &mut self.system, self.clients.uid(), hidden)?;
                self.publish();
                Ok(Some(Message::Done))
            }
            Message::OpenRings { v2 } => {
                self.clients.open_rings(client, id, v2, descriptors, &self.leases.slots)?;
                self.view_changes += 1;
                Ok(None)
            }
            Message::SettleRings => {
                self.clients.output().push_back(Output::SettleRings { client, id });
                Ok(None)
            }
            Message::OfferPipes { .. } => {
                if let Some(known) = self.clients.get_mut(client) {
                    known.offered = descriptors.into_iter().map(Guarded::new).collect();
                }
                Ok(Some(Message::Done))
            }
            Message::OpenPipe(slot) => {
                self.clients.open_pipe(client, id, slot, &self.leases.slots)?;
                Ok(None)
            }
            Message::OpenXdp(ifindex) => {
                let (xdp, mut around) = self.xdp();
                let opened = xdp.open(client, id, ifindex, &mut around);
                self.publish_if_xdp_is_lost();
                opened.map(|()| None).map_err(Some)
            }
            Message::GetStatus => Ok(Some(Message::Status(self.status(client)))),
            Message::Stop { force } => {
                self.clients.only_for_administrators(client)?;
                if !force {
                    self.clients.refuse_if_used(client, &self.leases.slots, &self.system)?;
                }
                // The broker ends as soon as the answer is sent.
                self.stopped = true;
                Ok(Some(Message::Done))
            }
            Message::Report(counts) => {
                if let Some(known) = self.clients.get_mut(client) {
                    known.resources = counts;
                }
                Ok(None)
            }
            Message::Cm(request) => {
                let (leases, groups) = (&mut self.leases, &self.addresses.groups);
                let done = self.connections.request(client, request, leases, &self.clients, groups)?;
                Ok(Some(done))
            }
            Message::Ledger => match descriptors.into_iter().next() {
                Some(file) => {
                    self.ledgers.take(client, file, &self.clients, &self.links.devices);
                    Ok(None)
                }
                None => Err(None),
            },
            Message::GetStatistics(device) => {
                let devices = &self.links.devices;
                let Some(id) = devices.id_of(&device) else {
                    let sentence = format!("there is no device named {device}");
                    return Err(Some(refusal(RefusalCode::UnknownLink, sentence)));
                };
                let restricted = self.clients.is_restricted(client);
                let mut counts = self.ledgers.statistics(&device, restricted, devices);
                counts.extend(self.xdp.statistics(id, devices, &self.clients));
                Ok(Some(Message::Statistics(counts)))
            }
            Message::GetCmIds(without) => {
                let visible = self.leases.visible_slots(client, &self.clients);
                let sees = |slot: u16| visible.as_ref().is_none_or(|slots| slots.contains(&slot));
                Ok(Some(self.connections.cm.ids(without as usize, sees)))
            }
            Message::GetLedgers => {
                let programs = self.lease_entries(client, usize::MAX);
                self.ledgers.send_all(client, id, programs, &mut self.clients);
                Ok(None)
            }
            Message::FaultRequest { slot, pid, order } => {
                let holder = match self.leases.slots.get(slot) {
                    Some(Slot::Leased(holder)) => Some(holder),
                    _ => None,
                };
                let (clients, system) = (&mut self.clients, &self.system);
                self.orders.pass(now, (client, id), (holder, pid), order, clients, system)?;
                Ok(None)
            }
            Message::FaultReport { number, result } => {
                self.orders.done(client, number, result, &mut self.clients);
                Ok(None)
            }
            Message::MadFaults { generation, rules } => {
                // A leased member is its first slot, as owner of connections and when it is free again.
                let slots = self.leases.slots.leases_of(client);
                self.connections.cm.take_rules(&slots, generation, &rules).map_err(Some)?;
                Ok(Some(Message::Done))
            }
            Message::GetMadFaults => {
                let slots = self.leases.slots.leases_of(client);
                Ok(Some(Message::MadFaultReport(self.connections.cm.report_rules(&slots))))
            }
            // Messages that only a broker may send, and a second `Hello`.
            _ => Err(None),
        }
    }
}

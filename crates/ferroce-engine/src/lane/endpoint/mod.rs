//! Endpoints: the half of a queue pair that packets need. A lane delivers to them and knows no queue pair.

mod attachment;
mod choice;
mod direct;
mod gathering;
mod locked;
mod port;
mod refuse;
mod stream;

use std::any::Any;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Weak};

use ferroce_ipc::ledger::Entry;
use ferroce_ipc::ledger::records::{Block, Ends, QpProgress, QpPsns};
use ferroce_paths::clock;
use ferroce_paths::faults::QpName;
use ferroce_paths::tx_path::DatagramPaths;
use ferroce_paths::xdp::XdpPort;
use ferroce_proto::{Domain, QpAttr, QpAttrMask, QpState, QueuePair, RecvWqe, Service, Taken};
use ferroce_wire::{Gid, Instant, Qpn, SrqNumber};
use parking_lot::Mutex;

use super::{Hub, Lane};
use ferroce_ipc::ledger::DeviceCounters;
use ferroce_paths::counters::{store_straight_values, store_transport_values, transport_values};

pub(crate) use attachment::{Attachment, ConnectedPath, Datagrams, Frames, StreamEvents};
pub(crate) use gathering::Visit;
use locked::Inside;
pub(crate) use locked::{Core, Locked};
pub(crate) use stream::{Agreed, BeginError};

/// The half of a queue pair that a lane delivers to.
pub(crate) struct Endpoint {
    pub(crate) me: Weak<Endpoint>,
    /// The queue pair, for modules that know what one is.
    pub(crate) owner: Weak<dyn Any + Send + Sync>,
    pub(crate) qpn: Qpn,
    /// The name by which plans of faults select the queue pair.
    pub(crate) name: QpName,
    pub(crate) service: Service,
    /// The number of its device, and the device's block of the ledger.
    pub(crate) device: u32,
    pub(crate) block: usize,
    pub(crate) core: Mutex<Core>,
    /// The time of the transport's next timer, see [`Lane::note_deadline`].
    pub(crate) deadline: AtomicU64,
    /// Place in the lane's list, guarded by that list's lock.
    pub(crate) place: AtomicUsize,
    /// The queue pair's record in the ledger.
    pub(crate) entry: Entry,
    pub(crate) hub: Arc<Hub>,
    pub(crate) outputs: Arc<dyn Outputs>,
}

/// The queues that a queue pair receives into and reports to. Called once a batch, but for shared receive
/// queues.
pub(crate) trait Outputs: Send + Sync {
    /// Hands out completions and events, and records failures.
    fn publish(&self, transport: &mut QueuePair, record: &Entry, now: Instant) -> Published;
    /// Takes the queue pairs of each queue that was overrun to the error state. No lock of a queue pair is
    /// held.
    fn fail_overrun(&self);
    /// Whether the program ever asked for events of its completions.
    fn reports_by_events(&self) -> bool;
    /// Whether a receive completion would wake a thread of the program now. Asked only if the program asks
    /// for events.
    fn wakes_program(&self) -> bool;
    /// How often the program has taken completions of its send queue, and of others that report to the same
    /// completion queue.
    fn send_polls(&self) -> u64;
    /// A thread that waits for its completions receives on this lane.
    fn add_lane(&self, lane: &Arc<Lane>);
    /// Takes back [`Self::add_lane`].
    fn remove_lane(&self, lane: &Arc<Lane>);
    /// Takes from a shared receive queue, see [`ferroce_proto::ReceiveSource::take`].
    fn take(&self, number: Option<SrqNumber>, wqe: &mut RecvWqe, least: u64) -> Taken;
    /// The protection domain of a shared receive queue that a peer names.
    fn domain_of(&self, number: SrqNumber) -> Option<Domain>;
}

/// The outcome of [`Outputs::publish`].
#[derive(Default)]
pub(crate) struct Published {
    /// Receive completions.
    pub(crate) receives: usize,
    /// Completion queues that were just overrun, normally none. See [`Outputs::fail_overrun`].
    pub(crate) overrun: u64,
}

impl Published {
    /// Adds what came out later.
    fn join(&mut self, later: Self) {
        self.receives += later.receives;
        self.overrun += later.overrun;
    }
}

impl Endpoint {
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked { endpoint: self, core: Inside::wait(self) }
    }

    /// As [`Self::lock`], for posts; `None` if this thread is inside the queue pair already, because a signal
    /// handler posts.
    #[inline(always)]
    pub(crate) fn lock_to_post(&self) -> Option<Locked<'_>> {
        Inside::unless_interrupted(self).map(|core| Locked { endpoint: self, core })
    }

    fn counters(&self) -> &DeviceCounters {
        self.hub.ledger.device(self.block)
    }

    /// To the error state, because a completion queue of it was overrun.
    pub(crate) fn fail(&self) {
        let mut locked = self.lock();
        if !locked.core.destroyed {
            locked.core.transport.set_fatal();
            locked.finish_batch(clock::now());
        }
    }

    /// To the error state, because its device is dead. The event of that is the device's.
    pub(crate) fn stop(&self) {
        let mut locked = self.lock();
        if locked.core.destroyed {
            return;
        }
        let to_error = QpAttr { state: QpState::Error, ..locked.core.transport.query() };
        if let Err(error) = locked.core.transport.modify(&to_error, QpAttrMask::STATE) {
            tracing::debug!(%error, "a queue pair of a dead device stays as it is");
        }
        locked.finish_batch(clock::now());
    }

    /// Leaves the lanes of the connection's path, if it has one, for those of `path`.
    pub(crate) fn move_to(&self, core: &mut Core, path: Option<ConnectedPath>) {
        self.change_lanes(core, |attachment| {
            if let Attachment::Connected(before) = attachment {
                *before = path;
            }
        });
    }

    /// Receives frames on `lane` from now on, or no more. Returns the lane before.
    pub(crate) fn receive_frames_on(&self, core: &mut Core, lane: Option<Arc<Lane>>) -> Option<Arc<Lane>> {
        self.change_lanes(core, |attachment| match attachment {
            Attachment::Frames(frames) => std::mem::replace(&mut frames.lane, lane),
            _ => None,
        })
    }

    /// Gives up the path of its connection, or its sockets, because the queue pair is reset or destroyed.
    pub(crate) fn give_up_paths(&self, core: &mut Core) {
        match &mut core.attachment {
            Attachment::Connected(_) => self.move_to(core, None),
            Attachment::Datagrams(datagrams) => datagrams.paths = DatagramPaths::default(),
            Attachment::Frames(_) => {}
            Attachment::Tcp(_) => self.end_stream(core),
        }
    }

    /// Changes the attachment, and with it the lanes.
    pub(super) fn change_lanes<R>(&self, core: &mut Core, change: impl FnOnce(&mut Attachment) -> R) -> R {
        let before: Vec<Arc<Lane>> = core.attachment.lanes().cloned().collect();
        let result = change(&mut core.attachment);
        let after: Vec<Arc<Lane>> = core.attachment.lanes().cloned().collect();
        self.exchange_lanes(&before, &after);
        result
    }

    /// Leaves the lanes that it was on, for others. The first of them runs its timers.
    fn exchange_lanes(&self, before: &[Arc<Lane>], after: &[Arc<Lane>]) {
        let is_in =
            |lane: &Arc<Lane>, lanes: &[Arc<Lane>]| lanes.iter().any(|other| Arc::ptr_eq(lane, other));
        after.iter().filter(|lane| !is_in(lane, before)).for_each(|lane| self.outputs.add_lane(lane));
        before.iter().filter(|lane| !is_in(lane, after)).for_each(|lane| self.outputs.remove_lane(lane));
        if before.first().map(Arc::as_ptr) != after.first().map(Arc::as_ptr) {
            before.first().inspect(|lane| lane.detach(self));
            if let (Some(lane), Some(me)) = (after.first(), self.me.upgrade()) {
                lane.attach(&me);
            }
        }
    }

    /// From RTR on, datagrams come in on all lanes of the device, and leave by its port.
    pub(crate) fn follow_lanes(
        &self,
        core: &mut Core,
        of_device: impl FnOnce() -> Vec<Arc<Lane>>,
        port: impl FnOnce() -> Option<(Arc<XdpPort>, Vec<IpAddr>)>,
    ) {
        let receives = !core.destroyed && !matches!(core.transport.state(), QpState::Reset | QpState::Init);
        self.change_lanes(core, |attachment| {
            let Attachment::Datagrams(Datagrams { paths, lanes }) = attachment else { return };
            let wanted = if receives { of_device() } else { Vec::new() };
            let before = std::mem::replace(lanes, wanted);
            let is_known = |lane: &&Arc<Lane>| before.iter().any(|other| Arc::ptr_eq(lane, other));
            lanes.iter().filter(|lane| !is_known(lane)).for_each(|lane| lane.receive_headers());
            paths.set_port(port());
        });
    }

    /// Notes that it is attached to a multicast group; `false` if it was destroyed.
    pub(crate) fn join(&self, mgid: Gid) -> bool {
        let mut core = self.core.lock();
        if !core.destroyed {
            core.groups.push(mgid);
        }
        !core.destroyed
    }

    /// Takes back [`Self::join`].
    pub(crate) fn leave(&self, mgid: Gid) {
        self.core.lock().groups.retain(|group| *group != mgid);
    }

    /// Brings the record up to date.
    pub(crate) fn show(&self, transport: &QueuePair) {
        let (remote, expected, next) = transport.progress();
        // The verbs have no type of their own for iWARP.
        let service = if self.service == Service::Iwarp { Service::Rc } else { self.service };
        let progress = QpProgress {
            block: Block::new(self.block),
            service: service as u16,
            state: transport.state() as u16,
            qpn: self.qpn.value(),
            remote_qpn: remote.value(),
            psns: QpPsns { rq_psn: expected.value(), sq_psn: next.value() },
        };
        self.entry.put_queue_pair(progress, |words| store_transport_values(transport.counters(), words));
    }

    /// As [`Self::show`], after steps of the straight way alone.
    #[inline]
    fn show_straight(&self, transport: &QueuePair) {
        let (_, expected, next) = transport.progress();
        let psns = QpPsns { rq_psn: expected.value(), sq_psn: next.value() };
        self.entry.put_psns(psns, |words| store_straight_values(transport.counters(), words));
    }

    /// Records the ends of its connection.
    pub(crate) fn show_ends(&self, transport: &QueuePair) {
        let attr = transport.query();
        self.entry.connects(&Ends {
            block: Block::new(self.block),
            qpn: self.qpn.value(),
            remote_qpn: attr.dest_qp.value(),
            service: self.service as u8,
            path_mtu: attr.path_mtu as u8,
            sgid_index: attr.ah.sgid_index,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            hop_limit: attr.ah.hop_limit,
            spare: [0; 5],
            local: Gid::from_ip(attr.path.source).0,
            remote: Gid::from_ip(attr.path.destination).0,
        });
    }

    /// Adds the counters to the device's sum, and ends the record of the queue pair.
    pub(crate) fn retire(&self, transport: &QueuePair) {
        self.hub.ledger.retire(self.block, &transport_values(transport.counters()), &self.entry);
    }
}

#[cfg(test)]
mod tests;

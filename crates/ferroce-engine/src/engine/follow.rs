//! The broker's events, on the background thread.

use std::io;
use std::sync::Arc;

use ferroce_ipc::FaultOrder;

use super::{ConnectionEvent, DeviceChange, Engine, Running};
use ferroce_client::{BrokerEvent, LeasedAddress, PipeOffer};

impl Engine {
    /// Handles the broker's events, on the background thread.
    pub(crate) fn follow_broker(self: &Arc<Self>) {
        for event in self.broker.process() {
            match event {
                BrokerEvent::AddressAdded(address) => {
                    if let Err(error) = self.add_lane(address) {
                        tracing::error!(%error, "an address that appeared cannot be used");
                    }
                }
                BrokerEvent::GidsChanged(id) => {
                    self.tell(id, DeviceChange::Gids);
                    self.settings_changed();
                    self.lanes_changed();
                    if let Some(device) = self.device_by_id(id) {
                        self.groups.follow(&device, self.lanes());
                    }
                }
                BrokerEvent::MacChanged(id, ifindex) => {
                    self.tell(id, DeviceChange::Mac(ifindex));
                }
                BrokerEvent::PortActive(id) => self.tell(id, DeviceChange::PortActive),
                BrokerEvent::PortDown(id) => self.tell(id, DeviceChange::PortDown),
                BrokerEvent::DeviceAdded(_) => {
                    self.take_over_devices();
                    self.settings_changed();
                    self.follow_ports();
                }
                // Verbs have no event for it: queries tell.
                BrokerEvent::DeviceChanged(_) => {
                    self.take_over_devices();
                    self.settings_changed();
                    self.follow_ports();
                }
                BrokerEvent::DeviceRemoved(id) => {
                    self.tell(id, DeviceChange::Dead);
                    self.follow_ports();
                }
                BrokerEvent::Disconnected => {
                    tracing::info!("the broker is gone; traffic goes on");
                    // The broker's programs on the interfaces are gone as well, so packets come by the
                    // sockets.
                    self.set_ports_down(|_| true);
                }
                BrokerEvent::Reconnected => {
                    tracing::info!("a broker took over");
                    self.take_over_devices();
                }
                BrokerEvent::Pipe(offer) => self.add_pipe(offer),
                BrokerEvent::Rings(offer) => self.lanes().install_rings(offer),
                BrokerEvent::Xdp(offer) => self.install_port(offer),
                BrokerEvent::FaultOrder(number, order) => self.obey(number, order),
                BrokerEvent::MadFaults(report) => ferroce_paths::faults::learn(&report),
                BrokerEvent::MadRules(given) => ferroce_paths::faults::given(given),
                BrokerEvent::Connection(event) => self.tell_connections(ConnectionEvent::Cm(*event)),
                BrokerEvent::ConnectionLost(id) => self.tell_connections(ConnectionEvent::Lost(id)),
                BrokerEvent::SlotsLost(slots) => {
                    tracing::error!(?slots, "slots were given to another process: the device is dead");
                    self.tell_connections(ConnectionEvent::SlotsLost(slots));
                    self.fatal();
                }
            }
        }
    }

    fn tell_connections(self: &Arc<Self>, event: ConnectionEvent) {
        if let Some(follow) = self.connection_events.get() {
            follow(self, event);
        }
    }

    /// Another program opened a pipe to this one. Something may be in it already, for which nobody rang: the
    /// lane is looked at.
    fn add_pipe(&self, offer: PipeOffer) {
        let Some((pipes, lane)) = self.running.get().and_then(|running| running.lanes.pipes()) else {
            return;
        };
        if let Err(error) = pipes.add(offer) {
            tracing::warn!(%error, "a pipe of another program cannot be used");
        }
        lane.serve_in_background(1);
    }

    /// Does what the user ordered about faults, and answers.
    fn obey(&self, number: u32, order: FaultOrder) {
        let changes = order != FaultOrder::Show;
        let result = ferroce_paths::faults::obey(order);
        if changes && result.is_ok() {
            self.plan_changed();
        }
        self.broker.report_faults(number, result);
    }

    /// Packets that wait by the earlier plan go on, though all threads sleep, and direct copies end or begin.
    fn plan_changed(&self) {
        if let Some(Running { lanes, .. }) = self.running.get() {
            lanes.all().iter().for_each(|lane| lane.follow_plan());
        }
    }

    fn take_over_devices(&self) {
        self.devices.set(self.broker.known_devices());
    }

    /// Takes over the new view of the devices and tells those contexts that have device `id` open.
    fn tell(&self, id: u32, change: DeviceChange) {
        self.take_over_devices();
        for device in self.open_devices().iter().filter(|device| device.device_id() == id) {
            device.changed(change);
        }
    }

    /// An address appeared after the lease.
    fn add_lane(&self, address: LeasedAddress) -> io::Result<()> {
        if let Some(Running { lanes, .. }) = self.running.get() {
            lanes.add(address)?;
            self.lanes_changed();
        }
        Ok(())
    }

    /// Lanes do as their devices' settings say now.
    fn settings_changed(&self) {
        if let Some(Running { lanes, .. }) = self.running.get() {
            lanes.follow_settings();
        }
    }

    /// Datagrams come in on every lane of their device, and connections take its port.
    pub(super) fn lanes_changed(&self) {
        let Some(Running { lanes, .. }) = self.running.get() else { return };
        lanes.follow_settings();
        self.endpoints_follow(lanes);
    }
}

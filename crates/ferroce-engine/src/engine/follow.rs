//! The broker's events, on the background thread.

use std::sync::Arc;

use super::{DeviceChange, Engine};
use crate::broker::BrokerEvent;

impl Engine {
    /// What the broker tells, on the background thread.
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
                        self.groups.follow(&device, self);
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
                }
                // Verbs have no event for it: queries tell.
                BrokerEvent::DeviceChanged(_) => {
                    self.take_over_devices();
                    self.settings_changed();
                }
                BrokerEvent::DeviceRemoved(id) => self.tell(id, DeviceChange::Dead),
                BrokerEvent::Disconnected => tracing::info!("the broker is gone; traffic goes on"),
                BrokerEvent::Reconnected => {
                    tracing::info!("a broker took over");
                    self.take_over_devices();
                }
                BrokerEvent::Rings(memory) => {
                    if let Some((port, _)) = self.rings()
                        && let Err(error) = port.install(&memory)
                    {
                        tracing::error!(%error, "the rings of the new broker cannot be used");
                    }
                }
                BrokerEvent::Connection(news) => {
                    self.connection_events.get().inspect(|events| events.news(self, *news));
                }
                BrokerEvent::ConnectionLost(id) => {
                    self.connection_events.get().inspect(|events| events.lost(id));
                }
                BrokerEvent::SlotsLost(slots) => {
                    tracing::error!(?slots, "slots were given to another process: the device is dead");
                    self.connection_events.get().inspect(|events| events.lost_slots(&slots));
                    self.fatal();
                }
            }
        }
    }

    fn take_over_devices(&self) {
        self.devices.store(Arc::new(self.broker.known_devices()));
    }

    /// Takes over the new view of the devices and tells those contexts that have device `id` open.
    fn tell(&self, id: u32, change: DeviceChange) {
        self.take_over_devices();
        for device in self.open_devices().iter().filter(|device| device.device_id() == id) {
            device.changed(change);
        }
    }
}

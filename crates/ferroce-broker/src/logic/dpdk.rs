//! Links on devices of DPDK.

use ferroce_host::netdev::Netdev;
use ferroce_ipc::{LinkKind, Refusal, RefusalCode};
use tracing::{error, info};

use super::Broker;
use crate::devices::Devices;
use crate::refusal;
use crate::system::System;

/// The name of the device in DPDK's device arguments.
fn device_of(devargs: &str) -> &str {
    devargs.split(',').next().unwrap_or_default()
}

/// Opens the ports of the links, as far as they are not open. A port that cannot be opened is logged; its
/// link stays, and its tap has no carrier. Returns the interfaces that there are then, or `None` without such
/// a link.
pub(super) fn open_configured(system: &mut impl System, devices: &Devices) -> Option<Vec<Netdev>> {
    let mut netdevs = None;
    for (tap, devargs) in devices.taps() {
        let keep = devices.configured().iter().any(|link| link.netdev == *tap && link.dpdk.is_some());
        match system.open_dpdk(devargs, tap, keep) {
            Ok(all) => netdevs = Some(all),
            Err(sentence) => error!(tap, "the port of a link is not there: {sentence}"),
        }
    }
    netdevs
}

impl<S: System> Broker<S> {
    /// `ferroce link add NAME type rxe netdev dpdk:DEVARGS`.
    pub(super) fn add_dpdk_link(
        &mut self,
        name: &str,
        kind: LinkKind,
        devargs: &str,
        transient: bool,
    ) -> Result<(), Refusal> {
        if kind != LinkKind::Rxe {
            let sentence = "DPDK carries RoCE; an iWARP link stands on the tap of such a link: netdev dpdk0";
            return Err(refusal(RefusalCode::BadRequest, sentence));
        }
        let configured = || self.devices.configured().iter();
        if self.devices.all().any(|device| device.name == name) || configured().any(|link| link.name == name)
        {
            return Err(refusal(RefusalCode::Exists, format!("a device named {name} exists already")));
        }
        if self.devices.all_taps().any(|(_, other)| device_of(other) == device_of(devargs)) {
            let sentence = format!("the device {} of DPDK has a link already", device_of(devargs));
            return Err(refusal(RefusalCode::Exists, sentence));
        }
        let tap = self.devices.free_tap();
        let opened = self.system.open_dpdk(devargs, &tap, !transient);
        self.host = opened.map_err(|sentence| refusal(RefusalCode::Failed, sentence))?;
        self.publish();
        let added = self.change_links(|devices| {
            devices.add_tap(&tap, devargs);
            devices.add_link(name, kind, &tap, transient)
        });
        if added.is_err() {
            self.close_dpdk_port(&tap, false);
        } else {
            info!(name, devargs, tap, transient, "link added on a device of DPDK");
        }
        added
    }

    /// Closes the port with this tap; `keep`: until the next broker, or until somebody starts the links
    /// again.
    pub(super) fn close_dpdk_port(&mut self, tap: &str, keep: bool) {
        self.system.close_dpdk(tap, keep);
        if !keep {
            self.devices.remove_tap(tap);
            self.host.retain(|netdev| netdev.name != *tap);
        }
        self.publish();
    }
}

//! The devices of this network namespace: `fr0` on `lo`, configured links, and devices that single clients
//! asked for.

use std::collections::{BTreeMap, BTreeSet};

use ferroce_ipc::{
    Datapath, DatapathState, DeviceInfo, GidType, LinkKind, LinkSettings, Origin, Refusal, RefusalCode,
    Setting,
};
use tracing::info;

use super::gid_table::{GidTable, Holder};
use super::link_file::ConfiguredLink;
use super::refusal;
use ferroce_host::netdev::{Address, Netdev, addresses_over};

/// Name of the device on `lo` that is always there.
pub const DEFAULT_DEVICE: &str = "fr0";
/// Traffic class rules of all devices, so that they fit a message.
const MOST_RULES: usize = 256;

/// All devices, by id. One netdev has at most one of each kind.
#[derive(Clone, Debug)]
pub struct Devices {
    devices: BTreeMap<u32, Device>,
    /// Links that are to outlive this broker; those whose interface is not there have no device.
    configured: Vec<ConfiguredLink>,
    /// Names of those that are not to be there until the next broker.
    put_away: BTreeSet<String>,
    /// The taps of ports that DPDK drives, with the device arguments; those of links that are put away as
    /// well.
    taps: BTreeMap<String, String>,
    netdevs: Vec<Netdev>,
    /// Whether frames can be sent, and so GIDs of RoCE v1 work.
    frames: bool,
    next_id: u32,
    /// Node GUID of interfaces without a hardware address.
    random_guid: [u8; 8],
}

#[derive(Clone, Debug)]
struct Device {
    info: DeviceInfo,
    gids: GidTable,
    /// Clients whose view this is; for [`Origin::View`] alone.
    viewers: u32,
}

impl Devices {
    /// No device yet: [`Devices::update`] makes the default one, and the configured ones. `random_guid` is
    /// not zero. Where no frames can be sent, no device has GIDs of RoCE v1.
    pub fn new(random_guid: [u8; 8], configured: Vec<ConfiguredLink>, frames: bool) -> Self {
        let taps = configured.iter().filter_map(|link| Some((link.netdev.clone(), link.dpdk.clone()?)));
        Self {
            devices: BTreeMap::new(),
            taps: taps.collect(),
            configured,
            put_away: BTreeSet::new(),
            netdevs: Vec::new(),
            frames,
            next_id: 0,
            random_guid,
        }
    }

    /// The links that are to outlive this broker.
    pub fn configured(&self) -> &[ConfiguredLink] {
        &self.configured
    }

    /// The taps of ports that DPDK drives, by the links that are not put away, with the device arguments.
    pub fn taps(&self) -> impl Iterator<Item = (&String, &String)> {
        let away = |tap: &String| {
            self.configured.iter().any(|link| link.netdev == *tap && self.put_away.contains(&link.name))
        };
        self.taps.iter().filter(move |(tap, _)| !away(tap))
    }

    /// All of them, those of links that are put away as well.
    pub fn all_taps(&self) -> impl Iterator<Item = (&String, &String)> {
        self.taps.iter()
    }

    /// The interface `tap` is the tap of the port with these device arguments.
    pub fn add_tap(&mut self, tap: &str, devargs: &str) {
        self.taps.insert(tap.to_owned(), devargs.to_owned());
    }

    /// The interface `tap` is none any more.
    pub fn remove_tap(&mut self, tap: &str) {
        self.taps.remove(tap);
    }

    /// The tap of the link `name`, if DPDK drives its port, and whether the link outlives the broker.
    pub fn tap_of(&self, name: &str) -> Option<(String, bool)> {
        let configured = self.configured.iter().find(|link| link.name == name && link.dpdk.is_some());
        let is = |info: &&DeviceInfo| info.name == name && info.datapath == DatapathState::Dpdk;
        let tap = self.all().find(is).map(|info| &info.netdev).or(configured.map(|link| &link.netdev));
        Some((tap?.clone(), configured.is_some()))
    }

    /// A name for another tap.
    pub fn free_tap(&self) -> String {
        let free = |name: &String| {
            !self.taps.contains_key(name) && !self.netdevs.iter().any(|netdev| netdev.name == *name)
        };
        (0_u32..).map(|n| format!("dpdk{n}")).find(free).unwrap_or_default()
    }

    /// Takes the host's interfaces as they are now. Returns whether any client's view changed.
    pub fn update(&mut self, netdevs: Vec<Netdev>) -> bool {
        self.netdevs = netdevs;
        let before: Vec<DeviceInfo> = self.devices.values().map(|d| d.info.clone()).collect();
        if !self.devices.values().any(|d| d.info.origin == Origin::Default)
            && let Some(lo) = self.netdevs.iter().find(|n| n.loopback).cloned()
        {
            let configured = self.configured.iter().find(|link| link.name == DEFAULT_DEVICE);
            let settings = configured.map(|link| link.settings.clone()).unwrap_or_default();
            self.insert(DEFAULT_DEVICE.to_owned(), Origin::Default, LinkKind::Rxe, &lo, settings);
        }
        // A link goes with its interface, as the kernel's do. A new interface of that name has another index.
        let netdevs = &self.netdevs;
        self.devices.retain(|_, d| netdevs.iter().any(|n| n.ifindex == d.info.ifindex));
        for link in self.configured.clone() {
            let here = |n: &Netdev| n.name == link.netdev && n.mac == link.mac;
            // Not if somebody gave the name, or the interface, away meanwhile.
            let wanted = !self.put_away.contains(&link.name) && self.netdevs.iter().any(here);
            if wanted && self.add(&link.name, link.kind, &link.netdev, link.settings).is_ok() {
                info!(link.name, kind = link.kind.name(), link.netdev, "configured link");
            }
        }
        let ids: Vec<u32> = self.devices.keys().copied().collect();
        for id in ids {
            self.refresh(id);
        }
        !self.devices.values().map(|d| &d.info).eq(before.iter())
    }

    /// The devices that a client lists: its own first, then configured links, the default device last.
    pub fn view(&self, own: Option<u32>) -> Vec<DeviceInfo> {
        let links = |d: &&Device| d.info.origin == Origin::Link && Some(d.info.id) != own;
        let default = |d: &&Device| d.info.origin == Origin::Default && Some(d.info.id) != own;
        let own = own.and_then(|id| self.devices.get(&id));
        let all = own.into_iter().chain(self.devices.values().filter(links));
        all.chain(self.devices.values().filter(default)).map(|d| d.info.clone()).collect()
    }

    /// All devices, those of single clients as well.
    pub fn all(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.devices.values().map(|d| &d.info)
    }

    /// The id of the device with this name.
    pub fn id_of(&self, name: &str) -> Option<u32> {
        self.all().find(|device| device.name == name).map(|device| device.id)
    }

    /// Whether an interface has the address. Of a default GID that need not be so.
    pub fn is_assigned(&self, address: Address) -> bool {
        let here = |n: &Netdev| n.addresses.iter().any(|&ip| Address::of(ip, n.ifindex) == address);
        self.netdevs.iter().any(here)
    }

    /// Whether a RoCE device has this address.
    pub fn have(&self, address: Address) -> bool {
        self.all().any(|device| has_address(device, address))
    }

    /// The settings of the devices that have this address. Devices with default settings are left out.
    pub fn settings_at(&self, address: Address) -> impl Iterator<Item = &LinkSettings> {
        let set = self.all().filter(|device| device.settings != LinkSettings::default());
        set.filter(move |device| has_address(device, address)).map(|device| &device.settings)
    }

    /// Whether somebody configured a link, which must not vanish with an idle broker.
    pub fn has_links(&self) -> bool {
        self.all().any(|d| d.origin == Origin::Link)
    }

    /// `ferroce link add`; `transient`: not to outlive this broker.
    pub fn add_link(
        &mut self,
        name: &str,
        kind: LinkKind,
        netdev: &str,
        transient: bool,
    ) -> Result<(), Refusal> {
        self.add(name, kind, netdev, LinkSettings::default())?;
        let mac = self.netdev(netdev)?.mac;
        self.put_away.remove(name);
        // A configured link of this name, or of this interface and kind, no longer exists; otherwise this one
        // would have been refused.
        let place = (kind, netdev, mac);
        self.configured.retain(|link| link.name != name && (link.kind, &*link.netdev, link.mac) != place);
        if !transient {
            let settings = LinkSettings::default();
            self.configured.push(ConfiguredLink {
                name: name.to_owned(),
                kind,
                netdev: netdev.to_owned(),
                dpdk: self.taps.get(netdev).filter(|_| kind == LinkKind::Rxe).cloned(),
                mac,
                settings,
            });
        }
        Ok(())
    }

    fn add(
        &mut self,
        name: &str,
        kind: LinkKind,
        netdev: &str,
        settings: LinkSettings,
    ) -> Result<(), Refusal> {
        let below = self.netdev(netdev)?.clone();
        let here = |d: &DeviceInfo| d.ifindex == below.ifindex && d.kind == kind;
        if let Some(taken) = self.all().find(|d| here(d) && d.origin != Origin::View) {
            let sentence = format!("{netdev} has the {} device {} already", kind.transport(), taken.name);
            return Err(refusal(RefusalCode::Exists, sentence));
        }
        if self.all().any(|d| d.name == name && !(here(d) && d.origin == Origin::View)) {
            return Err(refusal(RefusalCode::Exists, format!("a device named {name} exists already")));
        }
        match self.devices.values_mut().find(|d| here(&d.info)) {
            // A device that single clients asked for becomes everybody's, and keeps its place.
            Some(view) => {
                view.info.origin = Origin::Link;
                view.info.name = name.to_owned();
                let id = view.info.id;
                self.apply_settings(id, settings);
            }
            None => {
                self.insert(name.to_owned(), Origin::Link, kind, &below, settings);
            }
        }
        Ok(())
    }

    /// `ferroce link set`: all of `settings` or none; `transient`: only while this broker lives, as for a
    /// link that does not outlive it anyway. `force`: ICRCs may be left unchecked on any interface. Without
    /// the CRC of iWARP the checksum of TCP remains, so that needs no force.
    pub fn set_link(
        &mut self,
        name: &str,
        settings: &[Setting],
        transient: bool,
        force: bool,
    ) -> Result<(), Refusal> {
        let wrong = |sentence: String| refusal(RefusalCode::BadRequest, sentence);
        let found = self.devices.values().find(|d| d.info.name == name && d.info.origin != Origin::View);
        let Some(device) = found.map(|d| d.info.clone()) else {
            return Err(refusal(RefusalCode::UnknownLink, format!("there is no device named {name}")));
        };
        let with =
            |all: LinkSettings, one: &Setting| all.with(one).map_err(|e| wrong(format!("{name}: {e}")));
        let applies = |one: &Setting| one.applies_to(device.kind).map_err(|e| wrong(format!("{name}: {e}")));
        settings.iter().try_for_each(applies)?;
        if device.datapath == DatapathState::Dpdk
            && settings.iter().any(|one| matches!(one, Setting::Datapath(Datapath::Xdp)))
        {
            return Err(wrong(format!("{name}: DPDK drives its port, which has no other datapath")));
        }
        let new = settings.iter().try_fold(device.settings.clone(), with)?;
        let others = self.all().filter(|d| d.id != device.id);
        if others.map(|d| d.settings.rules.len()).sum::<usize>() + new.rules.len() > MOST_RULES {
            return Err(wrong(format!("there can be {MOST_RULES} rules, of all devices")));
        }
        let netdev = self.netdev(&device.netdev)?;
        let unchecked = !new.crc && device.settings.crc && !device.is_iwarp();
        if unchecked && !force && !netdev.virtual_wire {
            return Err(wrong(format!(
                "{} may be a real wire, where nothing else finds what was damaged underway; --force does it all the same",
                device.netdev
            )));
        }
        let frames = new.roce_mode.types().contains(&GidType::RoceV1);
        if frames && new.roce_mode != device.settings.roce_mode && !self.frames && !force {
            let sentence = "RoCE v1 is Ethernet frames, which ferroced may not send: end it and start it with CAP_NET_RAW, or \
                            use a namespace where you have it (ferroce run --private-net)";
            return Err(refusal(RefusalCode::Permission, sentence.to_owned()));
        }
        let mac = netdev.mac;
        if !transient {
            let same = |link: &ConfiguredLink| {
                link.name == name && (device.origin == Origin::Default || link.netdev == device.netdev)
            };
            if device.origin == Origin::Default && !self.configured.iter().any(same) {
                self.configured.push(ConfiguredLink {
                    name: name.to_owned(),
                    kind: device.kind,
                    netdev: device.netdev.clone(),
                    dpdk: None,
                    mac,
                    settings: LinkSettings::default(),
                });
            }
            if let Some(link) = self.configured.iter_mut().find(|link| same(link)) {
                // A setting that contradicts a transient one becomes transient, too.
                for setting in settings {
                    link.settings = link.settings.with(setting).unwrap_or_else(|_| link.settings.clone());
                }
            }
            let nothing = |link: &ConfiguredLink| {
                link.name == DEFAULT_DEVICE && link.settings == LinkSettings::default()
            };
            self.configured.retain(|link| !nothing(link));
        }
        self.apply_settings(device.id, new);
        Ok(())
    }

    /// Gives a device its settings; a table for other types of GIDs begins anew.
    fn apply_settings(&mut self, id: u32, settings: LinkSettings) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let other_types = device.info.settings.roce_mode != settings.roce_mode;
        device.info.settings = settings;
        if other_types {
            device.gids = device.empty_table(&self.netdevs);
        }
        self.refresh(id);
    }

    /// States which way the packets of a device take. A device of DPDK has no other.
    pub fn set_datapath(&mut self, id: u32, state: DatapathState) {
        if let Some(device) = self.devices.get_mut(&id).filter(|d| d.info.datapath != DatapathState::Dpdk) {
            device.info.datapath = state;
        }
    }

    /// `ferroce link delete`; `transient`: a configured one is there again with the next broker. One whose
    /// interface is not there is only forgotten.
    pub fn delete_link(&mut self, name: &str, transient: bool) -> Result<(), Refusal> {
        let known = self.configured.iter().any(|link| link.name == name);
        let Some(device) = self.devices.values_mut().find(|d| d.info.name == name) else {
            if known && !transient {
                self.configured.retain(|link| link.name != name);
                return Ok(());
            }
            return Err(refusal(RefusalCode::UnknownLink, format!("there is no device named {name}")));
        };
        match device.info.origin {
            Origin::Default => {
                let sentence = format!("{name} is the device that is always there");
                return Err(refusal(RefusalCode::BadRequest, sentence));
            }
            Origin::View => {
                return Err(refusal(RefusalCode::UnknownLink, format!("{name} is no configured link")));
            }
            Origin::Link if device.viewers > 0 => device.info.origin = Origin::View,
            Origin::Link => {
                let id = device.info.id;
                self.devices.remove(&id);
            }
        }
        match transient {
            true => drop(self.put_away.insert(name.to_owned())),
            false => self.configured.retain(|link| link.name != name),
        }
        Ok(())
    }

    /// `ferroce dev set … name …`; `transient`: a configured one has its old name again with the next broker.
    /// Programs that have the device open keep it.
    pub fn rename_link(&mut self, name: &str, to: &str, transient: bool) -> Result<(), Refusal> {
        if self.all().any(|d| d.name == to) || self.configured.iter().any(|link| link.name == to) {
            return Err(refusal(RefusalCode::Exists, format!("a device named {to} exists already")));
        }
        let found = self.devices.values_mut().find(|d| d.info.name == name && d.info.origin != Origin::View);
        let Some(device) = found else {
            return Err(refusal(RefusalCode::UnknownLink, format!("there is no device named {name}")));
        };
        if device.info.origin == Origin::Default {
            let sentence = format!("{name} is the device that is always there, under this name");
            return Err(refusal(RefusalCode::BadRequest, sentence));
        }
        device.info.name = to.to_owned();
        match (self.configured.iter_mut().find(|link| link.name == name), transient) {
            (Some(link), false) => link.name = to.to_owned(),
            // Until the next broker no device has the old name.
            (Some(_), true) => drop(self.put_away.insert(name.to_owned())),
            (None, _) => {}
        }
        Ok(())
    }

    /// The RoCE device of a client that asked for `netdev`; give it back by [`Devices::drop_view`].
    pub fn view_of(&mut self, netdev: &str) -> Result<u32, Refusal> {
        let below = self.netdev(netdev)?.clone();
        let here = |d: &&Device| d.info.ifindex == below.ifindex && !d.info.is_iwarp();
        let found = self.devices.values().find(here).map(|d| d.info.id);
        let id = found.unwrap_or_else(|| {
            let free = |name: &String| self.all().all(|d| d.name != *name);
            let name = (1_u32..).map(|n| format!("fr{n}")).find(free).unwrap_or_default();
            self.insert(name, Origin::View, LinkKind::Rxe, &below, LinkSettings::default())
        });
        if let Some(device) = self.devices.get_mut(&id) {
            device.viewers += 1;
        }
        Ok(id)
    }

    /// The client that called [`Devices::view_of`] is gone.
    pub fn drop_view(&mut self, id: u32) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.viewers = device.viewers.saturating_sub(1);
            if device.viewers == 0 && device.info.origin == Origin::View {
                self.devices.remove(&id);
            }
        }
    }

    /// Takes over what a program knew from an earlier broker: links that nobody configured here yet, and GID
    /// indices.
    pub fn restore(&mut self, known: &[DeviceInfo]) {
        for old in known {
            let same = |n: &&Netdev| n.ifindex == old.ifindex && n.name == old.netdev;
            if !self.netdevs.iter().any(|n| same(&n)) {
                continue;
            }
            // A port that only the earlier broker knew is closed, and its tap is gone.
            if old.datapath == DatapathState::Dpdk && !self.taps.contains_key(&old.netdev) {
                continue;
            }
            if old.origin == Origin::Link {
                let _ = self.add(&old.name, old.kind, &old.netdev, old.settings.clone()); // it exists already, or another took its name
            }
            let here = |d: &&mut Device| d.info.ifindex == old.ifindex && d.info.kind == old.kind;
            if let Some(device) = self.devices.values_mut().find(here) {
                if !device.gids.entries().iter().eq(old.gids.iter()) {
                    let mut gids = device.empty_table(&self.netdevs);
                    old.gids.iter().for_each(|entry| gids.restore(entry));
                    device.gids = gids;
                }
                let id = device.info.id;
                match device.info.settings == LinkSettings::default() {
                    true => self.apply_settings(id, old.settings.clone()), // what was set for as long as that broker lived
                    false => self.refresh(id),
                }
            }
        }
    }

    fn netdev(&self, name: &str) -> Result<&Netdev, Refusal> {
        self.netdevs.iter().find(|n| n.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.netdevs.iter().map(|n| n.name.as_str()).collect();
            let sentence = format!("there is no network interface {name:?}; there are: {}", known.join(", "));
            refusal(RefusalCode::UnknownNetdev, sentence)
        })
    }

    fn insert(
        &mut self,
        name: String,
        origin: Origin,
        kind: LinkKind,
        below: &Netdev,
        settings: LinkSettings,
    ) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        let free = |dev_name: &String| self.all().all(|d| d.dev_name != *dev_name);
        let dev_name = (0_u32..).map(|n| format!("uverbs{n}")).find(free).unwrap_or_default();
        let info = DeviceInfo {
            id,
            name,
            dev_name,
            node_guid: below.eui64().unwrap_or(self.random_guid),
            netdev: below.name.clone(),
            ifindex: below.ifindex,
            mtu: below.mtu,
            port_active: false,
            phys_state: below.into(),
            origin,
            kind,
            datapath: Default::default(),
            gids: Vec::new(),
            settings,
            macs: BTreeMap::new(),
        };
        let mut device = Device { info, gids: GidTable::default(), viewers: 0 };
        device.gids = device.empty_table(&self.netdevs);
        self.devices.insert(id, device);
        self.refresh(id);
        id
    }

    /// Brings one device up to date with its interface.
    fn refresh(&mut self, id: u32) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let Some(below) = self.netdevs.iter().find(|n| n.ifindex == device.info.ifindex) else { return };
        let settings = &device.info.settings;
        let frames = self.frames;
        // An iWARP device has no entry that is an address; see `DeviceInfo::gids`.
        let roce = settings.roce && !device.info.is_iwarp();
        let works = |gid_type: &&GidType| roce && (frames || **gid_type == GidType::RoceV2);
        let types: Vec<GidType> = settings.roce_mode.types().iter().filter(works).copied().collect();
        let entries = |(ip, ifindex)| types.iter().map(move |gid_type| (ip, ifindex, *gid_type));
        let default = below.default_gid.map(|ip| (ip.into(), below.ifindex));
        let addresses = addresses_over(&self.netdevs, below);
        let present: Vec<Holder> = default.into_iter().chain(addresses).flat_map(entries).collect();
        device.gids.update(&present);
        device.info.gids = device.gids.entries();
        let holds = |n: &&Netdev| {
            let own = device.info.is_iwarp() && n.ifindex == below.ifindex;
            own || below.bond == Some(n.ifindex)
                || device.info.gids.iter().any(|entry| entry.ifindex == n.ifindex)
        };
        let mac = |n: &Netdev| n.mac.map(|mac| (n.ifindex, mac));
        device.info.macs = self.netdevs.iter().filter(holds).filter_map(mac).collect();
        device.info.netdev.clone_from(&below.name);
        device.info.mtu = below.mtu;
        device.info.phys_state = below.into();
        device.info.port_active = below.up && below.running;
        if self.taps.contains_key(&below.name) && !device.info.is_iwarp() {
            device.info.datapath = DatapathState::Dpdk;
        }
    }
}

/// The addresses of a device's GIDs.
pub(crate) fn gids_of(device: &DeviceInfo) -> impl Iterator<Item = Address> + '_ {
    device.gids.iter().map(|entry| Address::of(entry.gid.to_ip(), entry.ifindex))
}

/// Whether the address is that of a GID of the device.
pub(crate) fn has_address(device: &DeviceInfo, address: Address) -> bool {
    gids_of(device).any(|known| known == address)
}

impl Device {
    /// Its GID table when nothing is in it.
    fn empty_table(&self, netdevs: &[Netdev]) -> GidTable {
        let loopback = netdevs.iter().any(|n| n.ifindex == self.info.ifindex && n.loopback);
        GidTable::new(if loopback { &[] } else { self.info.settings.roce_mode.types() })
    }
}

//! Devices and links as rows: one line of text each, or a JSON array of objects with stable keys. Words and
//! keys are those of rdma(8).

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io::Write;

use anyhow::{Context, Result, bail};
use ferroce_host::{ethtool, rtnetlink};
use ferroce_ipc::sysfs::quads;
use ferroce_ipc::{Datapath, DatapathState, DeviceInfo, PhysState};
use serde::Serialize;

use crate::args::Style;
use crate::ports::Ports;
use crate::settings;

#[derive(Serialize, Debug)]
pub struct Link {
    ifindex: u32,
    ifname: String,
    port: u8,
    state: &'static str,
    physical_state: &'static str,
    netdev: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    netdev_index: Option<u32>,
    /// The type of `link add`, for a device that is not of RoCE. In text it is part of the details.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    /// Flow control of the link and of single priorities, if the driver reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pfc: Option<String>,
    /// The configured settings, in the words of `link set`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    settings: BTreeMap<&'static str, String>,
    /// The datapath that is in use, and the reason if it is not the configured one. Only for a device with
    /// another datapath than UDP, configured or in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    datapath_state: Option<String>,
    /// The AF_XDP ports of programs, among the details.
    #[serde(skip_serializing_if = "Option::is_none")]
    xdp_ports: Option<Ports>,
    /// The reason why the device does not work, although its interface is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize, Debug)]
pub struct Dev {
    ifindex: u32,
    ifname: String,
    node_type: &'static str,
    fw: &'static str,
    node_guid: String,
    sys_image_guid: String,
    #[serde(rename = "adaptive-moderation", skip_serializing_if = "Option::is_none")]
    adaptive_moderation: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caps: Option<&'static [&'static str]>,
}

/// Returns the device in `DEV/PORT`; every device has one port.
pub fn port_of(link: &str) -> Result<&str> {
    match link.split_once('/') {
        None | Some((_, "1")) => Ok(link.split('/').next().unwrap_or_default()),
        Some((device, port)) => bail!("{device} has no port {port}; it has one, {device}/1"),
    }
}

/// Returns all devices with their index, or the one called `which`.
pub fn find<'a>(devices: &'a [DeviceInfo], which: Option<&str>) -> Result<Vec<(u32, &'a DeviceInfo)>> {
    let all = (0..).zip(devices);
    match which {
        None => Ok(all.collect()),
        Some(name) => {
            let found: Vec<_> = all.filter(|(_, device)| device.name == name).collect();
            if found.is_empty() {
                bail!("no device is called {name}; see `ferroce dev show`")
            } else {
                Ok(found)
            }
        }
    }
}

/// The pause parameters of an interface, and the priorities with flow control of their own, a bit each, where
/// the driver tells.
type FlowControl = (Option<[bool; 3]>, Option<u8>);

/// Asks the driver of an interface.
pub fn flow_control(netdev: &str) -> FlowControl {
    (ethtool::pause(netdev), rtnetlink::flow_controlled(netdev))
}

/// Rows of `link show`; with `details` (the flow control of an interface) they include the index of the
/// network device, its flow control and its settings.
pub fn links(devices: Vec<(u32, &DeviceInfo)>, details: Option<&dyn Fn(&str) -> FlowControl>) -> Vec<Link> {
    let told = |device: &DeviceInfo| details.map(|told| told(&device.netdev)).unwrap_or_default();
    let row = |(ifindex, device): (u32, &DeviceInfo)| Link {
        ifindex,
        ifname: device.name.clone(),
        port: 1,
        state: if device.port_active { "ACTIVE" } else { "DOWN" },
        physical_state: match device.phys_state {
            PhysState::Polling => "POLLING",
            PhysState::Disabled => "DISABLED",
            PhysState::LinkUp => "LINK_UP",
        },
        netdev: device.netdev.clone(),
        netdev_index: details.map(|_| device.ifindex),
        kind: device.is_iwarp().then(|| device.kind.name()),
        pause: told(device).0.map(pause),
        pfc: told(device).1.map(priorities),
        settings: details.map(|_| settings::shown(&device.settings)).unwrap_or_default(),
        datapath_state: datapath_state(device),
        xdp_ports: None,
        reason: None,
    };
    devices.into_iter().map(row).collect()
}

impl Link {
    /// Adds the ports of its device, if they are known.
    pub fn set_ports(&mut self, ports: &BTreeMap<String, Ports>) {
        self.xdp_ports = ports.get(&self.ifname).cloned();
    }

    /// Takes into account that others hold the port of some addresses, or of `all`, so that no packet of RoCE
    /// arrives.
    pub fn set_taken(&mut self, holders: &str, all: bool) {
        self.reason = Some(holders.to_owned());
        if all {
            self.state = "DOWN";
        }
    }
}

/// `xdp (native)`, or `udp` with the reason in brackets.
fn datapath_state(device: &DeviceInfo) -> Option<String> {
    let plain = (device.settings.datapath, device.datapath) == (Datapath::Udp, DatapathState::Udp);
    (!plain).then(|| device.datapath.to_string())
}

/// `rx,tx`, preceded by `auto` if the link negotiates it.
fn pause([auto, rx, tx]: [bool; 3]) -> String {
    let words = [(auto, "auto"), (rx, "rx"), (tx, "tx")];
    let set: Vec<&str> = words.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect();
    if set.is_empty() { "off".to_owned() } else { set.join(",") }
}

/// `3,4`.
fn priorities(bits: u8) -> String {
    let set: Vec<String> = (0..8).filter(|n| bits >> n & 1 == 1).map(|n: u8| n.to_string()).collect();
    if set.is_empty() { "off".to_owned() } else { set.join(",") }
}

/// Capabilities of an iWARP device, by their names in rdma(8).
const IWARP_CAPS: &[&str] = &["MEM_WINDOW", "MEM_MGT_EXTENSIONS", "MEM_WINDOW_TYPE_2B"];

/// Capabilities of every RoCE device, by their names in rdma(8).
const CAPS: &[&str] = &[
    "BAD_PKEY_CNTR",
    "BAD_QKEY_CNTR",
    "UD_AV_PORT_ENFORCE_PORT_ENFORCE",
    "CURR_QP_STATE_MOD",
    "PORT_ACTIVE_EVENT",
    "SYS_IMAGE_GUID",
    "RC_RNR_NAK_GEN",
    "SRQ_RESIZE",
    "MEM_WINDOW",
    "XRC",
    "MEM_MGT_EXTENSIONS",
    "MEM_WINDOW_TYPE_2B",
    "MANAGED_FLOW_STEERING",
];

/// Rows of `dev show`; with `details` they include the capabilities.
pub fn devs(devices: Vec<(u32, &DeviceInfo)>, details: bool) -> Vec<Dev> {
    let row = |(ifindex, device): (u32, &DeviceInfo)| {
        let guid = quads(&device.node_guid);
        Dev {
            ifindex,
            ifname: device.name.clone(),
            node_type: if device.is_iwarp() { "rnic" } else { "ca" },
            fw: env!("CARGO_PKG_VERSION"),
            sys_image_guid: guid.clone(),
            node_guid: guid,
            adaptive_moderation: details.then_some("off"),
            caps: details.then_some(if device.is_iwarp() { IWARP_CAPS } else { CAPS }),
        }
    };
    devices.into_iter().map(row).collect()
}

impl Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ifname, port, state, physical_state, netdev, .. } = self;
        write!(f, "link {ifname}/{port} state {state} physical_state {physical_state} netdev {netdev}")?;
        self.netdev_index.map_or(Ok(()), |index| write!(f, " netdev_index {index}"))?;
        self.kind.filter(|_| self.netdev_index.is_some()).map_or(Ok(()), |kind| write!(f, " type {kind}"))?;
        self.pause.as_ref().map_or(Ok(()), |pause| write!(f, " pause {pause}"))?;
        self.pfc.as_ref().map_or(Ok(()), |priorities| write!(f, " pfc {priorities}"))?;
        self.settings.iter().try_for_each(|(key, value)| write!(f, " {key} {value}"))?;
        self.xdp_ports.as_ref().map_or(Ok(()), |ports| write!(f, " xdp_ports {ports}"))?;
        // Reasons have several words, so they are last.
        self.datapath_state.as_ref().map_or(Ok(()), |state| write!(f, " datapath_state {state}"))?;
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, " reason {reason}"))
    }
}

impl Display for Dev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ifindex, ifname, node_type, fw, node_guid, sys_image_guid, adaptive_moderation, caps } =
            self;
        write!(f, "{ifindex}: {ifname}: node_type {node_type} fw {fw} ")?;
        write!(f, "node_guid {node_guid} sys_image_guid {sys_image_guid}")?;
        adaptive_moderation.map_or(Ok(()), |how| write!(f, " adaptive-moderation {how}"))?;
        caps.map_or(Ok(()), |caps| write!(f, "\n    caps: <{}>", caps.join(", ")))
    }
}

/// Prints rows in the given style.
pub fn print<T: Serialize + Display>(rows: &[T], style: Style) -> Result<()> {
    write_text(&text(rows, style)?)
}

/// Writes to standard output. A closed pipe (`| head`) is no error.
pub fn write_text(text: &str) -> Result<()> {
    write_more(text).map(drop)
}

/// As [`write_text`]; returns whether anybody reads more.
pub fn write_more(text: &str) -> Result<bool> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => written.context("standard output").map(|()| true),
    }
}

pub fn text<T: Serialize + Display>(rows: &[T], style: Style) -> Result<String> {
    let lines = || rows.iter().map(|row| format!("{row}\n")).collect();
    Ok(json(rows, style)?.unwrap_or_else(lines))
}

/// The text of JSON; `None` if the style is not JSON.
pub fn json<T: Serialize + ?Sized>(value: &T, style: Style) -> Result<Option<String>> {
    let text = match (style.json, style.pretty) {
        (true, true) => serde_json::to_string_pretty(value)?,
        (true, false) => serde_json::to_string(value)?,
        (false, _) => return Ok(None),
    };
    Ok(Some(text + "\n"))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use ferroce_ipc::{LinkKind, LinkSettings, Origin, RoceMode, Setting};

    pub fn device(name: &str, netdev: &str, active: bool) -> DeviceInfo {
        DeviceInfo {
            id: 7,
            name: name.to_owned(),
            dev_name: "uverbs0".to_owned(),
            node_guid: [0x50, 0x54, 0x00, 0xff, 0xfe, 0x77, 0x00, 0x02],
            netdev: netdev.to_owned(),
            ifindex: 2,
            mtu: 1500,
            port_active: active,
            phys_state: if active { PhysState::LinkUp } else { PhysState::Disabled },
            origin: Origin::Link,
            kind: LinkKind::Rxe,
            datapath: Default::default(),
            gids: Vec::new(),
            settings: LinkSettings::default(),
            macs: Default::default(),
        }
    }

    const TEXT: Style = Style { json: false, pretty: false, details: false };
    const JSON: Style = Style { json: true, ..TEXT };

    #[test]
    fn text_reads_as_the_kernels_tool() {
        let devices = [device("rxe0", "eth0", true), device("fr0", "lo", false)];
        let all = find(&devices, None).unwrap();
        assert_eq!(
            text(&links(all.clone(), None), TEXT).unwrap(),
            "link rxe0/1 state ACTIVE physical_state LINK_UP netdev eth0\n\
             link fr0/1 state DOWN physical_state DISABLED netdev lo\n"
        );
        let one = find(&devices, Some("fr0")).unwrap();
        assert_eq!(
            text(&links(one, Some(&|_| (None, None))), TEXT).unwrap(),
            "link fr0/1 state DOWN physical_state DISABLED netdev lo netdev_index 2\n"
        );
        let version = env!("CARGO_PKG_VERSION");
        let line = format!(
            "0: rxe0: node_type ca fw {version} node_guid 5054:00ff:fe77:0002 sys_image_guid 5054:00ff:fe77:0002\n"
        );
        assert_eq!(text(&devs(find(&devices, Some("rxe0")).unwrap(), false), TEXT).unwrap(), line);
    }

    #[test]
    fn json_keys_are_stable() {
        let devices = [device("rxe0", "eth0", true)];
        assert_eq!(
            text(&links(find(&devices, None).unwrap(), Some(&|_| (None, None))), JSON).unwrap(),
            "[{\"ifindex\":0,\"ifname\":\"rxe0\",\"port\":1,\"state\":\"ACTIVE\",\"physical_state\":\"LINK_UP\",\
             \"netdev\":\"eth0\",\"netdev_index\":2}]\n"
        );
        let text = text(&devs(find(&devices, None).unwrap(), true), JSON).unwrap();
        for key in [
            "ifindex",
            "ifname",
            "node_type",
            "fw",
            "node_guid",
            "sys_image_guid",
            "adaptive-moderation",
            "caps",
        ] {
            assert!(text.contains(&format!("\"{key}\":")), "{key}");
        }
        assert_eq!(super::text(&links(Vec::new(), None), JSON).unwrap(), "[]\n");
        let set = [Setting::RoceMode(RoceMode::Both), Setting::Crc(false)];
        let settings = set.iter().fold(LinkSettings::default(), |all, one| all.with(one).unwrap());
        let devices = [DeviceInfo { settings, ..device("fr1", "eth0", true) }];
        let rows = links(find(&devices, None).unwrap(), Some(&|_| (None, None)));
        assert!(rows[0].to_string().ends_with(" netdev_index 2 crc off roce-mode both"), "{}", rows[0]);
        let json = super::text(&rows, JSON).unwrap();
        assert!(json.contains(",\"settings\":{\"crc\":\"off\",\"roce-mode\":\"both\"}}"), "{json}");
    }

    #[test]
    fn the_datapath_is_told_where_it_is_not_plain() {
        let with = |wanted, state| {
            let settings = LinkSettings { datapath: wanted, ..LinkSettings::default() };
            let devices = [DeviceInfo { settings, datapath: state, ..device("fr1", "eth0", true) }];
            let all = find(&devices, None).unwrap();
            let plain = text(&links(all.clone(), None), TEXT).unwrap();
            let detailed = links(all, Some(&|_| (None, None)));
            (plain, text(&detailed, TEXT).unwrap(), text(&detailed, JSON).unwrap())
        };
        let (plain, detailed, json) = with(Datapath::Udp, DatapathState::Udp);
        assert!(!format!("{plain}{detailed}{json}").contains("datapath"), "{json}");
        let (plain, detailed, json) = with(Datapath::Xdp, DatapathState::XdpGeneric);
        assert!(plain.ends_with(" netdev eth0 datapath_state xdp (generic)\n"), "{plain}");
        assert!(
            detailed.ends_with(" netdev_index 2 datapath xdp datapath_state xdp (generic)\n"),
            "{detailed}"
        );
        let keys = "\"settings\":{\"datapath\":\"xdp\"},\"datapath_state\":\"xdp (generic)\"}";
        assert!(json.contains(keys), "{json}");
        let devices = [DeviceInfo { datapath: DatapathState::XdpNative, ..device("fr1", "eth0", true) }];
        let mut rows = links(find(&devices, None).unwrap(), Some(&|_| (None, None)));
        let counters = [("xdp_ports_direct".to_owned(), 1), ("xdp_ports_pairs".to_owned(), 2)];
        rows[0].set_ports(&[("fr1".to_owned(), Ports::of(&counters).unwrap())].into());
        let words = " xdp_ports direct 1 pairs 2 datapath_state xdp (native)";
        assert!(rows[0].to_string().ends_with(words), "{}", rows[0]);
        assert!(text(&rows, JSON).unwrap().contains(",\"xdp_ports\":{\"direct\":1,\"pairs\":2}"));

        let (plain, ..) = with(Datapath::Xdp, DatapathState::Busy);
        assert!(plain.ends_with(" datapath_state udp (the interface has another XDP program)\n"), "{plain}");
    }

    /// As rdma(8) shows siw; the type is known from the details.
    #[test]
    fn an_iwarp_device_is_an_rnic() {
        let devices = [DeviceInfo { kind: LinkKind::Siw, ..device("siw0", "eth0", true) }];
        let all = find(&devices, None).unwrap();
        let plain = "link siw0/1 state ACTIVE physical_state LINK_UP netdev eth0";
        assert_eq!(text(&links(all.clone(), None), TEXT).unwrap(), format!("{plain}\n"));
        let details = text(&links(all.clone(), Some(&|_| (None, None))), TEXT).unwrap();
        assert_eq!(details, format!("{plain} netdev_index 2 type siw\n"));
        assert!(text(&links(all.clone(), None), JSON).unwrap().contains("\"type\":\"siw\""));
        let line = text(&devs(all, true), TEXT).unwrap();
        assert!(line.starts_with("0: siw0: node_type rnic "), "{line}");
        assert!(line.ends_with("    caps: <MEM_WINDOW, MEM_MGT_EXTENSIONS, MEM_WINDOW_TYPE_2B>\n"), "{line}");
    }

    #[test]
    fn details_tell_of_flow_control_and_capabilities() {
        let devices = [device("rxe0", "eth0", true)];
        let all = find(&devices, None).unwrap();
        let told = |_: &str| (Some([true, true, false]), Some(0b1_1000));
        let line = text(&links(all.clone(), Some(&told)), TEXT).unwrap();
        assert!(line.ends_with(" netdev_index 2 pause auto,rx pfc 3,4\n"), "{line}");
        assert_eq!((pause([false; 3]).as_str(), priorities(0).as_str()), ("off", "off"));
        let line = text(&devs(all, true), TEXT).unwrap();
        assert!(line.contains(" adaptive-moderation off\n    caps: <BAD_PKEY_CNTR, "), "{line}");
    }

    #[test]
    fn unknown_devices_and_ports_are_named() {
        let devices = [device("fr0", "lo", true)];
        assert!(find(&devices, Some("fr1")).unwrap_err().to_string().contains("fr1"));
        assert_eq!(port_of("fr0").unwrap(), "fr0");
        assert_eq!(port_of("fr0/1").unwrap(), "fr0");
        assert!(port_of("fr0/2").is_err());
    }
}

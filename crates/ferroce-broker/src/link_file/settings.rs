//! Settings of a device as the file has them: by name, without those nobody set.

use ferroce_ipc::{Datapath, GidType, LinkSettings, Prefix, RoceMode, Setting, TcRule, XdpPorts};
use ferroce_wire::PathMtu;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Saved {
    #[serde(skip_serializing_if = "Option::is_none")]
    roce_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cm_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cm_tos: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tclass: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<u8>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tc: Vec<SavedRule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    congestion: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    roce: Option<bool>,
    /// In octets.
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    datapath: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    xdp_ports: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct SavedRule {
    tclass: u8,
    src: String,
    dst: String,
}

/// For serde: whether nobody set anything.
pub(super) fn is_default(settings: &LinkSettings) -> bool {
    *settings == LinkSettings::default()
}

/// For serde.
pub(super) fn serialize<S: Serializer>(settings: &LinkSettings, to: S) -> Result<S::Ok, S::Error> {
    let rule = |rule: &TcRule| SavedRule {
        tclass: rule.tclass,
        src: rule.source.to_string(),
        dst: rule.destination.to_string(),
    };
    let default = LinkSettings::default();
    let saved = Saved {
        roce_mode: (settings.roce_mode != default.roce_mode).then(|| settings.roce_mode.name().to_owned()),
        cm_mode: settings.cm_mode.map(|mode| mode.name().to_owned()),
        cm_tos: (settings.cm_tos != default.cm_tos).then_some(settings.cm_tos),
        tclass: settings.tclass,
        ttl: settings.ttl,
        tc: settings.rules.iter().map(rule).collect(),
        crc: (!settings.crc).then_some(false),
        congestion: (!settings.congestion).then_some(false),
        roce: (!settings.roce).then_some(false),
        mtu: settings.mtu.map(PathMtu::bytes),
        datapath: (settings.datapath != default.datapath).then(|| settings.datapath.name().to_owned()),
        xdp_ports: (settings.xdp_ports != default.xdp_ports).then(|| settings.xdp_ports.name().to_owned()),
    };
    saved.serialize(to)
}

/// For serde.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LinkSettings, D::Error> {
    let saved = Saved::deserialize(from)?;
    changes(saved)
        .and_then(|changes| changes.iter().try_fold(LinkSettings::default(), |all, one| all.with(one)))
        .map_err(D::Error::custom)
}

/// The settings to apply in order, or a sentence that names the first invalid one.
fn changes(saved: Saved) -> Result<Vec<Setting>, String> {
    let mut changes = Vec::new();
    if let Some(name) = saved.roce_mode {
        let mode = RoceMode::from_name(&name).ok_or_else(|| format!("roce_mode {name:?}"))?;
        changes.push(Setting::RoceMode(mode));
    }
    if let Some(name) = saved.cm_mode {
        let mode = GidType::from_name(&name).ok_or_else(|| format!("cm_mode {name:?}"))?;
        changes.push(Setting::CmMode(mode));
    }
    changes.extend(saved.cm_tos.map(Setting::CmTos));
    changes.extend(saved.tclass.map(|tclass| Setting::Tclass(Some(tclass))));
    changes.extend(saved.ttl.map(|ttl| Setting::Ttl(Some(ttl))));
    for SavedRule { tclass, src, dst } in saved.tc {
        let prefix = |text: &str| text.parse::<Prefix>().map_err(|e| format!("{text:?}: {e}"));
        let (source, destination) = (prefix(&src)?, prefix(&dst)?);
        changes.push(Setting::Rule(TcRule { tclass, source, destination }));
    }
    changes.extend(saved.crc.map(Setting::Crc));
    changes.extend(saved.congestion.map(Setting::Congestion));
    changes.extend(saved.roce.map(Setting::Roce));
    if let Some(octets) = saved.mtu {
        let mtu = PathMtu::of_bytes(octets).ok_or_else(|| format!("mtu {octets}"))?;
        changes.push(Setting::Mtu(Some(mtu)));
    }
    if let Some(name) = saved.datapath {
        let datapath = Datapath::from_name(&name).ok_or_else(|| format!("datapath {name:?}"))?;
        changes.push(Setting::Datapath(datapath));
    }
    if let Some(name) = saved.xdp_ports {
        let ports = XdpPorts::from_name(&name).ok_or_else(|| format!("xdp_ports {name:?}"))?;
        changes.push(Setting::XdpPorts(ports));
    }
    Ok(changes)
}

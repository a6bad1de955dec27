//! `ferroce link set`: parses and prints settings.

use std::collections::BTreeMap;

use anyhow::Result;
use ferroce_ipc::{Datapath, GidType, LinkSettings, Message, RoceMode, Setting, XdpPorts};
use ferroce_wire::PathMtu;

use crate::{broker, usage::Usage};

/// Executes `SETTING VALUE …`; on an error nothing is set.
pub fn set(device: &str, words: &[String], transient: bool, force: bool) -> Result<()> {
    broker::set(device, parse(words)?, transient, force)
}

/// Executes `name NEWNAME` or `roce { on | off }`.
pub fn set_dev(device: &str, words: &[String], transient: bool) -> Result<()> {
    match words {
        [key, to] if key == "name" => {
            check_name(to)?;
            let (name, to) = (device.to_owned(), to.clone());
            broker::send(&Message::LinkRename { name, to, transient })
        }
        [key, value] if key == "roce" => {
            let on = on_off(value).ok_or_else(|| Usage(format!("roce is on or off, not '{value}'")))?;
            broker::set(device, vec![Setting::Roce(on)], transient, false)
        }
        _ => Err(Usage("expected: name NEWNAME, or roce on or off".to_owned()).into()),
    }
}

/// Refuses what no device can be called, which the broker would take for garbage.
pub fn check_name(name: &str) -> Result<(), Usage> {
    if ferroce_ipc::is_device_name(name) {
        return Ok(());
    }
    Err(Usage(format!("'{name}' is no name of a device: that has 1 to 63 letters, digits, '_', '-' and '.'")))
}

/// The words of settings of a link.
const KNOWN: [&str; 10] =
    ["roce-mode", "cm-mode", "cm-tos", "tclass", "ttl", "mtu", "crc", "congestion", "datapath", "xdp-ports"];

/// Whether `ferroce link set` has this setting.
pub fn is_known(key: &str) -> bool {
    KNOWN.contains(&key)
}

/// Parses `SETTING VALUE …`.
pub fn parse(words: &[String]) -> Result<Vec<Setting>, Usage> {
    words
        .chunks(2)
        .map(|pair| match pair {
            [key, value] => setting(key, value),
            _ => Err(Usage(format!("'{}' lacks a value", pair.concat()))),
        })
        .collect()
}

fn setting(key: &str, value: &str) -> Result<Setting, Usage> {
    let wrong = |want: &str| Usage(format!("{key} is {want}, not '{value}'"));
    let version = || match value {
        "v1" => Some(GidType::RoceV1),
        "v2" => Some(GidType::RoceV2),
        _ => None,
    };
    match key {
        "roce-mode" => match (version(), value) {
            (Some(GidType::RoceV1), _) => Some(RoceMode::V1),
            (Some(GidType::RoceV2), _) => Some(RoceMode::V2),
            (None, "both") => Some(RoceMode::Both),
            _ => None,
        }
        .map(Setting::RoceMode)
        .ok_or_else(|| wrong("v1, v2 or both")),
        "cm-mode" => version().map(Setting::CmMode).ok_or_else(|| wrong("v1 or v2")),
        "cm-tos" => number(value, 0).and_then(|tos| tos.map(Setting::CmTos)).ok_or_else(|| wrong("0 to 255")),
        "tclass" => number(value, 0).map(Setting::Tclass).ok_or_else(|| wrong("0 to 255, or -1 for none")),
        "ttl" => number(value, 1).map(Setting::Ttl).ok_or_else(|| wrong("1 to 255, or -1 for none")),
        "mtu" => {
            mtu(value).map(Setting::Mtu).ok_or_else(|| wrong("256, 512, 1024, 2048 or 4096, or -1 for none"))
        }
        "crc" => on_off(value).map(Setting::Crc).ok_or_else(|| wrong("on or off")),
        "congestion" => on_off(value).map(Setting::Congestion).ok_or_else(|| wrong("on or off")),
        "datapath" => Datapath::from_name(value).map(Setting::Datapath).ok_or_else(|| wrong("udp or xdp")),
        "xdp-ports" => {
            XdpPorts::from_name(value).map(Setting::XdpPorts).ok_or_else(|| wrong("auto, direct or pairs"))
        }
        _ => Err(Usage(format!(
            "setting '{key}' is unknown; there are roce-mode, cm-mode, cm-tos, tclass, ttl, mtu, crc, congestion, datapath and xdp-ports"
        ))),
    }
}

/// The configured settings, and the other values that they change.
pub fn shown(settings: &LinkSettings) -> BTreeMap<&'static str, String> {
    let default = LinkSettings::default();
    let number = |value: Option<u8>| value.map(|value| value.to_string());
    let off = |on: bool| (!on).then(|| "off".to_owned());
    let other = |differs: bool, value: String| differs.then_some(value);
    let all = [
        ("roce-mode", other(settings.roce_mode != default.roce_mode, settings.roce_mode.name().to_owned())),
        ("cm-mode", settings.cm_mode.map(|_| settings.cm_type().name().to_owned())),
        ("cm-tos", other(settings.cm_tos != default.cm_tos, settings.cm_tos.to_string())),
        ("tclass", number(settings.tclass)),
        ("ttl", number(settings.ttl)),
        ("tc-rules", other(!settings.rules.is_empty(), settings.rules.len().to_string())),
        ("mtu", settings.mtu.map(|mtu| mtu.bytes().to_string())),
        ("crc", off(settings.crc)),
        ("congestion", off(settings.congestion)),
        ("datapath", other(settings.datapath != default.datapath, settings.datapath.name().to_owned())),
        ("xdp-ports", other(settings.xdp_ports != default.xdp_ports, settings.xdp_ports.name().to_owned())),
        ("roce", off(settings.roce)),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// Parses a RoCE MTU in octets; `Some(None)` for a negative one.
fn mtu(word: &str) -> Option<Option<PathMtu>> {
    match word.parse::<i32>().ok()? {
        ..0 => Some(None),
        octets => PathMtu::of_bytes(octets as usize).map(Some),
    }
}

/// Parses `on` or `off`.
fn on_off(word: &str) -> Option<bool> {
    match word {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// Parses a number from `least` to 255, decimal or `0x` and hexadecimal; `Some(None)` for a negative one.
pub fn number(word: &str, least: u8) -> Option<Option<u8>> {
    let value = match word.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
            i64::from_str_radix(digits, 16).ok()?
        }
        Some(_) => return None,
        None => word.parse::<i64>().ok()?,
    };
    match u8::try_from(value) {
        Ok(value) if value >= least => Some(Some(value)),
        Err(_) if value < 0 => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<Vec<Setting>, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        parse(&words).map_err(|e| e.to_string())
    }

    #[test]
    fn names_that_no_device_can_have_are_refused_here() {
        for bad in ["", "bad/name", "a b", "ü", &"x".repeat(80)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_name("rxe_0-a.1").is_ok());
    }

    #[test]
    fn settings_are_words_with_values() {
        assert_eq!(
            words(
                "roce-mode both cm-mode v1 cm-tos 0x60 tclass -1 ttl 255 crc off congestion off datapath xdp xdp-ports pairs"
            ),
            Ok(vec![
                Setting::RoceMode(RoceMode::Both),
                Setting::CmMode(GidType::RoceV1),
                Setting::CmTos(96),
                Setting::Tclass(None),
                Setting::Ttl(Some(255)),
                Setting::Crc(false),
                Setting::Congestion(false),
                Setting::Datapath(Datapath::Xdp),
                Setting::XdpPorts(XdpPorts::Pairs),
            ])
        );
        for (bad, sentence) in [
            ("roce-mode", "'roce-mode' lacks a value"),
            ("roce-mode v3", "roce-mode is v1, v2 or both, not 'v3'"),
            ("cm-mode both", "cm-mode is v1 or v2, not 'both'"),
            ("cm-tos -1", "cm-tos is 0 to 255, not '-1'"),
            ("tclass 256", "tclass is 0 to 255, or -1 for none, not '256'"),
            ("tclass x", "tclass is 0 to 255, or -1 for none, not 'x'"),
            ("ttl 0", "ttl is 1 to 255, or -1 for none, not '0'"),
            ("crc maybe", "crc is on or off, not 'maybe'"),
            ("congestion ecn", "congestion is on or off, not 'ecn'"),
            ("datapath packet", "datapath is udp or xdp, not 'packet'"),
            ("xdp-ports near", "xdp-ports is auto, direct or pairs, not 'near'"),
            ("mtu 1000", "mtu is 256, 512, 1024, 2048 or 4096, or -1 for none, not '1000'"),
            (
                "pfc 3",
                "setting 'pfc' is unknown; there are roce-mode, cm-mode, cm-tos, tclass, ttl, mtu, crc, congestion, datapath and xdp-ports",
            ),
        ] {
            assert_eq!(words(bad), Err(sentence.to_owned()), "{bad}");
        }
    }

    #[test]
    fn every_known_setting_has_a_value() {
        for key in KNOWN {
            let said = words(&format!("{key} no-such-value")).unwrap_err();
            assert!(said.starts_with(&format!("{key} is ")), "{said}");
        }
        assert!(!is_known("pfc") && words("pfc 3").unwrap_err().contains(&KNOWN[..9].join(", ")));
    }
}

//! `ferroce top --html`: the timeline of a capture, as one file for a browser.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ferroce_fault::pcapng::{Captured, Link};
use ferroce_fault::{Dir, Facts, Side};
use ferroce_wire::{Frame, Packet};
use serde_json::{Value, json};

use crate::capture::Source;

const TEMPLATE: &str = include_str!("page.html");
/// Place of the data in the template.
const DATA: &str = "{{DATA}}";
/// The most packets that a page shows: a browser draws more too slowly.
const MOST: usize = 200_000;

/// Writes the page of a capture.
pub fn write(capture: &Path, page: &Path) -> Result<()> {
    let text = of(capture).with_context(|| capture.display().to_string())?;
    fs::write(page, text).with_context(|| page.display().to_string())
}

fn of(capture: &Path) -> Result<String> {
    let mut source = Source::new(File::open(capture)?);
    ensure!(source.is_ours()?, "not a file of `ferroce capture` or `ferroce run --capture`");
    let (mut packets, mut total, mut first) = (VecDeque::new(), 0_u64, None);
    while source.advance()? {
        let Some(packet) = source.packet() else { continue };
        let since = packet.nanos.saturating_sub(*first.get_or_insert(packet.nanos));
        packets.push_back(row(&packet, since));
        if packets.len() > MOST {
            packets.pop_front();
        }
        total += 1;
    }
    let file = capture.file_name().unwrap_or_default().to_string_lossy();
    Ok(filled(&json!({ "file": file, "total": total, "packets": packets })))
}

/// A packet for the page: nanoseconds since the first one, 1 if it was received, operation, place in its
/// message, PSN, octets of payload, comment.
fn row(captured: &Captured<'_>, since: u64) -> Value {
    let received = u8::from(captured.dir == Some(Dir::Rx));
    let comment = String::from_utf8_lossy(captured.comment);
    let frame = match captured.link {
        Link::Ip => Frame::parse_ip(captured.octets),
        Link::Ethernet => Frame::parse(captured.octets),
    };
    let side = Side { dir: Dir::Rx, dev: None, qp: 0, peer: IpAddr::V4(Ipv4Addr::LOCALHOST) };
    match frame.map(|frame| Packet::parse(frame.transport)) {
        Ok(Ok(packet)) => {
            let Facts { op, pos, psn, len, .. } = Facts::of(&packet, &side, 0, 0);
            json!([since, received, op.word(), pos.word(), psn.value(), len, comment])
        }
        _ => json!([since, received, "no RoCE packet", "", 0, 0, comment]),
    }
}

/// The template with its data, in which nothing ends the element that holds it.
fn filled(data: &Value) -> String {
    TEMPLATE.replacen(DATA, &data.to_string().replace('<', "\\u003c"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_stays_in_its_string() {
        let name = "</script><script>alert(1)</script><!--\"\\";
        let (octets, comment) = (&[][..], name.as_bytes());
        let packet = Captured { nanos: 7, link: Link::Ip, dir: None, octets, comment };
        let text = filled(&json!({ "file": name, "total": 1, "packets": [row(&packet, 0)] }));
        let ends = |text: &str| text.matches("</script>").count();
        assert_eq!(ends(&text), ends(TEMPLATE));
        assert!(!text.contains("<!--") && !text.contains("<script>alert"), "{text}");
        let (_, behind) = text.split_once("id=\"data\">").unwrap();
        let (json, _) = behind.split_once("</script>").unwrap();
        let read: Value = serde_json::from_str(json).unwrap();
        assert_eq!((&read["file"], &read["packets"][0][6]), (&json!(name), &json!(name)));
    }

    #[test]
    fn the_page_needs_no_other_file_and_makes_no_elements_of_texts() {
        for word in ["http://", "https://", "src=", "href=", "@import", "url(", "innerHTML"] {
            assert!(!TEMPLATE.contains(word), "{word}");
        }
    }
}

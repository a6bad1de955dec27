//! `ferroce top --html`: the timeline of a capture, as one file for a browser.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ferroce_fault::pcapng::{Captured, Link};
use ferroce_fault::{Dir, Facts, Op, Side};
use ferroce_wire::{Frame, Packet};
use serde::Serialize;

use crate::capture::Source;

const TEMPLATE: &str = include_str!("page.html");
/// Place of the data in the template.
const DATA: &str = "{{DATA}}";
/// The most packets that a page shows: a browser draws more too slowly.
const MOST: usize = 200_000;

/// Kinds of packets, in the order of the page's colours.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Request,
    Response,
    Ack,
    Nak,
    Repeat,
    Other,
}

/// A packet of the page: nanoseconds since the first packet, kind, 1 if it was received, the text of the tip.
type Mark = (u64, usize, u8, String);

/// A queue pair.
#[derive(Serialize, Default)]
struct Lane {
    name: String,
    /// Packets sent and received.
    ways: [u64; 2],
    /// Packets by kind.
    counts: [u64; 6],
    packets: Vec<Mark>,
    #[serde(skip)]
    seen: HashSet<(bool, Kind, u32)>,
}

#[derive(Serialize)]
struct Page<'a> {
    file: &'a str,
    total: u64,
    shown: usize,
    lanes: Vec<Lane>,
}

/// Writes the page of a capture.
pub fn write(capture: &Path, page: &Path) -> Result<()> {
    let text = of(capture).with_context(|| capture.display().to_string())?;
    fs::write(page, text).with_context(|| page.display().to_string())
}

fn of(capture: &Path) -> Result<String> {
    let mut source = Source::new(File::open(capture)?);
    ensure!(source.is_ours()?, "not a file of `ferroce capture` or `ferroce run --capture`");
    let mut lanes: Vec<Lane> = Vec::new();
    let mut known = BTreeMap::new();
    let mut marks = VecDeque::new();
    let (mut total, mut first) = (0, None);
    while source.advance()? {
        let Some(packet) = source.packet() else { continue };
        let comment = String::from_utf8_lossy(packet.comment);
        let name = comment.split(" dir ").next().unwrap_or_default();
        let place = *known.entry(name.to_owned()).or_insert_with(|| {
            lanes.push(Lane { name: name.to_owned(), ..Lane::default() });
            lanes.len() - 1
        });
        let Some(lane) = lanes.get_mut(place) else { continue };
        let (kind, title) = lane.read(&packet).unwrap_or((Kind::Other, "no RoCE packet".to_owned()));
        let received = packet.dir == Some(Dir::Rx);
        lane.counts[kind as usize] += 1;
        lane.ways[usize::from(received)] += 1;
        let since = packet.nanos.saturating_sub(*first.get_or_insert(packet.nanos));
        marks.push_back((place, (since, kind as usize, received.into(), format!("{title}\n{comment}"))));
        if marks.len() > MOST {
            marks.pop_front();
        }
        total += 1;
    }
    let shown = marks.len();
    for (place, mark) in marks {
        lanes[place].packets.push(mark);
    }
    let file = capture.file_name().unwrap_or_default().to_string_lossy();
    Ok(filled(&Page { file: &file, total, shown, lanes })?)
}

impl Lane {
    /// The kind of a packet, and its title.
    fn read(&mut self, captured: &Captured<'_>) -> Option<(Kind, String)> {
        let frame = match captured.link {
            Link::Ip => Frame::parse_ip(captured.octets),
            Link::Ethernet => Frame::parse(captured.octets),
        };
        let transport = frame.ok()?.transport;
        let packet = Packet::parse(transport).ok()?;
        let side = Side { dir: Dir::Rx, dev: None, qp: 0, peer: IpAddr::V4(Ipv4Addr::LOCALHOST) };
        let Facts { op, pos, psn, len, .. } = Facts::of(&packet, &side, 0, transport.len());
        let kind = match op {
            Op::Ack => Kind::Ack,
            Op::Nak | Op::Rnr => Kind::Nak,
            Op::ReadResp | Op::AtomicAck => Kind::Response,
            Op::Send | Op::Write | Op::Read | Op::Atomic | Op::AtomicWrite | Op::Flush => Kind::Request,
            _ => Kind::Other,
        };
        let carries = matches!(kind, Kind::Request | Kind::Response);
        let is_new = !carries || self.seen.insert((captured.dir == Some(Dir::Rx), kind, psn.value()));
        let title = format!("{} {} PSN {:#x}, {len} octets", op.word(), pos.word(), psn.value());
        Some((if is_new { kind } else { Kind::Repeat }, title))
    }
}

/// The template with its data, in which nothing ends the element that holds it.
fn filled(page: &Page<'_>) -> serde_json::Result<String> {
    let json = serde_json::to_string(page)?.replace('<', "\\u003c");
    Ok(TEMPLATE.replacen(DATA, &json, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_stays_in_its_string() {
        let name = "</script><script>alert(1)</script><!--\"\\".to_owned();
        let lane = Lane { packets: vec![(0, 0, 0, name.clone())], name: name.clone(), ..Lane::default() };
        let text = filled(&Page { file: &name, total: 1, shown: 1, lanes: vec![lane] }).unwrap();
        let ends = |text: &str| text.matches("</script>").count();
        assert_eq!(ends(&text), ends(TEMPLATE));
        assert!(!text.contains("<!--") && !text.contains("<script>alert"), "{text}");
        let (_, behind) = text.split_once("id=\"data\">").unwrap();
        let (json, _) = behind.split_once("</script>").unwrap();
        let read: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(read["lanes"][0]["name"], name.as_str());
        assert_eq!(read["lanes"][0]["packets"][0][3], name.as_str());
    }

    #[test]
    fn the_page_needs_no_other_file() {
        for word in ["http://", "https://", "src=", "href=", "@import", "url("] {
            assert!(!TEMPLATE.contains(word), "{word}");
        }
    }
}

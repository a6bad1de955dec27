//! The tables of a scenario file. The module [`resolve`](super::resolve) turns them into a scenario.

use serde::Deserialize;
use toml::{Spanned, Table};

use super::words::{Congestion, Depth, Loss, Mtu, Octets, Op, Rate, Selective, Status, Time};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub seed: Option<u64>,
    pub end: Spanned<Time>,
    pub warm_up: Option<Spanned<Time>>,
    pub max_packets: Option<Spanned<u64>>,
    #[serde(default)]
    pub host: Vec<Host>,
    #[serde(default)]
    pub switch: Vec<Switch>,
    #[serde(default)]
    pub link: Vec<Link>,
    #[serde(default)]
    pub flow: Vec<FlowTable>,
    #[serde(default)]
    pub fault: Vec<Fault>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Host {
    pub name: Spanned<String>,
    pub count: Option<Spanned<usize>>,
    pub mtu: Option<Mtu>,
    pub buffer: Option<Spanned<Octets>>,
    pub per_packet: Option<Spanned<Time>>,
    pub batch: Option<Spanned<usize>>,
    pub jitter: Option<Spanned<Time>>,
    pub congestion: Option<Congestion>,
    pub selective_repeat: Option<Selective>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Switch {
    pub name: Spanned<String>,
    pub count: Option<Spanned<usize>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Link {
    pub ends: Spanned<Vec<Spanned<String>>>,
    pub rate: Rate,
    pub delay: Option<Spanned<Time>>,
    pub queue: Option<Spanned<Depth>>,
    pub mark: Option<Depth>,
    pub loss: Option<Loss>,
    #[serde(default)]
    pub down: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowTable {
    pub name: Option<String>,
    pub from: Spanned<String>,
    pub to: Spanned<String>,
    pub op: Spanned<Op>,
    pub size: Option<Spanned<Octets>>,
    pub messages: Option<Spanned<u64>>,
    pub duration: Option<Spanned<Time>>,
    pub outstanding: Option<Spanned<u32>>,
    pub receives: Option<Spanned<u32>>,
    pub receive_delay: Option<Spanned<Time>>,
    pub queue_pairs: Option<Spanned<usize>>,
    pub start: Option<Spanned<Time>>,
    pub timeout: Option<Spanned<u8>>,
    pub retry_cnt: Option<Spanned<u8>>,
    pub rnr_retry: Option<Spanned<u8>>,
    pub min_rnr_timer: Option<Spanned<u8>>,
    pub rd_atomic: Option<Spanned<u8>>,
    pub expect: Option<Spanned<Status>>,
    pub ecn: Option<Spanned<bool>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fault {
    pub host: Option<Spanned<String>>,
    pub link: Option<Spanned<Vec<Spanned<String>>>>,
    pub name: Option<Spanned<String>>,
    pub r#do: Spanned<String>,
    #[serde(default)]
    pub r#if: Option<Spanned<Table>>,
}

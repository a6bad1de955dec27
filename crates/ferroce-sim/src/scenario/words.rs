//! The values of scenario files: text with units, and words.

use std::ops::Range;
use std::time::Duration;

use ferroce_fault::{Probability, units};
use ferroce_proto::{CongestionControl, SelectiveRepeat, WcStatus};
use ferroce_wire::PathMtu;
use serde::Deserialize;
use toml::Value;

use super::outcome::status_name;

/// An operation of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// FETCH ADD of 8 octets.
    Atomic,
}

/// A value that is read from text by a function.
macro_rules! text {
    ($(#[$doc:meta] $name:ident($type:ty) = $read:expr;)*) => {$(
        #[$doc]
        #[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
        #[serde(try_from = "Value")]
        pub struct $name(pub $type);

        impl TryFrom<Value> for $name {
            type Error = String;

            fn try_from(value: Value) -> Result<Self, String> {
                let text = match value {
                    Value::String(text) => text,
                    Value::Integer(number) => number.to_string(),
                    other => return Err(format!("expected text, such as \"10us\", and this is of type {}", other.type_str())),
                };
                let read: fn(&str) -> Result<$type, String> = $read;
                read(text.trim()).map($name).map_err(|why| format!("{why}; this is {text:?}"))
            }
        }
    )*};
}

fn told<T>(result: Result<T, &'static str>) -> Result<T, String> {
    result.map_err(str::to_owned)
}

text! {
    /// A time.
    Time(Duration) = |text| told(units::time(text));
    /// Bits a second.
    Rate(u64) = |text| told(units::bits(text));
    /// Octets.
    Octets(u64) = |text| told(units::octets(text));
    /// Octets, or the time that they take.
    Depth(Room) = room;
    /// Parts of a million.
    Loss(u32) = |text| told(units::probability(text)).map(|Probability(parts)| parts.div_ceil(1000));
    /// Octets of payload of a packet.
    Mtu(PathMtu) = mtu;
    /// The status of a completion that is an error.
    Status(WcStatus) = status;
    /// `FERROCE_CONGESTION`.
    Congestion(CongestionControl) = |text| word(text, &[
        ("off", CongestionControl::Off),
        ("react", CongestionControl::React),
        ("ecn", CongestionControl::Full),
    ]);
    /// `FERROCE_SELECTIVE_REPEAT`.
    Selective(SelectiveRepeat) = |text| word(text, &[
        ("off", SelectiveRepeat::Off),
        ("on", SelectiveRepeat::Offered),
        ("cm", SelectiveRepeat::Agreed),
    ]);
    /// The operation of a flow.
    Op(Kind) = |text| word(text, &[
        ("send", Kind::Rdma(Operation::Send)),
        ("write", Kind::Rdma(Operation::Write)),
        ("read", Kind::Rdma(Operation::Read)),
        ("atomic", Kind::Rdma(Operation::Atomic)),
        ("tcp", Kind::Tcp),
    ]);
}

/// Room in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    Octets(u64),
    Time(Duration),
}

/// Messages, or a TCP flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Rdma(Operation),
    Tcp,
}

impl Room {
    /// In octets, in front of a link of this rate.
    pub fn octets(self, bits_per_second: u64) -> u64 {
        match self {
            Self::Octets(octets) => octets,
            Self::Time(time) => {
                let bits = time.as_nanos() * u128::from(bits_per_second) / 1_000_000_000;
                u64::try_from(bits / 8).unwrap_or(u64::MAX)
            }
        }
    }
}

fn room(text: &str) -> Result<Room, String> {
    match (units::octets(text), units::time(text)) {
        (Ok(octets), _) => Ok(Room::Octets(octets)),
        (_, Ok(time)) => Ok(Room::Time(time)),
        _ => Err("room in a queue is an amount such as \"256k\", or a time such as \"5ms\"".to_owned()),
    }
}

fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let list = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    words
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, value)| *value)
        .ok_or_else(|| format!("expected one of {}", list()))
}

fn mtu(text: &str) -> Result<PathMtu, String> {
    let known = PathMtu::ALL.into_iter().find(|mtu| mtu.bytes().to_string() == text);
    known.ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096".to_owned())
}

/// The errors with which a message between connected queue pairs can end.
const STATUS: [WcStatus; 10] = [
    WcStatus::LocLenErr,
    WcStatus::LocQpOpErr,
    WcStatus::LocProtErr,
    WcStatus::WrFlushErr,
    WcStatus::BadRespErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
];

fn status(text: &str) -> Result<WcStatus, String> {
    let known = STATUS.into_iter().find(|status| status_name(*status) == text);
    let list = || STATUS.map(status_name).join(", ");
    known.ok_or_else(|| format!("expected one of {}", list()))
}

/// `10ms..12ms`, `10ms..`: from the first time, before the second.
pub fn outage(text: &str) -> Result<Range<Duration>, String> {
    let want = || "an outage is two times such as \"10ms..12ms\", or \"10ms..\"".to_owned();
    let (from, until) = text.split_once("..").ok_or_else(want)?;
    let from = units::time(from.trim()).map_err(|_| want())?;
    let until = match until.trim() {
        "" => Duration::MAX,
        text => units::time(text).map_err(|_| want())?,
    };
    if from < until { Ok(from..until) } else { Err(want()) }
}

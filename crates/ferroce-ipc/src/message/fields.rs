//! The bytes of the types that messages contain: each type's fields in the order in which [`fields`] lists
//! them, and rules for fields whose type has more values than are valid.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ferroce_cm::{
    AcceptParams, ConnectParams, Disconnect, ListenerId, PerMessage, Route, SidrAnswer, SidrParams,
};
use ferroce_wire::cm::{
    About, CmTime, CommId, Ece, Info, Mad, Message, PortSpace, PrivateData, RejReason, Rep, Req, ServiceId,
    SidrRep, SidrReq, SidrStatus, Transport,
};
use ferroce_wire::mad::MAD_LEN;
use ferroce_wire::{Gid, PathMtu, Psn, Qkey, Qpn};

use crate::codec::{MessageError, Reader, Writer};

/// A type that messages contain.
pub(super) trait Field: Sized {
    /// Whether a table has the length of each row before the row, so that a newer minor version may lengthen
    /// rows.
    const IS_ROW: bool = false;

    fn put(&self, w: &mut Writer);
    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError>;
}

/// Appends a field, by its rule if it has one.
macro_rules! put {
    ($value:expr, $w:expr) => {
        Field::put($value, $w)
    };
    ($value:expr, $w:expr, $rule:expr) => {
        $rule.put($value, $w)
    };
}
pub(super) use put;

/// Reads a field, by its rule if it has one.
macro_rules! take {
    ($r:expr) => {
        Field::take($r)?
    };
    ($r:expr, $rule:expr) => {
        $rule.take($r)?
    };
}
pub(super) use take;

/// A structure is its fields, one after the other.
macro_rules! fields {
    ($($name:ident { $($field:ident $(as $rule:ident)?),+ $(,)? })+) => {$(
        impl Field for $name {
            const IS_ROW: bool = true;

            fn put(&self, w: &mut Writer) {
                let Self { $($field),+ } = self;
                $($crate::message::fields::put!($field, w $(, $rule)?);)+
            }

            fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
                Ok(Self { $($field: $crate::message::fields::take!(r $(, $rule)?)),+ })
            }
        }
    )+};
}
pub(super) use fields;

/// An enum is the number of its variant, then the variant's fields. `_` is for what only a newer build knows.
macro_rules! variants {
    ($($name:ident: $what:tt {
        $($code:literal => $variant:ident
            $(($inner:ident $(as $inner_rule:ident)?))?
            $({ $($field:ident $(as $rule:ident)?),+ })?,)+
        $(_ => $other:ident $(($number:ident))?,)?
    })+) => {$(
        impl Field for $name {
            const IS_ROW: bool = true;

            fn put(&self, w: &mut Writer) {
                match self {
                    $(Self::$variant $(($inner))? $({ $($field),+ })? => {
                        w.bytes(&[$code]);
                        $($crate::message::fields::put!($inner, w $(, $inner_rule)?);)?
                        $($($crate::message::fields::put!($field, w $(, $rule)?);)+)?
                    })+
                    $($(Self::$other($number) => w.bytes(&[*$number]),)?)?
                }
            }

            fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
                let [code] = r.array()?;
                #[allow(unused_mut)] // An enum without fields reads no more.
                let mut known = || Ok(match code {
                    $($code => {
                        $(let $inner = $crate::message::fields::take!(r $(, $inner_rule)?);)?
                        Self::$variant
                            $(($inner))?
                            $({ $($field: $crate::message::fields::take!(r $(, $rule)?)),+ })?
                    })+
                    other => return Err(MessageError::Value { field: $what, value: other.into() }),
                });
                known()$(.or(Ok({
                    $(let $number = code;)?
                    Self::$other $(($number))?
                })))?
            }
        }
    )+};
}
pub(super) use variants;

/// A type that stands for a number, all of whose values are valid.
macro_rules! numbers {
    ($($name:ident: $number:expr, $from:expr;)+) => {$(
        impl Field for $name {
            fn put(&self, w: &mut Writer) {
                let number: fn(&Self) -> _ = $number;
                number(self).put(w);
            }

            fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
                Field::take(r).map($from)
            }
        }
    )+};
}

/// A type that stands for a number, not all of whose values are valid.
macro_rules! codes {
    ($($name:ty: $field:literal, $code:expr, $from:expr;)+) => {$(
        impl Field for $name {
            fn put(&self, w: &mut Writer) {
                let code: fn(&Self) -> _ = $code;
                code(self).put(w);
            }

            fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
                let code = Field::take(r)?;
                let value = u64::from(code);
                $from(code).ok_or(MessageError::Value { field: $field, value })
            }
        }
    )+};
}

macro_rules! integers {
    ($($name:ident)+) => {$(
        impl Field for $name {
            fn put(&self, w: &mut Writer) {
                w.bytes(&self.to_le_bytes());
            }

            fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
                Ok(Self::from_le_bytes(r.array()?))
            }
        }
    )+};
}

/// A message of the wire is a MAD.
macro_rules! mads {
    ($($name:ident)+) => {$(
        impl Field for $name {
            fn put(&self, w: &mut Writer) {
                w.bytes(&Mad { transaction_id: 0, message: Message::$name(*self) }.emit());
            }

            fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
                match Mad::parse(r.take(MAD_LEN)?).map(|mad| mad.message) {
                    Ok(Message::$name(message)) => Ok(message),
                    _ => Err(MessageError::Value { field: "mad", value: 0 }),
                }
            }
        }
    )+};
}

integers! { u8 u16 u32 u64 }

fields! {
    ConnectParams {
        route, peer_to_peer, service_id, ca_guid, qpn, starting_psn, transport, responder_resources,
        initiator_depth, flow_control, retry_count, rnr_retry_count, srq, path_mtu, packet_life, ack_delay,
        response_timeout, max_cm_retries, traffic_class, hop_limit, flow_label, sl, ece, private,
    }
    AcceptParams {
        ca_guid, qpn, responder_resources, initiator_depth, ack_delay, flow_control, rnr_retry_count, srq, ece,
        private,
    }
    SidrParams { route, service_id, response_timeout, max_cm_retries, traffic_class, private }
    SidrAnswer { status, qpn, qkey, ece, private }
    Ece { vendor_id, options }
    Info { len, bytes }
}

numbers! {
    CommId: |id| id.0, CommId;
    Psn: |psn| psn.value(), Psn::new;
    Qpn: |qpn| qpn.value(), Qpn::new;
    Qkey: |qkey| qkey.value(), Qkey::new;
    ServiceId: |id| id.0, ServiceId;
    ListenerId: |id| id.0, ListenerId;
    About: |about| about.0, About;
    RejReason: |reason| reason.0, RejReason;
    SidrStatus: |status| status.0, SidrStatus;
    PerMessage: |counts| counts.0, PerMessage;
    Gid: |gid| gid.0, Gid;
    IpAddr: |ip| Gid::from_ip(*ip), Gid::to_ip;
    SocketAddr: |address| (address.ip(), address.port()), <SocketAddr as From<(IpAddr, u16)>>::from;
}

codes! {
    bool: "flag", |flag| u8::from(*flag), |code: u8| [false, true].get(usize::from(code)).copied();
    CmTime: "time", |time| time.code(), CmTime::new;
    PathMtu: "path mtu", |mtu| *mtu as u8, |code: u8| PathMtu::try_from(code).ok();
    PortSpace: "space", |space| *space as u16, PortSpace::from_code;
    Transport: "transport",
        |transport| match transport {
            Transport::Rc => 0,
            Transport::Uc => 1,
            Transport::Rd => 2,
            Transport::Extended(extended) => 8 | extended & 7,
        },
        |code: u8| match code {
            0 => Some(Transport::Rc),
            1 => Some(Transport::Uc),
            2 => Some(Transport::Rd),
            8..16 => Some(Transport::Extended(code & 7)),
            _ => None,
        };
}

variants! {
    Disconnect: "end" {
        0 => ByPeer,
        1 => ByUs,
        2 => NoAnswer,
    }
}

mads! { Req Rep SidrReq SidrRep }

impl Field for Route {
    fn put(&self, w: &mut Writer) {
        let Self { local, remote, interface } = self;
        local.put(w);
        remote.put(w);
        interface.put(w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        let (local, remote, interface) = (IpAddr::take(r)?, IpAddr::take(r)?, u32::take(r)?);
        match local.is_ipv4() == remote.is_ipv4() {
            true => Ok(Self { local, remote, interface }),
            false => Err(MessageError::Value { field: "remote", value: 0 }),
        }
    }
}

impl<const N: usize> Field for PrivateData<N> {
    fn put(&self, w: &mut Writer) {
        w.bytes(&self.0);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(Self(r.array()?))
    }
}

/// Whether there is a value, then the value.
impl<T: Field> Field for Option<T> {
    fn put(&self, w: &mut Writer) {
        self.is_some().put(w);
        if let Some(value) = self {
            value.put(w);
        }
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        bool::take(r)?.then(|| T::take(r)).transpose()
    }
}

impl<T: Field> Field for Box<T> {
    fn put(&self, w: &mut Writer) {
        T::put(self, w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        T::take(r).map(Self::new)
    }
}

/// Whether the result is an error, then the value or the reason.
impl<T: Field> Field for Result<T, String> {
    fn put(&self, w: &mut Writer) {
        self.is_err().put(w);
        match self {
            Ok(value) => value.put(w),
            Err(reason) => SENTENCE.put(reason, w),
        }
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(if bool::take(r)? { Err(SENTENCE.take(r)?) } else { Ok(T::take(r)?) })
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, w: &mut Writer) {
        self.0.put(w);
        self.1.put(w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok((A::take(r)?, B::take(r)?))
    }
}

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    fn put(&self, w: &mut Writer) {
        self.iter().for_each(|value| value.put(w));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        let mut all = [T::default(); N];
        for value in &mut all {
            *value = T::take(r)?;
        }
        Ok(all)
    }
}

/// The number of rows, then the rows.
impl<T: Field> Field for Vec<T> {
    fn put(&self, w: &mut Writer) {
        w.length("table", self.len());
        for row in self {
            if !T::IS_ROW {
                row.put(w);
                continue;
            }
            let mut alone = Writer::default();
            row.put(&mut alone);
            match alone.finish() {
                Ok(bytes) => w.block("row", &bytes),
                Err(e) => w.fail(e),
            }
        }
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        let count = u16::take(r)?;
        let row = |_| if T::IS_ROW { T::take(&mut Reader::new(r.block()?)) } else { T::take(r) };
        (0..count).map(row).collect()
    }
}

impl<K: Field + Ord + Copy, V: Field + Copy> Field for BTreeMap<K, V> {
    fn put(&self, w: &mut Writer) {
        self.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>().put(w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        Vec::take(r).map(Self::from_iter)
    }
}

impl Field for String {
    fn put(&self, w: &mut Writer) {
        TEXT.put(self, w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        TEXT.take(r)
    }
}

/// The rule for a text.
pub(super) struct Text {
    pub(super) field: &'static str,
    /// Most bytes.
    pub(super) most: usize,
    /// Whether the sender cuts a longer text, at a character.
    pub(super) cut: bool,
    pub(super) is_valid: fn(&str) -> bool,
}

const TEXT: Text = Text { field: "text", most: usize::MAX, cut: false, is_valid: is_printable };
pub(super) const SENTENCE: Text = Text { field: "sentence", most: 1024, cut: true, is_valid: is_printable };

impl Text {
    pub(super) fn put(&self, text: &str, w: &mut Writer) {
        let limit = if self.cut { self.most } else { usize::MAX };
        let text = clipped(text, limit);
        if text.len() > self.most {
            w.fail(MessageError::TooLong { field: self.field });
        }
        w.block(self.field, text.as_bytes());
    }

    pub(super) fn take(&self, r: &mut Reader<'_>) -> Result<String, MessageError> {
        let text = std::str::from_utf8(r.block()?).ok();
        let valid = text.filter(|text| text.len() <= self.most && (self.is_valid)(text));
        valid.map(str::to_owned).ok_or(MessageError::Text { field: self.field })
    }
}

pub(super) fn is_printable(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// As many whole characters of `text` as fit `limit` bytes.
fn clipped(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text.get(..end).unwrap_or("")
}

/// The rule for a field of which the receiver takes some values only: returns what is wrong with the others.
pub(super) struct Check<T>(pub(super) fn(&T) -> Result<(), MessageError>);

impl<T: Field> Check<T> {
    pub(super) fn put(&self, value: &T, w: &mut Writer) {
        value.put(w);
    }

    pub(super) fn take(&self, r: &mut Reader<'_>) -> Result<T, MessageError> {
        let value = T::take(r)?;
        (self.0)(&value).map(|()| value)
    }
}

//! The bytes of the types of connection management: each type's fields in the order in which [`fields`] lists
//! them.

use std::net::IpAddr;

use ferroce_cm::{AcceptParams, ConnectParams, Disconnect, ListenerId, Route, SidrAnswer, SidrParams};
use ferroce_wire::cm::{
    About, CmTime, CommId, Ece, Info, Mad, Message, PortSpace, PrivateData, RejReason, Rep, Req, ServiceId,
    SidrRep, SidrReq, SidrStatus, Transport,
};
use ferroce_wire::mad::MAD_LEN;
use ferroce_wire::{Gid, PathMtu, Psn, Qkey, Qpn};

use crate::codec::{MessageError, Reader, Writer};

/// A type that messages contain.
pub(super) trait Field: Sized {
    fn put(&self, w: &mut Writer<'_>);
    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError>;
}

/// A structure is its fields, one after the other.
macro_rules! fields {
    ($($name:ident { $($field:ident),+ $(,)? })+) => {$(
        impl Field for $name {
            fn put(&self, w: &mut Writer<'_>) {
                let Self { $($field),+ } = self;
                $($field.put(w);)+
            }

            fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
                Ok(Self { $($field: Field::take(r)?),+ })
            }
        }
    )+};
}
pub(super) use fields;

/// An enum is the number of its variant, then the variant's fields.
macro_rules! variants {
    ($($name:ident: $what:literal {
        $($code:literal => $variant:ident $(($inner:ident))? $({ $($field:ident),+ })?,)+
    })+) => {$(
        impl Field for $name {
            fn put(&self, w: &mut Writer<'_>) {
                match self {
                    $(Self::$variant $(($inner))? $({ $($field),+ })? => {
                        w.u8($code);
                        $($inner.put(w);)?
                        $($($field.put(w);)+)?
                    })+
                }
            }

            fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
                Ok(match r.u8()? {
                    $($code => {
                        $(let $inner = Field::take(r)?;)?
                        Self::$variant $(($inner))? $({ $($field: Field::take(r)?),+ })?
                    })+
                    other => return Err(MessageError::Value { field: $what, value: other.into() }),
                })
            }
        }
    )+};
}
pub(super) use variants;

/// A type that stands for a number, all of whose values are valid.
macro_rules! numbers {
    ($($name:ty: $method:ident, $number:expr, $from:expr;)+) => {$(
        impl Field for $name {
            fn put(&self, w: &mut Writer<'_>) {
                let number: fn(&Self) -> _ = $number;
                w.$method(number(self));
            }

            fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
                Ok($from(r.$method()?))
            }
        }
    )+};
}

/// A type that stands for an octet, not all of whose values are valid.
macro_rules! codes {
    ($($name:ty: $field:literal, $code:expr, $from:expr;)+) => {$(
        impl Field for $name {
            fn put(&self, w: &mut Writer<'_>) {
                let code: fn(&Self) -> u8 = $code;
                w.u8(code(self));
            }

            fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
                r.enumeration($field, $from)
            }
        }
    )+};
}

/// A message of the wire is a MAD.
macro_rules! mads {
    ($($name:ident)+) => {$(
        impl Field for $name {
            fn put(&self, w: &mut Writer<'_>) {
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
    u8: u8, |number| *number, |number| number;
    u16: u16, |number| *number, |number| number;
    u32: u32, |number| *number, |number| number;
    u64: u64, |number| *number, |number| number;
    CommId: u32, |id| id.0, CommId;
    Psn: u32, |psn| psn.value(), Psn::new;
    Qpn: u32, |qpn| qpn.value(), Qpn::new;
    Qkey: u32, |qkey| qkey.value(), Qkey::new;
    ServiceId: u64, |id| id.0, ServiceId;
    ListenerId: u64, |id| id.0, ListenerId;
    About: u8, |about| about.0, About;
    RejReason: u16, |reason| reason.0, RejReason;
    SidrStatus: u8, |status| status.0, SidrStatus;
}

codes! {
    bool: "flag", |flag| u8::from(*flag), |code| [false, true].get(usize::from(code)).copied();
    CmTime: "time", |time| time.code(), CmTime::new;
    PathMtu: "path mtu", |mtu| *mtu as u8, |code| PathMtu::try_from(code).ok();
    Transport: "transport",
        |transport| match transport {
            Transport::Rc => 0,
            Transport::Uc => 1,
            Transport::Rd => 2,
            Transport::Extended(extended) => 8 | extended & 7,
        },
        |code| match code {
            0 => Some(Transport::Rc),
            1 => Some(Transport::Uc),
            2 => Some(Transport::Rd),
            8..16 => Some(Transport::Extended(code & 7)),
            _ => None,
        };
    Disconnect: "end",
        |end| match end {
            Disconnect::ByPeer => 0,
            Disconnect::ByUs => 1,
            Disconnect::NoAnswer => 2,
        },
        |code| [Disconnect::ByPeer, Disconnect::ByUs, Disconnect::NoAnswer].get(usize::from(code)).copied();
}

mads! { Req Rep SidrReq SidrRep }

impl Field for PortSpace {
    fn put(&self, w: &mut Writer<'_>) {
        w.u16(*self as u16);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        let code = r.u16()?;
        Self::from_code(code).ok_or(MessageError::Value { field: "space", value: code.into() })
    }
}

impl Field for IpAddr {
    fn put(&self, w: &mut Writer<'_>) {
        w.bytes(&Gid::from_ip(*self).0);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(Gid(r.array()?).to_ip())
    }
}

impl Field for Route {
    fn put(&self, w: &mut Writer<'_>) {
        let Self { local, remote, interface } = self;
        local.put(w);
        remote.put(w);
        interface.put(w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        let (local, remote, interface) = (IpAddr::take(r)?, IpAddr::take(r)?, r.u32()?);
        match local.is_ipv4() == remote.is_ipv4() {
            true => Ok(Self { local, remote, interface }),
            false => Err(MessageError::Value { field: "remote", value: 0 }),
        }
    }
}

impl<const N: usize> Field for PrivateData<N> {
    fn put(&self, w: &mut Writer<'_>) {
        w.bytes(&self.0);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(Self(r.array()?))
    }
}

/// Whether there is a value, then the value.
impl<T: Field> Field for Option<T> {
    fn put(&self, w: &mut Writer<'_>) {
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
    fn put(&self, w: &mut Writer<'_>) {
        T::put(self, w);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        T::take(r).map(Self::new)
    }
}

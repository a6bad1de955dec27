//! Slots, members and programs to bytes and back.

use std::collections::BTreeSet;

use super::{decode_counts, encode_counts};
use crate::codec::{MessageError, Reader, Table, Writer};
use crate::message::{LAST_MEMBER, LeaseEntry, QpnOrder, is_leasable};

/// Leases in the row of a program, of two octets each: a slot, or a whole member with this bit.
const LEASES_SHOWN: usize = 16;
const WHOLE: u16 = 0x8000;
pub(super) const SLOT_ROW: u16 = 2;
/// Bytes of a program.
pub(super) const LEASE_ROW: u16 = 72;

pub(super) fn encode_slots(slots: &[u16], mut w: Writer<'_>) -> Result<usize, MessageError> {
    w.table("slots", slots.len(), SLOT_ROW)?;
    let end = w.0.len();
    slots.iter().for_each(|slot| w.u16(*slot));
    Ok(end)
}

/// Slots that programs may hold: those of members 1 to 254, each once.
pub(super) fn decode_slots(body: &mut Reader<'_>, tail: &mut Reader<'_>) -> Result<Vec<u16>, MessageError> {
    let table = Table::read(body)?;
    let slots = tail.rows(table, Reader::u16)?;
    let mut seen = BTreeSet::new();
    match slots.iter().find(|slot| !is_leasable(**slot) || !seen.insert(**slot)) {
        Some(wrong) => Err(MessageError::Value { field: "slot", value: u64::from(*wrong) }),
        None => Ok(slots),
    }
}

/// Members that programs may hold: 1 to 254, each once.
pub(super) fn decode_members(body: &mut Reader<'_>, tail: &mut Reader<'_>) -> Result<Vec<u8>, MessageError> {
    let table = Table::read(body)?;
    let members = tail.rows(table, Reader::u8)?;
    let mut seen = BTreeSet::new();
    match members.iter().find(|member| !(1..=LAST_MEMBER).contains(*member) || !seen.insert(**member)) {
        Some(wrong) => Err(MessageError::Value { field: "member", value: u64::from(*wrong) }),
        None => Ok(members),
    }
}

pub(super) fn encode_lease(program: &LeaseEntry, w: &mut Writer<'_>) -> Result<(), MessageError> {
    w.u32(program.pid);
    w.u32(program.uid);
    w.padded::<16>("command", &program.command)?;
    let mut left = program.slots.as_slice();
    for _ in 0..LEASES_SHOWN {
        let member = left.first().map_or(0, |slot| slot & !15);
        let whole = left.len() >= 16 && left.iter().zip(member..).take(16).all(|(slot, own)| *slot == own);
        let (word, rest) = match left.split_first() {
            Some((first, _)) if whole => (first | WHOLE, left.get(16..).unwrap_or_default()),
            Some((first, rest)) => (*first, rest),
            None => (0, left),
        };
        w.u16(word);
        left = rest;
    }
    encode_counts(&program.resources, w);
    Ok(())
}

pub(super) fn decode_lease(row: &mut Reader<'_>) -> Result<LeaseEntry, MessageError> {
    let (pid, uid) = (row.u32()?, row.u32()?);
    let command = row.padded::<16>("command")?;
    let mut slots = Vec::new();
    for _ in 0..LEASES_SHOWN {
        match row.u16()? {
            0 => {}
            word if word & WHOLE != 0 => slots.extend((0..16).map(|n| (word & !WHOLE & !15) | n)),
            slot => slots.push(slot),
        }
    }
    Ok(LeaseEntry { pid, uid, command, slots, resources: decode_counts(row)? })
}

/// Appends an order; key 0 stands for no order.
pub(super) fn encode_order(order: Option<QpnOrder>, w: &mut Writer<'_>) {
    let QpnOrder { key, start } = order.unwrap_or(QpnOrder { key: 0, start: 0 });
    w.u64(key);
    w.u16(start);
}

/// Reads an order. A peer may leave the field out, as a peer of an older minor version leaves out a field
/// that it does not know.
pub(super) fn decode_order(body: &mut Reader<'_>) -> Result<Option<QpnOrder>, MessageError> {
    let order = body.optional(|body| Ok(QpnOrder { key: body.u64()?, start: body.u16()? }))?;
    Ok(order.filter(|order| order.key != 0))
}

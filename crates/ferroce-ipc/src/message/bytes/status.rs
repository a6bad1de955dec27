//! The broker's state to bytes and back.

use ferroce_cm::CmCounters;

use super::leases::{LEASE_ROW, decode_lease, encode_lease};
use crate::codec::{MessageError, Reader, Table, Writer};
use crate::message::{CmStatus, Status};

pub(super) fn encode_status(status: &Status, mut w: Writer<'_>) -> Result<usize, MessageError> {
    w.u32(status.broker_pid);
    w.u32(status.broker_uid);
    w.u16(status.group_size);
    w.u16(status.groups);
    w.padded::<32>("build", &status.build)?;
    w.u8(status.adopted.into());
    w.bytes(&[0; 3]);
    w.table("programs", status.programs.len(), LEASE_ROW)?;
    let cm = &status.cm;
    for count in [cm.connections, cm.sidr_requests, cm.listeners, cm.ports] {
        w.u32(count);
    }
    let CmCounters { rx_msgs, rx_duplicates, tx_msgs, tx_retries, drops } = &cm.counters;
    let kinds = [rx_msgs, rx_duplicates, tx_msgs, tx_retries].into_iter().flat_map(|kind| &kind.0);
    for count in kinds.chain(drops).chain([&cm.no_mad]) {
        w.u64(*count);
    }
    let end = w.0.len();
    for program in &status.programs {
        encode_lease(program, &mut w)?;
    }
    Ok(end)
}

pub(super) fn decode_status(mut body: Reader<'_>, mut tail: Reader<'_>) -> Result<Status, MessageError> {
    Ok(Status {
        broker_pid: body.u32()?,
        broker_uid: body.u32()?,
        group_size: body.u16()?,
        groups: body.u16()?,
        build: body.padded::<32>("build")?,
        adopted: body.bool("adopted")?,
        programs: {
            body.take(3)?;
            let table = Table::read(&mut body)?;
            tail.rows(table, decode_lease)?
        },
        cm: Box::new(decode_cm_status(&mut body)?),
    })
}

fn decode_cm_status(r: &mut Reader<'_>) -> Result<CmStatus, MessageError> {
    let mut cm = CmStatus {
        connections: r.u32()?,
        sidr_requests: r.u32()?,
        listeners: r.u32()?,
        ports: r.u32()?,
        ..CmStatus::default()
    };
    let CmCounters { rx_msgs, rx_duplicates, tx_msgs, tx_retries, drops } = &mut cm.counters;
    let kinds = [rx_msgs, rx_duplicates, tx_msgs, tx_retries].into_iter().flat_map(|kind| &mut kind.0);
    for count in kinds.chain(drops).chain([&mut cm.no_mad]) {
        *count = r.u64()?;
    }
    Ok(cm)
}

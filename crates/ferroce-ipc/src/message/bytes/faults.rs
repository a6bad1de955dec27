//! Orders about faults and reports to bytes and back.

use crate::codec::{MessageError, Reader, Table, Writer, clipped};
use crate::message::{FaultCounts, FaultOrder, FaultReport, Known, MadFaultReport};

const APPLY: u8 = 0;
const CLEAR: u8 = 1;
const SHOW: u8 = 2;
/// Bytes of a rule in the table of a report. The texts follow the table.
const RULE_ROW: u16 = 28;
/// Bytes of the counts of a rule for management datagrams, and of one of its hits. The texts of hits follow
/// the tables.
const COUNT_ROW: u16 = 16;
const HIT_ROW: u16 = 4;
/// Longest reason of a refusal, in bytes.
const LONGEST_REASON: usize = 1024;

/// Appends an order; returns where the fixed part ends.
pub(super) fn encode_order(order: &FaultOrder, mut w: Writer<'_>) -> Result<usize, MessageError> {
    let (kind, rules, seed) = match order {
        FaultOrder::Apply { rules, seed } => (APPLY, rules.as_str(), *seed),
        FaultOrder::Clear => (CLEAR, "", None),
        FaultOrder::Show => (SHOW, "", None),
    };
    w.u8(kind);
    w.u8(u8::from(seed.is_some()));
    w.u64(seed.unwrap_or(0));
    w.u32(length("rules", rules)?);
    let end = w.0.len();
    w.bytes(rules.as_bytes());
    Ok(end)
}

pub(super) fn decode_order(body: &mut Reader<'_>, tail: &mut Reader<'_>) -> Result<FaultOrder, MessageError> {
    let kind = body.u8()?;
    let seeded = body.bool("seeded")?;
    let seed = body.u64()?;
    let rules = lines("rules", tail.take(body.u32()? as usize)?)?;
    match kind {
        APPLY => Ok(FaultOrder::Apply { rules, seed: seeded.then_some(seed) }),
        CLEAR => Ok(FaultOrder::Clear),
        SHOW => Ok(FaultOrder::Show),
        other => Err(MessageError::Value { field: "order", value: other.into() }),
    }
}

/// Appends a report, or the reason why the program has none; returns where the fixed part ends.
pub(super) fn encode_report(
    result: &Result<FaultReport, String>,
    mut w: Writer<'_>,
) -> Result<usize, MessageError> {
    let none = FaultReport::default();
    let (report, reason) = match result {
        Ok(report) => (report, ""),
        Err(reason) => (&none, clipped(reason, LONGEST_REASON)),
    };
    w.u8(u8::from(result.is_err()));
    w.u64(report.seed);
    w.u64(report.unlogged);
    w.u32(length("reason", reason)?);
    w.table("rules", report.rules.len(), RULE_ROW)?;
    let end = w.0.len();
    w.bytes(reason.as_bytes());
    for FaultCounts { name, text, seen, hits, known } in &report.rules {
        w.u64(*seen);
        w.u64(*hits);
        w.u32(length("name", name)?);
        w.u32(length("text", text)?);
        w.u8(*known as u8);
        w.bytes(&[0; 3]);
    }
    for FaultCounts { name, text, .. } in &report.rules {
        w.bytes(name.as_bytes());
        w.bytes(text.as_bytes());
    }
    Ok(end)
}

pub(super) fn decode_report(
    body: &mut Reader<'_>,
    tail: &mut Reader<'_>,
) -> Result<Result<FaultReport, String>, MessageError> {
    let refused = body.bool("refused")?;
    let (seed, unlogged) = (body.u64()?, body.u64()?);
    let reason = body.u32()? as usize;
    let table = Table::read(body)?;
    let reason = tail.text("reason", reason)?;
    let rows = tail
        .rows(table, |row| Ok((row.u64()?, row.u64()?, row.u32()?, row.u32()?, Known::from_u8(row.u8()?))))?;
    let rule = |(seen, hits, name, text, known): (u64, u64, u32, u32, Known)| {
        let name = tail.text("name", name as usize)?;
        Ok(FaultCounts { name, text: tail.text("text", text as usize)?, seen, hits, known })
    };
    let rules = rows.into_iter().map(rule).collect::<Result<_, MessageError>>()?;
    Ok(if refused { Err(reason) } else { Ok(FaultReport { seed, unlogged, rules }) })
}

/// Appends rules; returns where the fixed part ends.
pub(super) fn encode_rules(rules: &str, mut w: Writer<'_>) -> Result<usize, MessageError> {
    w.u32(length("rules", rules)?);
    let end = w.0.len();
    w.bytes(rules.as_bytes());
    Ok(end)
}

pub(super) fn decode_rules(body: &mut Reader<'_>, tail: &mut Reader<'_>) -> Result<String, MessageError> {
    lines("rules", tail.take(body.u32()? as usize)?)
}

/// Appends what became of rules for management datagrams; returns where the fixed part ends.
pub(super) fn encode_mads(report: &MadFaultReport, mut w: Writer<'_>) -> Result<usize, MessageError> {
    w.u32(report.generation);
    w.u64(report.unlogged);
    w.u8(u8::from(report.more));
    w.table("counts", report.counts.len(), COUNT_ROW)?;
    w.table("hits", report.hits.len(), HIT_ROW)?;
    let end = w.0.len();
    for (seen, hits) in &report.counts {
        w.u64(*seen);
        w.u64(*hits);
    }
    for (rule, text) in &report.hits {
        w.u16(*rule);
        w.u16(u16::try_from(text.len()).map_err(|_| MessageError::TooLong { field: "hit" })?);
    }
    report.hits.iter().for_each(|(_, text)| w.bytes(text.as_bytes()));
    Ok(end)
}

pub(super) fn decode_mads(
    body: &mut Reader<'_>,
    tail: &mut Reader<'_>,
) -> Result<MadFaultReport, MessageError> {
    let (generation, unlogged, more) = (body.u32()?, body.u64()?, body.bool("more")?);
    let (counts, hits) = (Table::read(body)?, Table::read(body)?);
    let counts = tail.rows(counts, |row| Ok((row.u64()?, row.u64()?)))?;
    let hits = tail.rows(hits, |row| Ok((row.u16()?, row.u16()?)))?;
    let hit = |(rule, length): (u16, u16)| Ok((rule, tail.text("hit", length.into())?));
    let hits = hits.into_iter().map(hit).collect::<Result<_, MessageError>>()?;
    Ok(MadFaultReport { generation, unlogged, counts, hits, more })
}

fn length(field: &'static str, text: &str) -> Result<u32, MessageError> {
    u32::try_from(text.len()).map_err(|_| MessageError::TooLong { field })
}

/// Text of several lines: printable, but for the ends of lines and tabs.
fn lines(field: &'static str, bytes: &[u8]) -> Result<String, MessageError> {
    let text = std::str::from_utf8(bytes).map_err(|_| MessageError::Text { field })?;
    if text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
        return Err(MessageError::Text { field });
    }
    Ok(text.to_owned())
}

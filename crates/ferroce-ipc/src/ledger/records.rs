//! The records of objects: each kind has a type that encodes it in words.

use super::{QP_COUNTERS, Table};
use crate::shared::{self, pair};

/// An object's record, or a part of it. Its words begin at [`Self::AT`] in the record.
pub trait Fields: Sized {
    type Words: AsRef<[u64]>;
    const TABLE: Table;
    const AT: usize;

    fn encode(&self) -> Self::Words;

    /// Decodes from all words of a record. Any words are a valid record; missing ones are 0.
    fn decode(words: &[u64]) -> Self;
}

/// This bit is set in the first word of every record; a first word of 0 means no record. The lowest octet of
/// that word is the block of the object's device.
const PRESENT: u64 = 1 << 8;

const fn head(block: usize) -> u64 {
    PRESENT | (block as u64 & 0xff)
}

fn word(words: &[u64], at: usize) -> u64 {
    words.get(at).copied().unwrap_or(0)
}

fn halves(words: &[u64], at: usize) -> (u32, u32) {
    shared::halves(word(words, at))
}

/// Returns the block of the object's device, for any kind of record.
pub(super) fn block(words: &[u64]) -> usize {
    (word(words, 0) & 0xff) as usize
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextRecord {
    /// Block of its device.
    pub block: usize,
}

impl Fields for ContextRecord {
    type Words = [u64; 1];
    const TABLE: Table = Table::Context;
    const AT: usize = 0;

    fn encode(&self) -> [u64; 1] {
        [head(self.block)]
    }

    fn decode(words: &[u64]) -> Self {
        Self { block: block(words) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PdRecord {
    /// Block of its device.
    pub block: usize,
    /// Number of its context.
    pub context: u32,
}

impl Fields for PdRecord {
    type Words = [u64; 2];
    const TABLE: Table = Table::Pd;
    const AT: usize = 0;

    fn encode(&self) -> [u64; 2] {
        [head(self.block), pair(0, self.context)]
    }

    fn decode(words: &[u64]) -> Self {
        Self { block: block(words), context: halves(words, 1).1 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqRecord {
    /// Block of its device.
    pub block: usize,
    /// Number of its context.
    pub context: u32,
    /// Capacity in entries.
    pub cqe: u32,
}

impl Fields for CqRecord {
    type Words = [u64; 2];
    const TABLE: Table = Table::Cq;
    const AT: usize = 0;

    fn encode(&self) -> [u64; 2] {
        [head(self.block), pair(self.context, self.cqe)]
    }

    fn decode(words: &[u64]) -> Self {
        let (context, cqe) = halves(words, 1);
        Self { block: block(words), context, cqe }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqRecord {
    /// Block of its device.
    pub block: usize,
    /// Number of its protection domain.
    pub pd: u32,
    /// Number of the queue on the wire.
    pub srqn: u32,
    /// Number of its completion queue, if it is an XRC SRQ.
    pub cq: Option<u32>,
}

impl Fields for SrqRecord {
    type Words = [u64; 3];
    const TABLE: Table = Table::Srq;
    const AT: usize = 0;

    fn encode(&self) -> [u64; 3] {
        let cq = self.cq.map_or(0, |cq| u64::from(cq) + 1);
        [head(self.block), pair(self.pd, self.srqn), cq]
    }

    fn decode(words: &[u64]) -> Self {
        let (pd, srqn) = halves(words, 1);
        Self { block: block(words), pd, srqn, cq: word(words, 2).checked_sub(1).map(|cq| cq as u32) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrRecord {
    /// Block of its device.
    pub block: usize,
    pub rkey: u32,
    pub lkey: u32,
    /// Octets.
    pub length: u64,
    /// Number of its protection domain.
    pub pd: u32,
    /// Start address in the program's memory.
    pub address: u64,
}

impl Fields for MrRecord {
    type Words = [u64; 5];
    const TABLE: Table = Table::Mr;
    const AT: usize = 0;

    fn encode(&self) -> [u64; 5] {
        [head(self.block), pair(self.rkey, self.lkey), self.length, pair(self.pd, 0), self.address]
    }

    fn decode(words: &[u64]) -> Self {
        let (rkey, lkey) = halves(words, 1);
        let (length, pd, address) = (word(words, 2), halves(words, 3).0, word(words, 4));
        Self { block: block(words), rkey, lkey, length, pd, address }
    }
}

/// The changing part of a queue pair's record. The engine stores it whenever it releases the queue pair's
/// lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpProgress {
    /// Block of its device.
    pub block: usize,
    /// Service of the queue pair, of `enum ibv_qp_type`.
    pub service: u8,
    /// State of the queue pair, of `enum ibv_qp_state`.
    pub state: u8,
    /// Number of the queue pair.
    pub qpn: u32,
    /// The number of the peer's queue pair.
    pub remote_qpn: u32,
    /// The PSN expected next.
    pub rq_psn: u32,
    /// The PSN sent next.
    pub sq_psn: u32,
}

impl Fields for QpProgress {
    type Words = [u64; 3];
    const TABLE: Table = Table::Qp;
    const AT: usize = 0;

    #[inline]
    fn encode(&self) -> [u64; 3] {
        let kind = (self.service as u64) << 16 | (self.state as u64) << 24;
        [head(self.block) | kind, pair(self.qpn, self.remote_qpn), pair(self.rq_psn, self.sq_psn)]
    }

    fn decode(words: &[u64]) -> Self {
        let (first, (qpn, remote_qpn), (rq_psn, sq_psn)) =
            (word(words, 0), halves(words, 1), halves(words, 2));
        let (service, state) = ((first >> 16) as u8, (first >> 24) as u8);
        Self { block: block(words), service, state, qpn, remote_qpn, rq_psn, sq_psn }
    }
}

/// The constant part of a queue pair's record: the objects that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpParts {
    /// Number of its protection domain.
    pub pd: u32,
    /// Number of its context.
    pub context: u32,
    /// Number of its send completion queue, 0 for none.
    pub send_cq: u32,
    /// Number of its receive completion queue, 0 for none.
    pub recv_cq: u32,
    /// Number on the wire of its shared receive queue, 0 for none.
    pub srqn: u32,
}

impl Fields for QpParts {
    type Words = [u64; 3];
    const TABLE: Table = Table::Qp;
    const AT: usize = 3;

    fn encode(&self) -> [u64; 3] {
        [pair(self.pd, self.context), pair(self.send_cq, self.recv_cq), pair(self.srqn, 0)]
    }

    fn decode(words: &[u64]) -> Self {
        let ((pd, context), (send_cq, recv_cq)) = (halves(words, 3), halves(words, 4));
        Self { pd, context, send_cq, recv_cq, srqn: halves(words, 5).0 }
    }
}

/// A queue pair, without its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpRecord {
    pub progress: QpProgress,
    pub parts: QpParts,
}

impl Fields for QpRecord {
    type Words = [u64; 6];
    const TABLE: Table = Table::Qp;
    const AT: usize = 0;

    fn encode(&self) -> [u64; 6] {
        let ([a, b, c], [d, e, f]) = (self.progress.encode(), self.parts.encode());
        [a, b, c, d, e, f]
    }

    fn decode(words: &[u64]) -> Self {
        Self { progress: QpProgress::decode(words), parts: QpParts::decode(words) }
    }
}

const _: () = assert!(QpParts::AT + 3 <= QP_COUNTERS);

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;

    use super::*;

    /// Encodes as the engine does and decodes as a reader does.
    fn check<F: Fields + Debug + PartialEq>(fields: F) {
        let mut words = vec![u64::MAX; F::AT];
        words.extend(fields.encode().as_ref());
        assert_eq!(F::decode(&words), fields);
        if F::AT == 0 {
            assert_ne!(words[0], 0, "{fields:?} is there");
        }
    }

    fn progress(block: usize, n: [u32; 4], service: u8, state: u8) -> QpProgress {
        QpProgress { block, service, state, qpn: n[0], remote_qpn: n[1], rq_psn: n[2], sq_psn: n[3] }
    }

    fn parts(n: [u32; 5]) -> QpParts {
        QpParts { pd: n[0], context: n[1], send_cq: n[2], recv_cq: n[3], srqn: n[4] }
    }

    proptest! {
        #[test]
        fn every_record_comes_out_as_it_went_in(
            block in 0..super::super::DEVICES, n: [u32; 5], cq: Option<u32>, length: u64, address: u64, kind: [u8; 2],
        ) {
            let progress = progress(block, [n[0], n[1], n[2], n[3]], kind[0], kind[1]);
            check(ContextRecord { block });
            check(PdRecord { block, context: n[0] });
            check(CqRecord { block, context: n[0], cqe: n[1] });
            check(SrqRecord { block, pd: n[0], srqn: n[1], cq });
            check(MrRecord { block, rkey: n[0], lkey: n[1], length, pd: n[2], address });
            check(progress);
            check(parts(n));
            check(QpRecord { progress, parts: parts(n) });
        }

        #[test]
        fn any_words_are_some_record(words: Vec<u64>) {
            ContextRecord::decode(&words);
            PdRecord::decode(&words);
            CqRecord::decode(&words);
            SrqRecord::decode(&words);
            MrRecord::decode(&words);
            QpRecord::decode(&words);
        }
    }
}

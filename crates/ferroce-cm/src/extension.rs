//! Selective repeat, agreed upon by the ECE fields of a REQ and its REP (IBTA 12.6.5, 12.6.8: vendor id and
//! options).
//!
//! The vendor id alone proves nothing: the passive side of librdmacm returns the active side's id with
//! options of its own. So the options begin with a magic number, and the REP's differs from the REQ's. A REP
//! has our id only in answer to a REQ that has it, because an active side of librdmacm ends its queue pair
//! where the ids differ.

use ferroce_wire::cm::Ece;

/// A locally administered vendor id: it has no owner.
const VENDOR: u32 = 0xfe_f0ce;
/// The upper 16 bits of the options in a REQ, and in a REP.
const OFFER: u32 = 0xf0ce_0000;
const ANSWER: u32 = 0xcef0_0000;
/// The version of these options; the eight bits below hold the options.
const VERSION: u32 = 1 << 8;
const SELECTIVE_REPEAT: u32 = 1;

/// The REQ's fields that offer selective repeat.
pub const fn offer() -> Ece {
    Ece { vendor_id: VENDOR, options: OFFER | VERSION | SELECTIVE_REPEAT }
}

/// The REP's fields in answer to those of a REQ: agreement to an offer, and nothing in answer to anything
/// else.
pub const fn answer(req: Ece) -> Ece {
    if has(req, OFFER) {
        Ece { vendor_id: VENDOR, options: ANSWER | VERSION | SELECTIVE_REPEAT }
    } else {
        Ece { vendor_id: 0, options: 0 }
    }
}

/// Whether a REQ and its REP agree on selective repeat.
pub const fn is_agreed(req: Ece, rep: Ece) -> bool {
    has(req, OFFER) && has(rep, ANSWER)
}

/// Later versions keep the meaning of the bits that this one knows.
const fn has(ece: Ece, magic: u32) -> bool {
    ece.vendor_id == VENDOR
        && ece.options & 0xffff_0000 == magic
        && ece.options & 0xff00 >= VERSION
        && ece.options & SELECTIVE_REPEAT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_decide_alike() {
        let ours = offer();
        let rep = answer(ours);
        assert!(is_agreed(ours, rep));
        assert_ne!(ours.options >> 16, rep.options >> 16);
        let echo = |options| Ece { vendor_id: ours.vendor_id, options };
        // librdmacm's passive side: our id with its own options, none, or ours unchanged.
        for rep in [echo(0x15b3), echo(0), ours, Ece { vendor_id: 0, options: rep.options }, Ece::default()] {
            assert!(!is_agreed(ours, rep), "{rep:?}");
        }
        // Other offers get no answer.
        for req in [Ece::default(), Ece { vendor_id: 0x15b3, options: ours.options }, echo(9), rep] {
            assert_eq!(answer(req), Ece::default(), "{req:?}");
            assert!(!is_agreed(req, rep), "{req:?}");
        }
        let later = echo(OFFER | VERSION << 1 | 0x80 | SELECTIVE_REPEAT);
        assert!(is_agreed(later, answer(later)));
        assert_eq!(answer(echo(OFFER | VERSION)), Ece::default(), "the bit is not set");
    }
}

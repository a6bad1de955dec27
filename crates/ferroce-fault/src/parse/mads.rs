//! Rules for management datagrams: which acts and terms they can have.

use super::{Parser, Result_};
use crate::corrupt::Place;
use crate::facts::Dir;
use crate::plan::{Act, Key, Kind, Rule, Value};
use ferroce_wire::mad::MAD_LEN;

impl Parser<'_> {
    /// Refuses a rule that names management datagrams and something that they do not have. `places` has the
    /// place of each term.
    pub(super) fn check_mads(&self, begin: usize, rule: &Rule, places: &[usize]) -> Result_<()> {
        let is_mad = rule.kind() == Kind::Mad;
        for (term, place) in rule.terms.iter().zip(places) {
            let message = match term.key {
                Key::Conn if !is_mad => "`conn` is for management datagrams: name them by `op`",
                _ if !is_mad => continue,
                key if !key.is_of(Kind::Mad) => {
                    "rules for management datagrams have the terms dir, peer, conn, op, nth, iter, count and time"
                }
                Key::Op if term.negated => "name the management datagrams that the rule is for, by `op=`",
                Key::Op if !term.values.iter().all(Value::is_mad) => {
                    "one rule acts on packets of queue pairs or on management datagrams"
                }
                Key::Peer if !term.values.iter().all(|value| matches!(value, Value::Address(_))) => {
                    "the peer of a management datagram has an address and no number"
                }
                _ => continue,
            };
            return Err(self.error(*place, message.to_owned()));
        }
        if !is_mad {
            return Ok(());
        }
        for act in &rule.acts {
            let message = match act {
                Act::Drop(_) | Act::Dup(_) | Act::Delay(_) | Act::Cut => continue,
                Act::Corrupt { icrc_ok: true, .. } if !only_received(rule) => {
                    "corrupt icrc=ok acts on received management datagrams: add dir=rx"
                }
                Act::Corrupt { at: Place::Anywhere, .. } => continue,
                Act::Corrupt { at: Place::Bit(octet, _), .. } if usize::from(*octet) < MAD_LEN => continue,
                Act::Corrupt { .. } => {
                    "in management datagrams `at` is OCTET/BIT, counted from the datagram's first octet: 0/0 to 255/7"
                }
                _ => "management datagrams have the acts drop, dup, delay=, corrupt and cut",
            };
            return Err(self.error(begin, message.to_owned()));
        }
        Ok(())
    }
}

/// Whether the rule is for received datagrams alone.
fn only_received(rule: &Rule) -> bool {
    rule.term(Key::Dir).is_some_and(|term| !term.holds(Dir::Tx as u64))
}

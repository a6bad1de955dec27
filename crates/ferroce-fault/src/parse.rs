//! The parser of plans.
//!
//! It is written by hand: the language is a flat list without nesting, and the point of the parser is a
//! message that names the position and the words that are possible there, which a parser library gives only
//! by as much code again.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use ferroce_wire::mad::MAD_LEN;

use crate::corrupt::Place;
use crate::facts::{Dir, Op, Pos};
use crate::plan::{
    Act, By, CaptureFolder, Delay, Key, Kind, Plan, Probability, Rule, Spread, Target, Term, Value,
};
use crate::units;
use crate::words::{ERRNOS, Moment, NAKS, Verb, WcError};

/// The longest plan, in octets.
const LONGEST: usize = 32 << 10;
/// The most rules of a plan.
const MOST_RULES: usize = 1024;

/// A plan cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct PlanError {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// The word there.
    pub word: String,
    /// The fault, and the words that would be right.
    pub message: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, word, message } = self;
        write!(f, "line {line}, character {column}, at {word:?}: {message}")
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        plan(text)
    }
}

/// Reads a plan.
fn plan(text: &str) -> Result<Plan, PlanError> {
    let mut parser = Parser { text, at: 0 };
    if text.len() > LONGEST {
        return Err(parser.error(0, format!("a plan has at most {LONGEST} octets")));
    }
    let mut plan = Plan { seed: 1, ..Plan::default() };
    loop {
        parser.skip_separators();
        if parser.rest().is_empty() {
            let captures = plan.rules.iter().any(|rule| rule.acts.contains(&Act::Capture));
            return match captures && plan.capture.is_none() {
                true => Err(parser.error(0, "the act `capture` needs capture=FOLDER,SIZE".to_owned())),
                false => Ok(plan),
            };
        }
        let begin = parser.at;
        parser.entry(&mut plan)?;
        parser.blanks();
        if !matches!(parser.rest().chars().next(), None | Some(';' | '\n' | '#')) {
            let message = "expected `;`, a new line, `+` and another act, or `if`".to_owned();
            return Err(parser.error(parser.at, message));
        }
        if plan.rules.len() > MOST_RULES {
            return Err(parser.error(begin, format!("a plan has at most {MOST_RULES} rules")));
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

type Result_<T> = Result<T, PlanError>;

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn error(&self, at: usize, message: String) -> PlanError {
        let before = self.text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let after = self.text.get(at..).unwrap_or_default();
        let end =
            after.find(|c: char| c.is_whitespace() || matches!(c, ';' | ',' | '+')).unwrap_or(after.len());
        let end = if end == 0 { after.chars().next().map_or(0, char::len_utf8) } else { end };
        let word: String = after.get(..end).unwrap_or_default().chars().take(40).collect();
        PlanError { line, column, word, message }
    }

    fn blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r']).len();
    }

    /// Skips what may stand between entries: blanks, `;`, new lines and comments.
    fn skip_separators(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    /// Takes characters as long as `test` holds.
    fn take(&mut self, test: impl Fn(char) -> bool) -> &'t str {
        let rest = self.rest();
        let end = rest.find(|c| !test(c)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    /// Takes a word of letters, digits and underscores.
    fn word(&mut self) -> &'t str {
        self.blanks();
        self.take(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    /// Looks at the next word without taking it.
    fn peek(&mut self) -> &'t str {
        let at = self.at;
        let word = self.word();
        self.at = at;
        word
    }

    /// Takes the text of a value: everything up to a blank or a mark of the grammar.
    fn value(&mut self) -> &'t str {
        self.blanks();
        self.take(|c| !c.is_whitespace() && !matches!(c, ';' | ',' | '+' | '~' | '(' | ')' | '|' | '#'))
    }

    fn read<T>(&mut self, read: impl FnOnce(&str) -> Result<T, &'static str>) -> Result_<T> {
        self.blanks();
        let at = self.at;
        let value = self.value();
        read(value).map_err(|message| self.error(at, message.to_owned()))
    }

    fn expect(&mut self, token: &str) -> Result_<()> {
        match self.eat(token) {
            true => Ok(()),
            false => Err(self.error(self.at, format!("expected `{token}`"))),
        }
    }

    fn entry(&mut self, plan: &mut Plan) -> Result_<()> {
        let begin = self.at;
        let word = self.word();
        if word == "seed" && self.eat("=") {
            plan.seed =
                self.read(|text| text.parse().map_err(|_| "a seed is a number from 0 to 2^64 - 1"))?;
            return Ok(());
        }
        if word == "log" && self.eat("=") {
            self.blanks();
            let at = self.at;
            let path = self.take(|c| !matches!(c, ';' | '\n')).trim_end();
            if path.is_empty() {
                return Err(self.error(at, "expected the path of a file".to_owned()));
            }
            plan.log = Some(path.to_owned());
            return Ok(());
        }
        if word == "capture" && self.eat("=") {
            self.blanks();
            let at = self.at;
            let text = self.take(|c| !matches!(c, ';' | '\n')).trim_end();
            let folder = text.rsplit_once(',').and_then(|(path, size)| {
                let octets = units::octets(size.trim_start()).ok().filter(|_| !path.is_empty())?;
                Some(CaptureFolder { path: path.to_owned(), octets })
            });
            let missing =
                || self.error(at, "expected a folder and a size, such as capture=/tmp/c,64m".to_owned());
            plan.capture = Some(folder.ok_or_else(missing)?);
            return Ok(());
        }
        let name = self.name(begin, plan)?;
        let text_begin = self.at;
        let mut acts = vec![self.act()?];
        while self.eat("+") {
            let at = self.at;
            let act = self.act()?;
            if acts.iter().any(|first| first.kind() != act.kind()) {
                let message = "one rule acts on packets, on calls, on completions or on moments".to_owned();
                return Err(self.error(at + 1, message));
            }
            acts.push(act);
        }
        let kind = acts.first().map_or(Kind::Packet, Act::kind);
        let (mut terms, mut places) = (Vec::new(), Vec::new());
        if self.peek() == "if" {
            self.word();
            loop {
                self.blanks();
                places.push(self.at);
                terms.push(self.term(kind, &terms)?);
                if !self.eat(",") {
                    break;
                }
            }
        }
        let text = self.text.get(text_begin..self.at).unwrap_or_default().trim();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let rule = Rule { name, text, acts, terms };
        self.check(begin, &rule)?;
        self.check_terms(&rule, &places)?;
        self.check_mads(begin, &rule, &places)?;
        plan.rules.push(rule);
        Ok(())
    }

    /// The name in front of the acts, if there is one.
    fn name(&mut self, begin: usize, plan: &Plan) -> Result_<Option<String>> {
        self.at = begin;
        self.blanks();
        let start = self.at;
        let name = self.take(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        if name.is_empty() || !self.rest().starts_with(':') {
            self.at = start;
            return Ok(None);
        }
        self.at += 1;
        self.blanks();
        if plan.rules.iter().any(|rule| rule.name.as_deref() == Some(name)) {
            return Err(self.error(start, "another rule has this name".to_owned()));
        }
        Ok(Some(name.to_owned()))
    }

    /// Rules that could never act, or that nobody could bound.
    fn check(&self, begin: usize, rule: &Rule) -> Result_<()> {
        let needs = |key, text: &str| match rule.term(key) {
            Some(_) => Ok(()),
            None => Err(self.error(begin, text.to_owned())),
        };
        match rule.kind() {
            Kind::Verb => needs(Key::Verb, "`fail` and `stall` need `if verb=…`"),
            Kind::Moment => needs(Key::At, "`kill` needs `if at=…`"),
            Kind::Packet | Kind::Mad | Kind::Completion => Ok(()),
        }
    }

    /// Terms that hold for none of the calls or moments that the rule names, because these have no such
    /// property. `places` has the place of each term.
    fn check_terms(&self, rule: &Rule, places: &[usize]) -> Result_<()> {
        for (term, place) in rule.terms.iter().zip(places) {
            let lacking = match (rule.kind(), term.key) {
                (Kind::Verb, Key::Dev) => lacking(rule.term(Key::Verb), Verb::WORDS, Verb::has_device),
                (Kind::Verb, Key::Qp) => lacking(rule.term(Key::Verb), Verb::WORDS, Verb::has_queue_pair),
                (Kind::Moment, Key::Dev | Key::Qp) => {
                    lacking(rule.term(Key::At), Moment::WORDS, Moment::has_queue_pair)
                }
                (Kind::Moment, Key::Msg) => {
                    lacking(rule.term(Key::At), Moment::WORDS, |at| at == Moment::Completion)
                }
                _ => None,
            };
            if let Some(word) = lacking {
                let property = match term.key {
                    Key::Dev => "device",
                    Key::Qp => "queue pair",
                    _ => "work request",
                };
                let message =
                    format!("the rule is for `{word}`, whose {property} is not known: leave this term out");
                return Err(self.error(*place, message));
            }
        }
        Ok(())
    }

    /// Refuses a rule that names management datagrams and something that they do not have. `places` has the
    /// place of each term.
    fn check_mads(&self, begin: usize, rule: &Rule, places: &[usize]) -> Result_<()> {
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

    fn probability(&mut self) -> Result_<Probability> {
        self.blanks();
        match self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            true => self.read(units::probability),
            false => Ok(Probability::ONE),
        }
    }

    fn act(&mut self) -> Result_<Act> {
        self.blanks();
        let at = self.at;
        let word = self.word();
        match word {
            "drop" => Ok(Act::Drop(self.probability()?)),
            "dup" => Ok(Act::Dup(self.probability()?)),
            "ce" => Ok(Act::Ce(self.probability()?)),
            "cut" => Ok(Act::Cut),
            "hold" => Ok(Act::Hold),
            "capture" => Ok(Act::Capture),
            "burst" => self.burst(),
            "reorder" => self.reorder(),
            "corrupt" => self.corrupt(),
            "delay" | "rate" | "rnr" | "nak" | "fail" | "wc" | "stall" | "kill" => {
                self.expect("=")?;
                self.assigned(word)
            }
            _ => {
                let known = "drop, dup, ce, burst(…), reorder, corrupt, delay=, rate=, cut, hold, rnr=, nak=, fail=, \
                             stall=, wc=, kill=, capture, seed=, log=, capture=";
                Err(self.error(at, format!("expected one of {known}")))
            }
        }
    }

    fn assigned(&mut self, word: &str) -> Result_<Act> {
        Ok(match word {
            "delay" => Act::Delay(self.delay()?),
            "rate" => self.rate()?,
            "rnr" => Act::Rnr(self.read(units::time)?),
            "nak" => Act::Nak(self.one_of(NAKS)?),
            "fail" => Act::Fail(self.one_of(ERRNOS)?),
            "stall" => Act::Stall { by: self.delay()?, probability: self.probability()? },
            "wc" => Act::Wc(self.one_of(WcError::WORDS)?),
            _ if self.peek() == "peer" => {
                let message = "the peer's process is not known here: use `kill=self` in the peer's own plan";
                return Err(self.error(self.at, message.to_owned()));
            }
            _ => Act::Kill(self.one_of(Target::WORDS)?),
        })
    }

    /// Takes one of these words.
    fn one_of<T: Copy>(&mut self, words: &[(&'static str, T)]) -> Result_<T> {
        self.blanks();
        let at = self.at;
        let word = self.value();
        let found = words.iter().find(|(known, _)| *known == word).map(|(_, value)| *value);
        found.ok_or_else(|| self.error(at, format!("expected one of {}", names(words).join(", "))))
    }

    /// Takes `word=`, if it is the next word.
    fn option(&mut self, word: &str) -> Result_<bool> {
        let found = self.peek() == word;
        if found {
            self.word();
            self.expect("=")?;
        }
        Ok(found)
    }

    fn burst(&mut self) -> Result_<Act> {
        self.expect("(")?;
        let enter = self.read(units::probability)?;
        self.expect(",")?;
        let leave = self.read(units::probability)?;
        let bad = if self.eat(",") { self.read(units::probability)? } else { Probability::ONE };
        let good = if self.eat(",") { self.read(units::probability)? } else { Probability::ZERO };
        self.expect(")")?;
        Ok(Act::Burst { enter, leave, bad, good })
    }

    fn reorder(&mut self) -> Result_<Act> {
        let probability = self.probability()?;
        if !self.option("by")? {
            return Ok(Act::Reorder { probability, by: None });
        }
        let by = self.read(|text| match text.parse() {
            Ok(packets @ 1..=1000) => Ok(By::Packets(packets)),
            Ok(_) => Err("a packet is reordered by 1 to 1000 packets"),
            Err(_) => units::time(text).map(By::Time).map_err(|_| "expected a number of packets, or a time"),
        })?;
        Ok(Act::Reorder { probability, by: Some(by) })
    }

    fn corrupt(&mut self) -> Result_<Act> {
        let probability = self.probability()?;
        let (mut icrc_ok, mut at) = (false, Place::Anywhere);
        loop {
            if self.option("icrc")? {
                icrc_ok = self.one_of(&[("ok", true), ("bad", false)])?;
            } else if self.option("at")? {
                at = self.read(place)?;
            } else {
                return Ok(Act::Corrupt { probability, icrc_ok, at });
            }
        }
    }

    fn delay(&mut self) -> Result_<Delay> {
        let base = self.read(units::time)?;
        let jitter = if self.eat("~") { self.read(units::time)? } else { Duration::ZERO };
        let spread = match self.peek() {
            "normal" => Spread::Normal,
            "pareto" => Spread::Pareto,
            _ => Spread::Uniform,
        };
        if spread != Spread::Uniform {
            self.word();
        }
        Ok(Delay { base, jitter, spread })
    }

    fn rate(&mut self) -> Result_<Act> {
        let bits = self.read(units::bits)?;
        let (mut queue, mut queue_time, mut mark) = (256 << 10, None, None);
        loop {
            if self.option("queue")? {
                (queue, queue_time) = self.read(|text| match (units::octets(text), units::time(text)) {
                    (Ok(octets), _) => Ok((octets, None)),
                    (_, Ok(time)) => Ok((u64::MAX, Some(time))),
                    _ => Err("a queue is an amount such as 256k, or a time such as 5ms"),
                })?;
            } else if self.option("mark")? {
                mark = Some(self.read(units::octets)?);
            } else {
                return Ok(Act::Rate { bits, queue, queue_time, mark });
            }
        }
    }

    fn term(&mut self, kind: Kind, before: &[Term]) -> Result_<Term> {
        self.blanks();
        let at = self.at;
        let word = self.word();
        let Some((_, key)) = Key::WORDS.iter().find(|(known, _)| *known == word) else {
            return Err(self.error(at, format!("expected one of {}", names(Key::WORDS).join(", "))));
        };
        if !key.is_of(kind) {
            return Err(self.error(at, "rules with this act cannot have this term".to_owned()));
        }
        if before.iter().any(|term| term.key == *key) {
            return Err(self.error(at, "this term is there twice; `|` separates several values".to_owned()));
        }
        let negated = self.eat("!=");
        if !negated {
            self.expect("=")?;
        }
        let mut values = vec![self.term_value(*key)?];
        while self.eat("|") {
            values.push(self.term_value(*key)?);
        }
        if *key == Key::Count && (negated || !matches!(values.as_slice(), [Value::Range(1.., _)])) {
            return Err(self.error(at, "`count` is the number of times, at least 1".to_owned()));
        }
        Ok(Term { key: *key, negated, values })
    }

    fn term_value(&mut self, key: Key) -> Result_<Value> {
        self.blanks();
        let at = self.at;
        let text = self.value();
        let fail = |message: &str| Err(self.error(at, message.to_owned()));
        match key {
            Key::Op if text == Op::Mad.word() => Ok(Value::Range(*Op::MADS.start(), *Op::MADS.end())),
            Key::Dir | Key::Op | Key::Pos | Key::Verb | Key::At => {
                let words = words_of(key);
                match words.iter().zip(0..).find(|(word, _)| **word == text) {
                    Some((_, number)) => Ok(Value::Range(number, number)),
                    None => fail(&format!("expected one of {}", words.join(", "))),
                }
            }
            Key::Dev if text.is_empty() => fail("expected the name of a device"),
            Key::Dev => Ok(Value::Text(text.to_owned())),
            Key::Peer => match (text.parse::<IpAddr>(), text.parse::<u32>()) {
                (Ok(address), _) => Ok(Value::Address(address)),
                (_, Ok(number)) => Ok(Value::Range(number.into(), number.into())),
                _ => fail("expected an address, or a number"),
            },
            Key::Time => {
                let nanos = |text: &str| units::time(text).map(|time| time.as_nanos() as u64);
                match range(text, nanos) {
                    Some(value) => Ok(value),
                    None => fail("expected times such as 1s..1500ms, 1s.. or 0s..2s"),
                }
            }
            _ => {
                if let Some(step) = text.strip_prefix("every/") {
                    return match step.parse() {
                        Ok(step @ 1..) => Ok(Value::Every(step)),
                        _ => fail("expected a number from 1 behind every/"),
                    };
                }
                let number = |text: &str| text.parse::<u64>().map_err(|_| "");
                match range(text, number) {
                    Some(value) => Ok(value),
                    None => fail("expected a number, a range such as 1..3 or 4.., or every/10"),
                }
            }
        }
    }
}

/// Whether the rule is for received datagrams alone.
fn only_received(rule: &Rule) -> bool {
    rule.term(Key::Dir).is_some_and(|term| !term.holds(Dir::Tx as u64))
}

/// The first of the words that the term names and that has not this property.
fn lacking<T: Copy>(
    term: Option<&Term>,
    words: &[(&'static str, T)],
    has: impl Fn(T) -> bool,
) -> Option<&'static str> {
    let mut numbered = words.iter().zip(0..);
    let lacking =
        |((_, value), number): &(&(_, T), u64)| !has(*value) && term.is_some_and(|term| term.holds(*number));
    numbered.find(lacking).map(|((word, _), _)| *word)
}

/// `a`, `a..b` or `a..`.
fn range(text: &str, read: impl Fn(&str) -> Result<u64, &'static str>) -> Option<Value> {
    let (low, high) = match text.split_once("..") {
        None => (read(text).ok()?, read(text).ok()?),
        Some((low, "")) => (read(low).ok()?, u64::MAX),
        Some((low, high)) => (read(low).ok()?, read(high).ok()?),
    };
    (low <= high).then_some(Value::Range(low, high))
}

/// A word for a part of the packet, or `OCTET/BIT`.
fn place(text: &str) -> Result<Place, &'static str> {
    if let Some((_, place)) = Place::WORDS.iter().find(|(word, _)| *word == text) {
        return Ok(*place);
    }
    let bit = text.split_once('/').and_then(|(octet, bit)| {
        let bit: u8 = bit.parse().ok()?;
        (bit < 8).then_some(Place::Bit(octet.parse().ok()?, bit))
    });
    bit.ok_or("expected opcode, pkey, destqp, psn, ext, payload, icrc, or OCTET/BIT")
}

fn names<T>(words: &[(&'static str, T)]) -> Vec<&'static str> {
    words.iter().map(|(word, _)| *word).collect()
}

/// The words that a key knows; [`Term`] compares their places in this list.
fn words_of(key: Key) -> Vec<&'static str> {
    match key {
        Key::Dir => names(Dir::WORDS),
        Key::Op => names(Op::WORDS),
        Key::Pos => names(Pos::WORDS),
        Key::Verb => names(Verb::WORDS),
        Key::At => names(Moment::WORDS),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;

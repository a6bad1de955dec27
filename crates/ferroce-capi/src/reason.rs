//! The reason of a refused call, in one line on standard error: a program itself prints "Invalid argument" at
//! best. A cause is told once in a process, whatever the numbers in its line, and no more than [`MOST`]
//! causes are. A further refusal is told at the level `info`, and that of a post is not told.

use std::error::Error;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_engine::{CompletionQueue, WcStatus, WorkCompletion};
use ferroce_host::output;

use crate::check;

/// Causes that a process is told.
const MOST: usize = 32;

/// Octets of a line.
const MOST_OCTETS: usize = 700;

/// Hashes of the causes that were told; 0 is a free place.
static TOLD: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// Tells why a call was refused, with the causes of that.
#[cold]
#[inline(never)]
pub(crate) fn tell(call: &str, error: &dyn Error) {
    let line = Line::of("", call, error);
    let line = line.text();
    if is_new(line) { tracing::error!("{line}") } else { tracing::info!("{line}") }
}

/// As [`tell`], without allocation and on standard error in any case: a program may post in a signal handler
/// that has interrupted its allocator.
#[cold]
#[inline(never)]
pub(crate) fn tell_of_post(call: &str, error: &dyn Error) {
    if tracing::enabled!(tracing::Level::ERROR) {
        Line::of("ferroce: error: ", call, error).tell();
    }
}

/// Tells why a work request failed, if it did. Each completion that a program polls comes by here.
#[inline]
pub(crate) fn tell_if_failed(cq: &CompletionQueue, completion: &WorkCompletion) {
    if check::is_on() {
        check::polled(cq, completion);
    }
    if completion.status != WcStatus::Success {
        tell_of_failure(cq, completion);
    }
}

/// Tells why a work request failed, unless it was flushed. As [`tell_of_post`], because a program may poll in
/// a signal handler.
#[cold]
#[inline(never)]
fn tell_of_failure(cq: &CompletionQueue, failed: &WorkCompletion) {
    let WorkCompletion { wr_id, status, opcode, qpn, .. } = *failed;
    if status == WcStatus::WrFlushErr || !tracing::enabled!(tracing::Level::ERROR) {
        return;
    }
    let mut line = Line { octets: [0; MOST_OCTETS], len: 0 };
    let (opcode, status, qpn) = (opcode.name(), status.name(), qpn.value());
    let _ = write!(line, "ferroce: error: {opcode} with wr_id {wr_id} on queue pair {qpn:#08x}: {status}");
    if let Some(cause) = cq.why(failed) {
        let _ = write!(line, ": {cause}; {}", cause.cure());
    }
    let pid = std::process::id();
    let _ = write!(line, " (`ferroce explain {pid}` shows the packets)");
    line.tell();
}

/// A line, cut off where it is too long.
struct Line {
    octets: [u8; MOST_OCTETS],
    len: usize,
}

impl Line {
    fn of(prefix: &str, call: &str, error: &dyn Error) -> Self {
        let mut line = Self { octets: [0; MOST_OCTETS], len: 0 };
        let _ = write!(line, "{prefix}{call}");
        let mut cause = Some(error);
        while let Some(error) = cause {
            let _ = write!(line, ": {error}");
            cause = error.source();
        }
        line
    }

    /// Writes it to standard error, if its cause is new.
    fn tell(mut self) {
        if is_new(self.text()) {
            self.len = self.len.min(self.octets.len() - 1);
            let _ = self.write_str("\n");
            output::write(output::stderr(), self.text().as_bytes());
        }
    }

    fn text(&self) -> &str {
        let octets = self.octets.get(..self.len).unwrap_or_default();
        octets.utf8_chunks().next().map_or("", |chunk| chunk.valid())
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.octets.get_mut(self.len..).unwrap_or_default();
        let taken = room.len().min(text.len());
        room.iter_mut().zip(text.bytes()).for_each(|(to, octet)| *to = octet);
        self.len += taken;
        Ok(())
    }
}

/// Whether there is a place for the line's cause, which then is its own. Words with digits are values.
fn is_new(line: &str) -> bool {
    let mut hasher = DefaultHasher::new();
    let words = line.split(' ').filter(|word| !word.bytes().any(|octet| octet.is_ascii_digit()));
    words.for_each(|word| word.hash(&mut hasher));
    let hash = hasher.finish().max(1);
    let taken =
        TOLD.iter().map(|place| place.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed));
    taken.take_while(|taken| *taken != Err(hash)).any(|taken| taken.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_causes_and_ends_with_a_whole_character() {
        let error = std::io::Error::other("ä".repeat(MOST_OCTETS));
        let line = Line::of("", "ibv_x", &error);
        assert!(line.text().starts_with("ibv_x: ää") && line.text().ends_with('ä'), "{}", line.text());
        assert!((MOST_OCTETS - 2..=MOST_OCTETS).contains(&line.text().len()));
    }

    #[test]
    fn a_cause_is_new_once_and_not_all_are() {
        assert!(is_new("a 1") && !is_new("a 2") && is_new("b") && !is_new("a 3") && !is_new("b"));
        let new = (1..100).filter(|length| is_new(&"x".repeat(*length))).count();
        assert_eq!(new, MOST - 2);
        assert!(!is_new("c"));
    }
}

//! What the checks know of the program, and how they tell.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use core::ffi::{c_int, c_void};

use ferroce_host::output;

use super::trace::{self, Trace};
use super::work::Work;
use crate::{check, stack};

/// Findings that a process is told.
const MOST: usize = 100;

#[derive(Default)]
pub(crate) struct State {
    /// Queue pairs that were posted to, by the address of their handle.
    pub(super) queues: BTreeMap<usize, Queue>,
    /// Receive work requests, by the address of the queue pair or shared receive queue.
    pub(super) receives: BTreeMap<usize, VecDeque<Work>>,
    /// Registered memory by its local key.
    pub(super) regions: BTreeMap<u32, Region>,
    /// Keys of regions that were deregistered, and where.
    pub(super) dead_keys: BTreeMap<u32, Trace>,
    /// Objects by the address of their handle.
    pub(super) objects: BTreeMap<usize, Object>,
    /// For each completion queue, how many times it was armed less the events that came.
    pub(super) armed: BTreeMap<usize, u32>,
    /// For each channel that is waited for and has no armed queue: since when, and when that was seen last.
    pub(super) waiting: BTreeMap<usize, (Instant, Instant)>,
    pub(super) posted: u64,
    /// Set by `ibv_rereg_mr`, which may give any memory to any key.
    pub(super) is_memory_unknown: bool,
    /// An object was made.
    is_used: bool,
    /// The program returned 0 from `main`, where it could have destroyed all objects.
    is_returned: bool,
    told: BTreeSet<((&'static str, &'static str), usize)>,
}

/// A queue pair.
pub(super) struct Queue {
    pub(super) context: usize,
    pub(super) qpn: u32,
    pub(super) sends: VecDeque<Work>,
    pub(super) send_cq: usize,
    /// The handle that holds its receive work requests: its own, or that of its shared receive queue.
    pub(super) receives: usize,
    pub(super) max_send_wr: u32,
    pub(super) signals_all: bool,
    /// Work requests posted since the last signaled one.
    pub(super) unsignaled: u32,
    /// It is connected to a queue pair of this process.
    pub(super) is_loopback: bool,
}

pub(super) struct Region {
    pub(super) addr: u64,
    pub(super) len: u64,
    /// Peers address it as the program does, so addresses of work requests are those of its memory.
    pub(super) is_plain: bool,
    /// Peers may write to it.
    pub(super) is_written: bool,
}

pub(super) struct Object {
    pub(super) kind: &'static str,
    pub(super) context: usize,
    /// A completion queue may hold no more completions than it has room for.
    pub(super) is_bounded: bool,
    /// Its context was closed.
    pub(super) is_left: bool,
    pub(super) made: Trace,
}

impl State {
    /// Tells a finding, unless it was told for the same place in the program. `kind` names it, `before` is
    /// an earlier call that has to do with it.
    pub(super) fn tell(
        &mut self,
        kind: (&'static str, &'static str),
        text: &str,
        at: &Trace,
        before: Option<(&str, &Trace)>,
    ) {
        if self.told.len() >= MOST || !self.told.insert((kind, at.place())) {
            return;
        }
        // Names of functions are looked up in files, which needs room.
        let _ = stack::with_room(|| {
            let before = before.map(|(what, trace)| format!("\n  {what}:{trace}")).unwrap_or_default();
            output::say(format_args!("check: {text}{at}{before}"));
        });
    }

    /// An object is made.
    pub(super) fn made(&mut self, at: usize, kind: &'static str, context: usize) {
        if !std::mem::replace(&mut self.is_used, true) {
            trace::at_exit(leaving);
        }
        let object = Object { kind, context, is_bounded: true, is_left: false, made: Trace::here() };
        self.objects.insert(at, object);
    }

    /// An object ends. If it is a context, `public` is the program's pointer to it.
    pub(super) fn ended(&mut self, at: usize, public: usize) {
        self.objects.remove(&at);
        self.queues.remove(&at);
        self.receives.remove(&at);
        self.armed.remove(&at);
        for object in self.objects.values_mut().filter(|object| object.context == public) {
            object.is_left = true;
        }
    }

    /// The process exits.
    pub(super) fn finish(&mut self) {
        if !self.is_used {
            return;
        }
        let mut left: BTreeMap<&'static str, (u32, Trace)> = BTreeMap::new();
        for object in self.objects.values().filter(|object| self.is_returned || object.is_left) {
            left.entry(object.kind).or_insert_with(|| (0, object.made.clone())).0 += 1;
        }
        for (kind, (count, made)) in left {
            let text =
                format!("exit: {count} {kind} not destroyed; end each object before its device is closed");
            self.tell(("leak", kind), &text, &made, None);
        }
        let (findings, program, pid) = (self.told.len(), trace::program(), std::process::id());
        let noun = if findings == 1 { "finding" } else { "findings" };
        let more = if findings < MOST { "" } else { " or more" };
        output::say(format_args!("check: {findings}{more} {noun} in {program} (process {pid})"));
    }
}

/// Run by `exit` itself. The summary is written later, by the loader, from where frames lead no further.
extern "C" fn leaving(status: c_int, _: *mut c_void) {
    check::with(|state| state.is_returned = status == 0 && Trace::here().is_end_of_main());
}

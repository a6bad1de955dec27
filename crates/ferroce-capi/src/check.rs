//! `ferroce run --check`: faults of the program that no call reports, such as a completion queue that is too
//! small. Each is told once a place, with the program's frames.
//!
//! Checks are on if `FERROCE_CHECK` is set when the loader maps the library. Where they are off, a call looks
//! at one flag, also a call that posts or polls many.

mod cards;
mod rules;
mod trace;

use std::any::type_name;
use std::cell::Cell;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};

use ferroce_abi as abi;
use ferroce_engine::PerProcess;
use ferroce_host::thread::Uncancellable;
use ferroce_host::{environment, output, process};
use parking_lot::Mutex;

pub(crate) use cards::sizes;
pub(crate) use rules::*;

use crate::stack;

static ON: AtomicBool = AtomicBool::new(false);

/// Set after a call in a signal handler that interrupted a check: the state may lack a work request, so
/// nothing is told any more.
static LOST: AtomicBool = AtomicBool::new(false);

static STATE: PerProcess<Mutex<State>> = PerProcess::new();

/// Whether the program is checked.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Starts the checks if `FERROCE_CHECK` asks for them. Run by the loader, so that the summary is written
/// after the destructors of the program.
pub(crate) fn start() {
    if let Some(words) = environment::text("FERROCE_CHECK").filter(|words| !words.is_empty()) {
        cards::choose(&words);
        ON.store(true, Ordering::Relaxed);
        process::at_exit(finish);
    }
}

extern "C" fn finish() {
    if LOST.load(Ordering::Relaxed) {
        output::say("check: incomplete: a signal handler posted or polled during a check");
    }
    with(State::finish);
}

/// Runs `look` on the state of the checks, if they are on. No lock of the engine is taken in it.
fn with(look: impl FnOnce(&mut State)) {
    thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    if is_on() && !LOST.load(Ordering::Relaxed) {
        if INSIDE.replace(true) {
            return LOST.store(true, Ordering::Relaxed);
        }
        // Files are read for the names of functions, which are cancellation points, and take room.
        let _uncancellable = Uncancellable::new();
        let _ = stack::with_room(|| look(&mut STATE.get().lock()));
        INSIDE.set(false);
    }
}

/// An object is made.
pub(crate) fn made<C>(c: *mut C) {
    const KINDS: [&str; 7] =
        ["ibv_pd", "ibv_mr", "ibv_cq", "ibv_qp", "ibv_srq", "ibv_ah", "ibv_comp_channel"];
    let name = type_name::<C>().rsplit("::").next().unwrap_or_default().trim_end_matches("_ex");
    if let Some(kind) = KINDS.into_iter().find(|kind| is_on() && *kind == name) {
        // SAFETY: the structure of each of these kinds begins with the pointer to its context.
        let context = unsafe { c.cast::<*mut abi::ibv_context>().read_unaligned() };
        with(|state| state.made(c.addr(), kind, context.addr()));
    }
}

/// An object ends, or does not have to be destroyed by the program.
pub(crate) fn ended<C>(c: *mut C) {
    // Objects name their context by the program's pointer to it.
    with(|state| state.ended(c.addr(), c.addr() + offset_of!(abi::verbs_context, context)));
}

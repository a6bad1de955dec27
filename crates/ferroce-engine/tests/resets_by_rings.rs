//! Queue pairs that are reset while packets of before are on their way, by rings to the broker.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{force_rings, resets};
use ferroce_engine::Service;

#[test]
fn old_messages_of_rc_are_dropped() {
    force_rings();
    resets::old_messages_are_dropped(Service::Rc);
}

#[test]
fn old_messages_of_uc_are_dropped() {
    force_rings();
    resets::old_messages_are_dropped(Service::Uc);
}

#[test]
fn old_writes_are_dropped() {
    force_rings();
    resets::old_writes_are_dropped();
}

#[test]
fn old_acknowledgements_are_dropped() {
    force_rings();
    resets::old_acknowledgements_are_dropped();
}

#[test]
fn a_number_that_is_used_again_brings_nothing() {
    force_rings();
    resets::a_number_that_is_used_again_brings_nothing();
}

#[test]
fn old_datagrams_are_dropped() {
    force_rings();
    resets::old_datagrams_are_dropped();
}

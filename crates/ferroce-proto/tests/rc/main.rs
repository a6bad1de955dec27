//! The RC queue pair from outside.

#![allow(dead_code, reason = "the support is shared by tests of which some follow")]

mod exchange;
mod ram;
mod world;

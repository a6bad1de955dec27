//! Connection management: two ends, a network between them, and what it does to their messages.

mod exchange;
mod probe;
mod schedules;
mod world;

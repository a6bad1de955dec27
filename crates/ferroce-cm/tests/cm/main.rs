//! Connection management: two ends, a network between them, and what it does to their messages.

mod exchange;
mod flood;
mod hostile;
mod kernel;
mod listening;
mod probe;
mod records;
mod schedules;
mod states;
mod users;
mod world;

//! Connection management: the client half of librdmacm.

pub mod resolve;

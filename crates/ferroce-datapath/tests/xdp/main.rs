//! AF_XDP on veth interfaces in network namespaces of the tests' own.
//!
//! Each test has two namespaces without a name, which the kernel removes with the test's thread. One is the host: the uplink `net0`, and a
//! pair `nearN`, `farN` for each program. The other one is the peer, with the interface `peer`.

mod bed;
mod crossing;
mod ends;
mod filters;
mod packets;
mod rights;

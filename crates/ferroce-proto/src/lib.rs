//! What should happen? The RDMA transport's state machines, without I/O.

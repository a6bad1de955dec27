//! RDMA verbs from Rust, in user space.

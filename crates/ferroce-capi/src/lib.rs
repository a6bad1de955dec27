//! What does each C call do? ibv_*, rdma_* and umad_* over the engine.

pub mod errno;
pub mod refused;

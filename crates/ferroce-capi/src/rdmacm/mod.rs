//! librdmacm: connecting by IP address.
//!
//! A module an object, as above. An id (`rdma_cm_id`) is what a socket is elsewhere; what becomes of it is
//! told as events on its channel, or, if it has none, by the call itself, which then waits (`sync`).

pub(crate) mod address;
mod addrinfo;
mod arrival;
mod bind;
mod channel;
mod connect;
mod device;
mod ece;
mod ep;
mod event;
mod id;
mod link;
mod multicast;
mod operation;
mod option;
mod program_event;
mod qp;
mod queue_pair;
mod resolve;
mod route;
mod srq;
mod state;

pub use addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo, rdma_query_addrinfo, rdma_resolve_addrinfo};
pub use bind::{rdma_bind_addr, rdma_listen};
pub use channel::{rdma_create_event_channel, rdma_destroy_event_channel};
pub use connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_get_request, rdma_notify, rdma_reject,
};
pub use device::{rdma_free_devices, rdma_get_devices};
pub use ece::{rdma_get_remote_ece, rdma_reject_ece, rdma_set_local_ece};
pub use ep::{rdma_create_ep, rdma_destroy_ep};
pub use event::{rdma_ack_cm_event, rdma_get_cm_event, rdma_write_cm_event};
pub use id::{rdma_create_id, rdma_destroy_id, rdma_get_dst_port, rdma_get_src_port, rdma_migrate_id};
pub use multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
pub use option::rdma_set_option;
pub use qp::{rdma_create_qp, rdma_create_qp_ex, rdma_destroy_qp, rdma_init_qp_attr};
pub use resolve::{rdma_resolve_addr, rdma_resolve_route};
pub use srq::{rdma_create_srq, rdma_create_srq_ex, rdma_destroy_srq};

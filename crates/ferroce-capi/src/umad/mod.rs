//! libibumad: devices and ports as management programs see them, and management datagrams to the port itself.
//!
//! The calls return a negative errno, and set errno as well.

mod agent;
mod datagram;
mod devices;
mod names;
mod port;

pub use datagram::{
    umad_addr_dump, umad_debug, umad_dump, umad_get_mad, umad_get_mad_addr, umad_get_pkey, umad_set_addr,
    umad_set_addr_net, umad_set_grh, umad_set_pkey, umad_size, umad_status,
};
pub use devices::{
    umad_done, umad_free_ca_device_list, umad_get_ca, umad_get_ca_device_list, umad_get_ca_portguids,
    umad_get_cas_names, umad_get_issm_path, umad_get_port, umad_init, umad_release_ca, umad_release_port,
    umad_sort_ca_device_list,
};
pub use names::{
    umad_attribute_str, umad_class_str, umad_common_mad_status_str, umad_method_str, umad_sa_mad_status_str,
};

pub use port::{
    umad_close_port, umad_get_fd, umad_open_port, umad_open_smi_port, umad_poll, umad_recv, umad_register,
    umad_register_oui, umad_register2, umad_send, umad_unregister,
};

use core::ffi::c_int;

use crate::call::{self, Owner};
use crate::errno::Errno;

/// For calls that return 0 or more, or a negative errno.
fn negative(body: impl FnOnce(&Owner) -> Result<usize, Errno>) -> c_int {
    c_int::try_from(call::negative(body)).unwrap_or(c_int::MAX)
}

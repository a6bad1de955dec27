//! The route of an id: its device, addresses and path record.

use std::net::SocketAddr;

use ferroce_abi as abi;
use ferroce_engine::cm::attributes;
use ferroce_engine::cm::resolve::Route;
use ferroce_wire::Gid;

use super::device::{self, Home};
use super::state::{IdHandle, IdState, Options, show_destination, show_source};
use crate::handle::set;

/// `IBV_PATH_…`'s "exactly this": selector of MTU, rate and life time.
const EXACTLY: u8 = 2;
/// The default P_Key, the only one of RoCE.
const PKEY: u16 = 0xffff;
/// Life time of a packet: 4.096 µs × 2^16 (rxe 6.12, `CMA_IBOE_PACKET_LIFETIME`).
const LIFE_TIME: u8 = 16;

/// Binds the id to the device of a route and lets the program see it.
pub(super) fn take_route(id: &'static IdHandle, state: &mut IdState, route: Route, home: Home) {
    // iWARP knows peers by their addresses alone.
    let (dgid, pkey) = match route.is_iwarp() {
        true => (Gid::default(), 0),
        false => (Gid::from_ip(route.destination.ip()), PKEY),
    };
    let gids = abi::rdma_ib_addr {
        sgid: abi::ibv_gid { raw: route.local.gid.gid.0 },
        dgid: abi::ibv_gid { raw: dgid.0 },
        pkey: pkey.to_be(),
    };
    show_source(id, route.source);
    show_destination(id, route.destination);
    set!(id.route.addr.addr.ibaddr = gids);
    take_home(id, state, home);
    state.gid_index = u8::try_from(route.local.gid.index).ok();
    state.interface = Some(route.local.gid.ifindex);
    state.route = Some(route);
}

/// Binds the id to a device and lets the program see it.
pub(super) fn take_home(id: &'static IdHandle, state: &mut IdState, home: Home) {
    set!(id.verbs = home.context.public());
    set!(id.port_num = 1);
    set!(id.pd = home.pd);
    state.context = Some(home.context);
    device::follow(id);
}

/// The path record of a route: everything else follows from there being one kind of fabric.
pub(super) fn path_record(route: &Route, options: &Options) -> abi::ibv_sa_path_rec {
    let tos = route.type_of_service(options.tos);
    abi::ibv_sa_path_rec {
        dgid: abi::ibv_gid { raw: Gid::from_ip(route.destination.ip()).0 },
        sgid: abi::ibv_gid { raw: route.local.gid.gid.0 },
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: flow_label(route).to_be(),
        hop_limit: route.hop_limit,
        traffic_class: tos,
        reversible: 1,
        numb_path: 1,
        pkey: PKEY.to_be(),
        sl: attributes::service_level(tos),
        mtu_selector: EXACTLY,
        mtu: route.mtu as u8,
        rate_selector: EXACTLY,
        // 0 stands for the rate of the port.
        rate: 0,
        packet_life_time_selector: EXACTLY,
        packet_life_time: options.ack_timeout.map_or(LIFE_TIME, |timeout| timeout.saturating_sub(1)),
        preference: 0,
    }
}

/// The one that IPv6 came with, or one made of the ports (rxe 6.12, `cma_get_roce_udp_flow_label`).
fn flow_label(route: &Route) -> u32 {
    let asked = match route.destination {
        SocketAddr::V6(v6) => v6.flowinfo() & 0xf_ffff,
        SocketAddr::V4(_) => 0,
    };
    if asked != 0 {
        return asked;
    }
    attributes::flow_label(route.source.port(), route.destination.port())
}

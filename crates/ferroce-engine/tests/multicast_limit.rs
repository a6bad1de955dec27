//! As many multicast groups as the device says there are, in a process of its own: others would miss them.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::net::Ipv4Addr;

use common::*;
use ferroce_engine::error::AttachError;
use ferroce_engine::{AhAttr, MAX_MCAST_GRP, SendOp, SendWr, Service, WcOpcode};
use ferroce_wire::{Gid, Qpn};

#[test]
fn the_reported_number_of_groups_can_be_joined() {
    let end = End::new(Wanted { service: Service::Ud, ..Wanted::default() });
    ud_to_rts(&end.qp);
    let [.., high, low] = std::process::id().to_be_bytes();
    let group = |n: u32| Gid::from(Ipv4Addr::new(232, high ^ (n >> 8) as u8, low, n as u8));
    (0..MAX_MCAST_GRP).for_each(|n| end.qp.attach(group(n)).unwrap());
    let refused = end.qp.attach(group(MAX_MCAST_GRP)).unwrap_err();
    assert!(matches!(refused, AttachError::Limit(limit) if limit.max == MAX_MCAST_GRP), "{refused}");
    end.receive(1, end.sge(0, 100));
    let ah = end.pd.create_ah(AhAttr { dgid: group(300), ..AhAttr::default() }).unwrap();
    let wr =
        SendWr { to: ah.to(Qpn::MULTICAST, QKEY).unwrap(), signaled: false, ..send(2, SendOp::Send, &[]) };
    end.qp.post_send([wr]).unwrap();
    end.expect(1, WcOpcode::Recv);
    end.qp.detach(group(7)).unwrap();
    end.qp.attach(group(MAX_MCAST_GRP)).unwrap();
    end.qp.destroy();
}

//! `ibv_ud_pingpong` in Rust, with the flags and the exchange of addresses of that program, so that either end may be
//! it.
//!
//! ```text
//! cargo run --release --example ud_pingpong -- -d fr0 -g 0 -s 1024 &
//! cargo run --release --example ud_pingpong -- -d fr0 -g 0 -s 1024 127.0.0.1
//! ```

mod common;

use std::error::Error;
use std::process::ExitCode;

use common::{Options, RECV, SEND};
use ferroce::{Access, HEADER, Qkey, QpOptions};

/// The Q_Key of Debian's program.
const QKEY: Qkey = Qkey::new(0x1111_1111);

fn main() -> ExitCode {
    common::main("ud_pingpong", run)
}

/// Exchanges a datagram of one packet, which arrives behind its IP header.
fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let device = common::open(options)?;
    let domain = device.protection_domain()?;
    let client = options.host.is_some();
    let fill = if client { 0x7b } else { 0x7c };
    let region = domain.register(vec![fill; HEADER + options.size], Access::LOCAL_WRITE)?;
    let channel = if options.events { Some(device.completion_channel()?) } else { None };
    let queue = device.completion_queue(options.rx_depth + 1, channel.as_ref())?;
    let sizes = QpOptions::default().max_send_wr(1).max_recv_wr(options.rx_depth);
    let qp = domain.ud_queue_pair(&queue, &queue, sizes)?.init(QKEY)?;

    let (whole, payload) = (region.slice(..), region.slice(HEADER..));
    for _ in 0..options.rx_depth {
        qp.post_recv(RECV, &[whole])?;
    }
    let local = qp.address(options.gid_idx)?;
    let qp = qp.ready_to_receive()?.ready_to_send()?;
    let (there, remote) = common::meet(options, &local, |remote| {
        Ok((domain.address_handle(options.gid_idx, remote.gid)?, remote))
    })?;

    if options.chk && client {
        common::mark(options, &region, HEADER);
    }
    let send = || qp.send_to(SEND, &[payload], &there, remote.qpn, QKEY);
    let elapsed = common::play(options, &queue, send, || qp.post_recv(RECV, &[whole]))?;
    common::report(options, elapsed);
    if options.chk && !client {
        common::check(options, &region, HEADER)?;
    }
    Ok(())
}

//! `ibv_rc_pingpong` in Rust, with the flags and the exchange of addresses of that program, so that either end may be
//! it.
//!
//! ```text
//! cargo run --release --example rc_pingpong -- -d fr0 -g 0 &
//! cargo run --release --example rc_pingpong -- -d fr0 -g 0 127.0.0.1
//! ```

mod common;

use std::error::Error;
use std::process::ExitCode;

use common::{Options, RECV, SEND};
use ferroce::{Access, Connection, QpOptions, SendOptions};

fn main() -> ExitCode {
    common::main("rc_pingpong", run)
}

/// Exchanges a message over a reliable connection.
fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let device = common::open(options)?;
    let domain = device.protection_domain()?;
    let client = options.host.is_some();
    let region =
        domain.register(vec![if client { 0x7b } else { 0x7c }; options.size], Access::LOCAL_WRITE)?;
    let channel = if options.events { Some(device.completion_channel()?) } else { None };
    let queue = device.completion_queue(options.rx_depth + 1, channel.as_ref())?;
    let sizes = QpOptions::default().max_send_wr(1).max_recv_wr(options.rx_depth);
    let qp = domain.rc_queue_pair(&queue, &queue, sizes)?.init(Access::empty())?;

    let whole = region.slice(..);
    for _ in 0..options.rx_depth {
        qp.post_recv(RECV, &[whole])?;
    }
    let local = qp.address(options.gid_idx)?;
    let qp = common::meet(options, &local, |remote| {
        let path_mtu = common::path_mtu(options.mtu)?;
        let connection = Connection::to(local, remote).path_mtu(path_mtu).max_dest_rd_atomic(1);
        let sending = SendOptions::default().max_rd_atomic(1);
        Ok(qp.ready_to_receive(&connection)?.ready_to_send(sending)?)
    })?;

    if options.chk && client {
        common::mark(options, &region, 0);
    }
    let elapsed = common::play(options, &queue, || qp.send(SEND, &[whole]), || qp.post_recv(RECV, &[whole]))?;
    common::report(options, elapsed);
    if options.chk && !client {
        common::check(options, &region, 0)?;
    }
    Ok(())
}

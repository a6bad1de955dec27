//! One sender and any number of receivers of a multicast group, each in its own process.
//!
//! ```text
//! cargo run --release --example multicast -- receive 239.1.2.3 &
//! cargo run --release --example multicast -- receive 239.1.2.3 &
//! cargo run --release --example multicast -- send 239.1.2.3 "to everybody"
//! ```

use std::error::Error;
use std::net::IpAddr;

use clap::{Parser, Subcommand};
use ferroce::{Access, Context, Gid, HEADER, Qkey, QpOptions, Qpn, Status};

/// The group's Q_Key, which all members share.
const QKEY: Qkey = Qkey::new(0x0123_4567);
const ROOM: usize = 1024;

/// Sends to a multicast group, or receives from it.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    role: Role,
    /// RDMA device, the first one if not given
    #[arg(short = 'd', long, global = true)]
    ib_dev: Option<String>,
    /// Index of the local GID, of the group's address family
    #[arg(short, long, default_value_t = 0, global = true)]
    gid_idx: u8,
}

#[derive(Subcommand)]
enum Role {
    /// Prints what arrives
    Receive {
        /// The group's address
        group: IpAddr,
        /// Datagrams until the end
        #[arg(short = 'n', long, default_value_t = 1)]
        count: usize,
    },
    /// Sends one datagram
    Send {
        /// The group's address
        group: IpAddr,
        /// The text to send
        text: String,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let name = match options.ib_dev {
        Some(name) => name,
        None => ferroce::devices()?.into_iter().next().ok_or("there is no RDMA device")?.name,
    };
    let device = Context::open(&name)?;
    let domain = device.protection_domain()?;
    let channel = device.completion_channel()?;
    let queue = device.completion_queue(64, Some(&channel))?;
    let sizes = QpOptions::default().max_send_wr(1).max_recv_wr(32);
    let qp = domain.ud_queue_pair(&queue, &queue, sizes)?.init(QKEY)?;
    match options.role {
        Role::Receive { group, count } => {
            let room = domain.register(vec![0; 32 * (HEADER + ROOM)], Access::LOCAL_WRITE)?;
            let slot = |id: u64| {
                let start = id as usize * (HEADER + ROOM);
                start..start + HEADER + ROOM
            };
            for id in 0..32 {
                qp.post_recv(id, &[room.slice(slot(id))])?;
            }
            qp.attach(Gid::from_ip(group))?;
            let qp = qp.ready_to_receive()?;
            println!("listening to {group}");
            let mut seen = 0;
            while seen < count {
                let completion = queue.wait()?;
                let mut datagram = vec![0; completion.len as usize];
                room.read(slot(completion.wr_id).start, &mut datagram);
                let text = String::from_utf8_lossy(&datagram[HEADER..]);
                println!("{:#x}: {text}", completion.src_qp.value());
                qp.post_recv(completion.wr_id, &[room.slice(slot(completion.wr_id))])?;
                seen += 1;
            }
        }
        Role::Send { group, text } => {
            let message = domain.register(text.into_bytes(), Access::empty())?;
            let there = domain.address_handle(options.gid_idx, Gid::from_ip(group))?;
            let qp = qp.ready_to_receive()?.ready_to_send()?;
            qp.send_to(0, &[message.slice(..)], &there, Qpn::MULTICAST, QKEY)?;
            let completion = queue.wait()?;
            assert_eq!(completion.status, Status::Success);
        }
    }
    Ok(())
}

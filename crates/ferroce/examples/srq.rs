//! Three connections that receive into one shared queue, all in this process over `lo`.
//!
//! ```text
//! cargo run --release --example srq
//! ```

use ferroce::service::Rc;
use ferroce::{Access, Connection, Context, Error, EventKind, QpOptions, SrqOptions, Status};

fn main() -> Result<(), Error> {
    let device = Context::open("fr0")?;
    let domain = device.protection_domain()?;
    let (sent, received) = (device.completion_queue(16, None)?, device.completion_queue(16, None)?);
    let buffer = domain.register(vec![0; 4096], Access::LOCAL_WRITE)?;

    let shared = domain.shared_receive_queue(SrqOptions::default().max_wr(8))?;
    for wr_id in 0..4_u64 {
        let start = wr_id as usize * 64;
        shared.post_recv(wr_id, &[buffer.slice(start..start + 64)])?;
    }
    shared.set_limit(3)?; // an event when fewer are left

    let message = domain.register(b"one of three".to_vec(), Access::empty())?;
    let mut ends = Vec::new();
    for wr_id in 0..3 {
        let sender = domain.rc_queue_pair(&sent, &sent, QpOptions::default())?.init(Access::empty())?;
        let receiver = domain
            .queue_pair_on::<Rc>(&shared, &sent, &received, QpOptions::default())?
            .init(Access::empty())?;
        let (here, there) = (sender.address(0)?, receiver.address(0)?);
        let receiver = receiver.ready_to_receive(&Connection::to(there, here))?;
        let sender =
            sender.ready_to_receive(&Connection::to(here, there))?.ready_to_send(Default::default())?;
        sender.send(wr_id, &[message.slice(..)])?;
        ends.push((sender, receiver));
    }

    let mut count = 0;
    while count < 3 {
        let completion = received.wait()?;
        assert_eq!(completion.status, Status::Success);
        println!("receive {} on queue pair {}", completion.wr_id, completion.qpn.value());
        count += 1;
    }
    let event = loop {
        let event = device.wait_event()?;
        if event.kind == EventKind::SrqLimitReached {
            break event;
        }
    };
    println!("{:?}: fewer than 3 receives are left, the limit is now {}", event.kind, shared.limit());
    Ok(())
}

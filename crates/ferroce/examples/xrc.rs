//! One XRC connection that reaches two shared receive queues, all in this process over `lo`.
//!
//! ```text
//! cargo run --release --example xrc
//! ```

use ferroce::{Access, Connection, Context, Error, QpOptions, SrqOptions, Status};

fn main() -> Result<(), Error> {
    let device = Context::open("fr0")?;
    let domain = device.protection_domain()?;
    let sent = device.completion_queue(16, None)?;
    let buffer = domain.register(vec![0; 4096], Access::LOCAL_WRITE)?;

    // The receiving side: two queues, each with completions of its own, and one target for both.
    let xrc = device.xrc_domain()?;
    let mut queues = Vec::new();
    for index in 0..2 {
        let received = device.completion_queue(16, None)?;
        let queue = xrc.shared_receive_queue(&domain, &received, SrqOptions::default())?;
        queue.post_recv(index as u64, &[buffer.slice(index * 64..(index + 1) * 64)])?;
        queues.push((queue, received));
    }
    let target = xrc.target()?;

    // The sending side.
    let initiator = domain.xrc_initiator(&sent, QpOptions::default())?;
    let (here, there) = (initiator.address(0)?, target.address(0)?);
    target.connect(&Connection::to(there, here), Access::empty())?;
    initiator.connect(&Connection::to(here, there), Default::default())?;
    let message = domain.register(b"to one of two".to_vec(), Access::empty())?;
    for (wr_id, (queue, _)) in queues.iter().enumerate() {
        initiator.send(wr_id as u64, &[message.slice(..)], queue.number())?;
    }

    for (queue, received) in &queues {
        let completion = received.wait()?;
        assert_eq!(completion.status, Status::Success);
        println!(
            "queue {}: {} octets by target {}",
            queue.number().value(),
            completion.len,
            completion.qpn.value()
        );
    }
    Ok(())
}

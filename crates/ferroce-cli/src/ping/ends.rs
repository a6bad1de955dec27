//! The common part of both ends of a ping: the exchange that opens a connection, and the memory of the end
//! that answers.
//!
//! That end has [`INBOX`] octets for messages, and behind them [`LARGE`] octets that its peer writes to and
//! reads. It answers each message with the first octets of this memory: as many as it received if those are
//! [`SHORT`], else [`ANSWER`], with the received immediate data at [`IMM`].

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use ferroce::cm::EndOptions;
use ferroce::{Access, Completion, CompletionQueue, Context, MemoryRegion, QpOptions, RemoteMemory, Status};

/// The private data of a request; it names the version of the exchange.
pub const GREETING: &[u8; 14] = b"ferroce ping 1";
/// Octets of a message.
pub const INBOX: usize = 64;
/// Octets of a message whose time is measured.
pub const SHORT: usize = 8;
/// Offset of the word for atomics, behind the octets that messages and short WRITEs change.
pub const WORD: usize = 2 * INBOX;
/// Offset of the immediate data that was received last, in an answer.
pub const IMM: usize = WORD + size_of::<u64>();
/// Octets of an answer.
pub const ANSWER: usize = IMM + size_of::<u64>();
/// Octets of a WRITE whose bandwidth is measured.
pub const LARGE: usize = 1 << 20;
/// Rights of the peer at this memory.
pub const RIGHTS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// The private data with which an end agrees to a connection: where its memory is.
pub fn agreement(memory: &MemoryRegion<'_>) -> Vec<u8> {
    [&GREETING[..], &memory.remote(0).to_bytes()].concat()
}

/// The memory of the end that agreed; `None` if it is no `ferroce ping --serve` of this version.
pub fn memory_of(agreement: &[u8]) -> Option<RemoteMemory> {
    let (memory, _) = agreement.strip_prefix(GREETING)?.split_first_chunk()?;
    RemoteMemory::from_bytes(memory).ok()
}

/// An end whose completion queues are polled: nobody sleeps while a time is measured.
pub fn options(device: &Context) -> Result<EndOptions, ferroce::Error> {
    Ok(EndOptions::default()
        .queues(QpOptions::default().max_send_wr(8).max_recv_wr(2))
        .domain(device.protection_domain()?)
        .send_queue(device.completion_queue(8, None)?)
        .receive_queue(device.completion_queue(2, None)?))
}

/// The next completion of a queue, which must be there before `deadline` and be a success.
pub fn next(queue: &CompletionQueue, deadline: Instant) -> Result<Completion> {
    let mut found = Vec::with_capacity(1);
    while queue.poll(&mut found, 1)? == 0 {
        ensure!(Instant::now() < deadline, "no completion in time");
    }
    match found.pop() {
        Some(completion) if completion.status == Status::Success => Ok(completion),
        Some(Completion { status, .. }) => bail!("the work request ended with {status:?}"),
        None => bail!("no completion"),
    }
}

#[cfg(test)]
mod tests {
    use ferroce::Rkey;

    use super::*;

    #[test]
    fn an_agreement_names_the_memory() {
        let octets = [&GREETING[..], &[1], &[0, 0, 0, 0, 0, 0, 1, 2], &[0, 0, 3, 4], &[0; 170]].concat();
        let memory = memory_of(&octets).unwrap();
        assert_eq!((memory.addr, memory.rkey), (0x102, Rkey::new(0x304)));
        assert_eq!(memory_of(&octets[..20]), None);
        assert_eq!(memory_of(b"another program"), None);
    }
}

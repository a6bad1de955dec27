//! Group sockets that outlive the broker.
//!
//! Closing a member of a `SO_REUSEPORT` group moves the last one into its place, so a broker's death must
//! close none. All members are therefore in flight in a socket pair: sent once, never received. Every program
//! holds the reading end, and the next broker gets it from any of them and looks at the descriptors by
//! `MSG_PEEK`, which leaves them there.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferroce_ipc::packet::{self, MAX_DESCRIPTORS};
use ferroce_wire::Gid;
use nix::sys::socket::{setsockopt, sockopt::SndBuf};

use crate::sys;
use ferroce_host::fork::Guarded;
use ferroce_host::netdev::Address;

const MAGIC: [u8; 4] = *b"fPrk";
const VERSION: u16 = 1;
const HEADER: usize = 28;
/// More packets than any broker parks: a group of 255 members one by one, on some hundred addresses.
const MOST_PACKETS: usize = 65_536;

/// The broker's two ends.
#[derive(Debug)]
pub struct Parking {
    writer: Guarded<OwnedFd>,
    reader: Guarded<OwnedFd>,
}

/// A parked group socket.
#[derive(Debug)]
pub struct Parked {
    /// Address of its group.
    pub address: Address,
    /// Slot of the socket.
    pub slot: u8,
    /// A duplicate of the descriptor.
    pub fd: OwnedFd,
}

impl Parking {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = packet::pair()?;
        // Descriptors in flight count against the sender's buffer. The kernel may grant less.
        let _ = setsockopt(&writer, SndBuf, &(4 << 20));
        Ok(Self { writer: Guarded::new(writer), reader: Guarded::new(reader) })
    }

    /// The end that programs hold.
    pub fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Parks members of one group, which are slots `first`, `first + 1` and so on.
    ///
    /// # Errors
    /// `WouldBlock` when the pair is full: start a new one.
    pub fn park(&self, address: Address, first: u8, members: &[BorrowedFd<'_>]) -> io::Result<()> {
        for (number, members) in members.chunks(MAX_DESCRIPTORS).enumerate() {
            let first = u16::from(first) + (number * MAX_DESCRIPTORS) as u16;
            let mut header = Vec::with_capacity(HEADER);
            header.extend_from_slice(&MAGIC);
            header.extend_from_slice(&VERSION.to_le_bytes());
            header.extend_from_slice(&first.to_le_bytes());
            header.extend_from_slice(&address.scope_id.to_le_bytes());
            header.extend_from_slice(&Gid::from_ip(address.ip).0);
            packet::send(self.writer.as_fd(), &header, members)?;
        }
        Ok(())
    }
}

/// Hands every parked socket to `each`, which drops those it has no use for. `reader` comes from a program
/// and may be anything: what is not ours ends the search.
pub fn peek(reader: BorrowedFd<'_>, mut each: impl FnMut(Parked)) -> io::Result<()> {
    sys::set_peek_offset(reader, 0)?;
    let mut buffer = Vec::new();
    let found = (0..MOST_PACKETS).try_for_each(|_| match packet::peek(reader, &mut buffer) {
        Ok(Some(packet)) => {
            let (address, first) =
                buffer.get(..packet.length).and_then(parse).ok_or(io::ErrorKind::InvalidData)?;
            for (number, fd) in packet.descriptors.into_iter().enumerate() {
                match u8::try_from(usize::from(first) + number) {
                    Ok(slot @ 0..=254) => each(Parked { address, slot, fd }),
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                }
            }
            Ok(())
        }
        Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(e) => Err(e),
    });
    sys::set_peek_offset(reader, -1)?;
    match found {
        // The end of what is there: the writer is gone, or (in a living broker's pair) it is not.
        Err(e) if matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::WouldBlock) => Ok(()),
        other => other,
    }
}

fn parse(header: &[u8]) -> Option<(Address, u16)> {
    let header: &[u8; HEADER] = header.try_into().ok()?;
    let (magic, rest) = header.split_first_chunk::<4>()?;
    let (version, rest) = rest.split_first_chunk::<2>()?;
    let (first, rest) = rest.split_first_chunk::<2>()?;
    let (scope_id, rest) = rest.split_first_chunk::<4>()?;
    if *magic != MAGIC || u16::from_le_bytes(*version) != VERSION {
        return None;
    }
    let ip: IpAddr = Gid(rest.try_into().ok()?).to_ip();
    Some((Address { ip, scope_id: u32::from_le_bytes(*scope_id) }, u16::from_le_bytes(*first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(reader: BorrowedFd<'_>) -> Vec<(String, u8)> {
        let mut seen = Vec::new();
        peek(reader, |p| seen.push((p.address.to_string(), p.slot))).unwrap();
        seen
    }

    #[test]
    fn parked_descriptors_are_seen_again_and_again_and_outlive_the_writer() {
        let parking = Parking::new().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let v4 = Address::of("127.0.0.1".parse().unwrap(), 1);
        let v6 = Address::of("fe80::1".parse().unwrap(), 7);
        parking.park(v4, 0, &[null.as_fd(), null.as_fd()]).unwrap();
        parking.park(v6, 0, &[null.as_fd()]).unwrap();
        parking.park(v4, 2, &[null.as_fd()]).unwrap();
        let want: Vec<(String, u8)> =
            [("127.0.0.1", 0), ("127.0.0.1", 1), ("fe80::1%7", 0), ("127.0.0.1", 2)]
                .map(|(a, s)| (a.to_owned(), s))
                .into();
        assert_eq!(seen(parking.reader()), want);
        assert_eq!(seen(parking.reader()), want, "peeking takes nothing");
        let reader = parking.reader().try_clone_to_owned().unwrap();
        drop(parking);
        assert_eq!(seen(reader.as_fd()), want, "the broker's death takes nothing");
    }

    #[test]
    fn a_whole_group_of_255_fits() {
        let parking = Parking::new().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let address = Address::of("::1".parse().unwrap(), 1);
        for slot in 0..=254 {
            parking.park(address, slot, &[null.as_fd()]).unwrap();
        }
        assert_eq!(seen(parking.reader()).len(), 255);
        let parking = Parking::new().unwrap();
        parking.park(address, 0, &[null.as_fd(); 255]).unwrap();
        assert_eq!(seen(parking.reader()).len(), 255);
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(peek(null.as_fd(), |_| panic!()).is_err());
        for wrong in [&b""[..], b"fPrk", b"xxxxxxxxxxxxxxxxxxxxxxxxxxxx", &[0; 29]] {
            let (reader, writer) = packet::pair().unwrap();
            packet::send(writer.as_fd(), wrong, &[null.as_fd()]).unwrap();
            let result = peek(reader.as_fd(), |_| panic!());
            assert_eq!(result.is_err(), !wrong.is_empty(), "{wrong:?}");
        }
        let (reader, writer) = packet::pair().unwrap();
        let mut header = b"fPrk".to_vec();
        header.extend_from_slice(&[1, 0, 254, 0, 0, 0, 0, 0]);
        header.extend_from_slice(&[0; 16]);
        packet::send(writer.as_fd(), &header, &[null.as_fd(), null.as_fd()]).unwrap();
        let mut slots = Vec::new();
        assert!(peek(reader.as_fd(), |p| slots.push(p.slot)).is_err(), "slot 255 is never leased");
        assert_eq!(slots, [254]);
    }
}

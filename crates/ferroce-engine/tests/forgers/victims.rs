//! Queue pairs whose PSNs a forger with the peer's address knows. RoCE does not protect them: it can do what their peer could, such as to
//! write where their keys permit. The test is that it can do no more, and that the process and its other queue pairs go on.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce_engine::{Context, Mr, QpState};

use super::common::{End, PATIENCE, Wanted, all_access};
use super::forger::{Sender, TASK, bth};
use super::{BLOCK, FIRST_PSN, WORD};

/// Octets of a forged WRITE.
const LEN: usize = 64;
/// The forger repeats its packets, because a socket that is full drops them. It takes a second.
const ATTEMPTS: u32 = 100;

/// The packet that the forger sends after a WRITE that the victim's own key permits.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// With the key of another domain of the process.
    WriteForeign,
    ReadForeign,
    AddForeign,
    /// With the victim's own key, to the last half and beyond the end of its region.
    WriteBeyond,
}

pub const ATTACKS: usize = 4;

impl Attack {
    const ALL: [Self; ATTACKS] = [Self::WriteForeign, Self::ReadForeign, Self::AddForeign, Self::WriteBeyond];

    /// The packet, to follow the first.
    fn packet(self, victim: [u64; 3], foreign: [u64; 2]) -> Vec<u8> {
        let [qpn, addr, rkey] = victim;
        let head = |opcode| bth(opcode, qpn as u32, FIRST_PSN + 1, true);
        let reth = |opcode, addr, rkey| [head(opcode), reth(addr, rkey)].concat();
        match self {
            Self::WriteForeign => [reth(0x0a, foreign[0], foreign[1]), vec![0xee; LEN]].concat(),
            Self::ReadForeign => reth(0x0c, foreign[0], foreign[1]),
            Self::AddForeign => {
                let place = (foreign[0] + WORD as u64).to_be_bytes();
                [&head(0x14)[..], &place, &(foreign[1] as u32).to_be_bytes(), &[1; 16]].concat()
            }
            Self::WriteBeyond => {
                [reth(0x0a, addr + (BLOCK - LEN / 2) as u64, rkey), vec![0xee; LEN]].concat()
            }
        }
    }
}

/// A RETH of [`LEN`] octets.
fn reth(addr: u64, rkey: u64) -> Vec<u8> {
    [&addr.to_be_bytes()[..], &(rkey as u32).to_be_bytes(), &(LEN as u32).to_be_bytes()].concat()
}

/// A queue pair that the forger attacks, or the one at the other end of its connection. Its key is of the first block of its memory.
pub struct Victim {
    pub end: End,
    mr: Arc<Mr>,
}

impl Victim {
    /// As many as there are attacks, each in a domain of its own.
    pub fn all(context: &Arc<Context>) -> Vec<Self> {
        let new = |_| {
            let wanted = Wanted { memory: 2 * BLOCK, ..Wanted::default() };
            let end = End::of(Arc::clone(context), wanted);
            let addr = end.memory.addr();
            let mr = end.pd.reg_mr(addr, BLOCK, addr, all_access()).unwrap();
            Self { end, mr }
        };
        (0..ATTACKS).map(new).collect()
    }

    /// The numbers that a forger knows: queue pair, address, key.
    pub fn secrets(&self) -> [u64; 3] {
        [self.end.qp.qpn().value().into(), self.end.memory.addr(), self.mr.rkey().value().into()]
    }

    /// The end of the one that was attacked: the first packet did what its key permits, and the second nothing but end the queue pair.
    pub fn check(&self, number: usize) {
        let (attack, start) = (Attack::ALL[number], Instant::now());
        while self.end.qp.state() != QpState::Error {
            assert!(start.elapsed() < PATIENCE, "{attack:?} did not end its queue pair");
            std::thread::sleep(Duration::from_millis(1));
        }
        for at in 0..2 * BLOCK {
            let expected = if at < LEN { 0xee } else { 0 };
            assert_eq!(self.end.memory.get(at), expected, "{attack:?}, octet {at}");
        }
    }
}

/// The words of the forger's task: source address and port, the foreign region, and each victim.
pub fn task(source: Ipv4Addr, port: u16, foreign: [u64; 2], victims: &[u64]) -> String {
    let numbers = [&foreign[..], victims].concat();
    numbers.iter().fold(format!("{source} {port}"), |words, number| format!("{words} {number}"))
}

/// The forger.
pub fn attack() {
    let task = std::env::var(TASK).unwrap();
    let words: Vec<&str> = task.split(' ').collect();
    let numbers: Vec<u64> = words[2..].iter().map(|word| word.parse().unwrap()).collect();
    let (&foreign, victims) = numbers.split_first_chunk::<2>().unwrap();
    let sender = Sender::new(words[0], words[1]);
    for _ in 0..ATTEMPTS {
        for (&victim, attack) in victims.as_chunks::<3>().0.iter().zip(Attack::ALL) {
            let [qpn, addr, rkey] = victim;
            let permitted =
                [bth(0x0a, qpn as u32, FIRST_PSN, true), reth(addr, rkey), vec![0xee; LEN]].concat();
            sender.send(&permitted, true);
            sender.send(&attack.packet(victim, foreign), true);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

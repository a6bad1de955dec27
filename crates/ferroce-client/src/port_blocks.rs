//! Ports that this process gives out itself: blocks of ephemeral ones, for connections. The broker is asked
//! for a block in the place of one question for each connection.
//!
//! To others a block is in use, so a process gets one only after it has taken some ports one by one, what is
//! not used any more goes back, and the broker bounds them ([`ferroce_ipc::CmRequest::PortBlock`]). Which
//! addresses a port of a block has only this process knows: who binds that port by its number makes it tell
//! the broker first, whose rules then decide.

use std::collections::BTreeMap;

use ferroce_ipc::{CmBind, PORT_BLOCK};
use ferroce_wire::cm::PortSpace;

/// This number of ports is requested one by one before a whole block is.
const ONE_BY_ONE: u32 = 4;
/// After a refusal this further number is requested one by one.
const AFTER_REFUSAL: u32 = 256;

/// The blocks of this process.
#[derive(Debug, Default)]
pub struct PortBlocks {
    /// Ports given out, a bit each, by port space and first port.
    blocks: BTreeMap<(PortSpace, u16), u64>,
    /// The users of the ports given out.
    holders: BTreeMap<(PortSpace, u16), Holders>,
    /// Ports since the last block, or refusal, that were not of a block.
    alone: u32,
    /// How many of them make a block worth asking for.
    enough: Option<u32>,
}

#[derive(Debug)]
struct Holders {
    count: usize,
    /// The bind that the broker does not know yet.
    unsaid: Option<CmBind>,
}

/// The source of a port.
#[derive(Debug, PartialEq, Eq)]
pub enum PortChoice {
    /// This one, of a block.
    Given(u16),
    /// The broker: a block, if it has one.
    AskForBlock,
    /// The broker.
    AskForPort,
}

const fn place(port: u16) -> (u16, u64) {
    let within = port % PORT_BLOCK;
    (port - within, 1 << within)
}

impl PortBlocks {
    /// A port for `wanted`, if a block has one.
    pub fn choose(&mut self, wanted: &CmBind) -> PortChoice {
        let free =
            |((space, _), used): &(&(PortSpace, u16), &mut u64)| *space == wanted.space && **used != u64::MAX;
        if let Some(((_, first), used)) = self.blocks.iter_mut().find(free) {
            let within = used.trailing_ones();
            *used |= 1 << within;
            let port = first + within as u16;
            let unsaid = Some(CmBind { port, ..*wanted });
            self.holders.insert((wanted.space, port), Holders { count: 1, unsaid });
            return PortChoice::Given(port);
        }
        self.alone += 1;
        match self.alone > self.enough.unwrap_or(ONE_BY_ONE) {
            true => PortChoice::AskForBlock,
            false => PortChoice::AskForPort,
        }
    }

    /// The broker gave a block.
    pub fn add(&mut self, space: PortSpace, first: u16) {
        self.blocks.entry((space, first)).or_default();
        // This process makes connections: the next block at once.
        (self.alone, self.enough) = (0, Some(0));
    }

    /// The broker gave no block.
    pub fn refused(&mut self) {
        (self.alone, self.enough) = (0, Some(AFTER_REFUSAL));
    }

    /// A port is wanted by its number. If it is of a block it counts as given out, once more, until
    /// [`Self::release`]; and what the broker must know before it is asked.
    pub fn claim(&mut self, space: PortSpace, port: u16) -> (bool, Option<CmBind>) {
        let (first, bit) = place(port);
        let Some(used) = self.blocks.get_mut(&(space, first)) else { return (false, None) };
        *used |= bit;
        let holders = self.holders.entry((space, port)).or_insert(Holders { count: 0, unsaid: None });
        holders.count += 1;
        (true, holders.unsaid)
    }

    /// The bind that the broker must learn before any other message about the port.
    pub fn unsaid(&self, space: PortSpace, port: u16) -> Option<CmBind> {
        self.holders.get(&(space, port))?.unsaid
    }

    /// The broker knows the bind now.
    pub fn said(&mut self, space: PortSpace, port: u16) {
        if let Some(holders) = self.holders.get_mut(&(space, port)) {
            holders.unsaid = None;
        }
    }

    /// A user of a block's port gives it back. Returns a block that goes back to the broker.
    pub fn release(&mut self, space: PortSpace, port: u16) -> Option<u16> {
        let holders = self.holders.get_mut(&(space, port))?;
        holders.count -= 1;
        if holders.count > 0 {
            return None;
        }
        self.holders.remove(&(space, port));
        let (first, bit) = place(port);
        let used = self.blocks.get_mut(&(space, first))?;
        *used &= !bit;
        if *used != 0 {
            return None;
        }
        // An unused block stays for the next connection.
        let another = self.blocks.iter().any(|(at, used)| at.0 == space && at.1 != first && *used == 0);
        another.then(|| {
            self.blocks.remove(&(space, first));
            first
        })
    }

    /// All is lost.
    pub fn clear(&mut self) {
        self.blocks.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: PortSpace = PortSpace::Tcp;

    fn want(handle: u64) -> CmBind {
        let address = [127, 0, 0, 1].into();
        CmBind { handle, space: TCP, port: 0, address, interface: 0, reuse: false, v6_only: false }
    }

    fn with_block(first: u16) -> PortBlocks {
        let mut blocks = PortBlocks::default();
        blocks.add(TCP, first);
        blocks
    }

    #[test]
    fn a_block_is_asked_for_by_who_needs_one() {
        let mut blocks = PortBlocks::default();
        for _ in 0..ONE_BY_ONE {
            assert_eq!(blocks.choose(&want(1)), PortChoice::AskForPort);
        }
        assert_eq!(blocks.choose(&want(1)), PortChoice::AskForBlock);
        blocks.refused();
        for _ in 0..AFTER_REFUSAL {
            assert_eq!(blocks.choose(&want(1)), PortChoice::AskForPort);
        }
        assert_eq!(blocks.choose(&want(1)), PortChoice::AskForBlock);
        blocks.add(TCP, 40_000);
        for k in 0..PORT_BLOCK {
            assert_eq!(blocks.choose(&want(1)), PortChoice::Given(40_000 + k));
        }
        assert_eq!(blocks.choose(&want(1)), PortChoice::AskForBlock);
        let udp = CmBind { space: PortSpace::Udp, ..want(1) };
        assert_eq!(blocks.choose(&udp), PortChoice::AskForBlock, "another space");
    }

    #[test]
    fn an_unused_block_stays_and_others_go_back() {
        let mut blocks = with_block(40_000);
        blocks.add(TCP, 40_064);
        for k in 0..PORT_BLOCK + 1 {
            assert_eq!(blocks.choose(&want(1)), PortChoice::Given(40_000 + k));
        }
        for k in 0..PORT_BLOCK {
            assert_eq!(blocks.release(TCP, 40_000 + k), None);
        }
        assert_eq!(blocks.release(TCP, 40_064), Some(40_064));
        assert_eq!(blocks.release(TCP, 40_064), None, "it is nobody's");
        assert_eq!(blocks.choose(&want(1)), PortChoice::Given(40_000));
    }

    #[test]
    fn the_broker_hears_of_a_port_that_is_wanted_by_its_number() {
        let mut blocks = with_block(40_000);
        assert_eq!(blocks.choose(&want(7)), PortChoice::Given(40_000));
        let unsaid = CmBind { port: 40_000, ..want(7) };
        assert_eq!(blocks.claim(TCP, 40_000), (true, Some(unsaid)));
        assert_eq!(blocks.unsaid(TCP, 40_000), Some(unsaid));
        blocks.said(TCP, 40_000);
        assert_eq!(blocks.claim(TCP, 40_000), (true, None));
        assert_eq!(blocks.claim(TCP, 40_001), (true, None), "nobody has it");
        assert_eq!(blocks.claim(TCP, 40_064), (false, None));
        assert_eq!(blocks.choose(&want(8)), PortChoice::Given(40_002));
        for _ in 0..2 {
            assert_eq!(blocks.release(TCP, 40_000), None);
            assert_eq!(blocks.choose(&want(9)), PortChoice::Given(40_003), "somebody has it still");
            blocks.release(TCP, 40_003);
        }
        blocks.release(TCP, 40_000);
        assert_eq!(blocks.choose(&want(9)), PortChoice::Given(40_000));
    }
}

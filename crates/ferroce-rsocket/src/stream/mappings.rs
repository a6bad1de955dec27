//! Memory that a program opens to its peer.

use std::sync::Arc;

use crate::message::{Grant, Mapping};

use super::{Role, RsocketError, Stream, StreamState};
use ferroce_engine::{Access, Mr};

/// Registered as long as it is in the list.
pub(super) struct Mapped {
    mr: Arc<Mr>,
    addr: u64,
    len: usize,
    /// Index of the mapping in the peer's table; `None` if the peer may not write to the memory.
    index: Option<u16>,
    known_to_peer: bool,
    offset: u64,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.mr.end();
    }
}

impl Stream {
    /// Opens memory to the peer under `offset`, or under its own address if that is `None`, and returns the
    /// offset. Without `write` the memory is only registered. The next send announces it to the peer.
    ///
    /// # Errors
    ///
    /// [`RsocketError::NotConnected`]; [`RsocketError::Full`] if the peer's table is full; errors of
    /// registrations.
    #[doc(alias = "riomap")]
    pub fn map(&self, addr: u64, len: usize, write: bool, offset: Option<u64>) -> Result<u64, RsocketError> {
        let mut state = self.state.lock();
        if !matches!(state.role, Role::Connected) {
            return Err(RsocketError::NotConnected);
        }
        let StreamState { link: Some(link), mapped, .. } = &mut *state else {
            return Err(RsocketError::NotConnected);
        };
        let index = if write {
            let places = link.protocol.as_ref().map_or(0, |protocol| protocol.peer_mappings());
            let free = (0..places).find(|place| mapped.iter().all(|known| known.index != Some(*place)));
            Some(free.ok_or(RsocketError::Full)?)
        } else {
            None
        };
        u32::try_from(len).map_err(|_| RsocketError::Invalid)?;
        let access = if write { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        let mr = link.device.pd.reg_mr(addr, len, addr, access)?;
        let offset = offset.unwrap_or(addr);
        mapped.push(Mapped { mr, addr, len, index, known_to_peer: false, offset });
        Ok(offset)
    }

    /// Closes opened memory: later WRITEs of the peer to it fail, and end the connection.
    ///
    /// # Errors
    ///
    /// [`RsocketError::Invalid`] if it is not open.
    #[doc(alias = "riounmap")]
    pub fn unmap(&self, addr: u64, len: usize) -> Result<(), RsocketError> {
        let mut state = self.state.lock();
        let index = state.mapped.iter().position(|known| (known.addr, known.len) == (addr, len));
        let ended = state.mapped.remove(index.ok_or(RsocketError::Invalid)?);
        drop(state);
        drop(ended);
        Ok(())
    }
}

impl StreamState {
    /// Announces new mappings to the peer. Returns whether the peer now has all.
    pub(super) fn announce_mappings(&mut self) -> bool {
        let Some(link) = &mut self.link else { return true };
        for known in self.mapped.iter_mut().filter(|known| !known.known_to_peer) {
            if let Some(index) = known.index {
                let memory = Grant { addr: known.addr, rkey: known.mr.rkey(), length: known.len as u32 };
                let mapping = Mapping { offset: known.offset, memory };
                let write =
                    link.protocol.as_mut().and_then(|protocol| protocol.announce_mapping(index, &mapping));
                let Some(write) = write else { return false };
                link.post(&write);
            }
            known.known_to_peer = true;
        }
        true
    }
}

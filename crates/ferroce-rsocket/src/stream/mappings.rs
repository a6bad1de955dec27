//! Memory that a program opens to its peer.

use std::sync::Arc;

use crate::message::{Grant, Mapping};

use super::{Role, RsocketError, State, Stream};
use ferroce_engine::{Access, Mr};

/// Memory that was opened. It stays registered as long as it is in the list.
pub(super) struct Mapped {
    mr: Arc<Mr>,
    addr: u64,
    len: usize,
    /// Its place in the peer's table, unless it is open to nobody; and whether the peer was told.
    index: Option<u16>,
    told: bool,
    offset: u64,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.mr.end();
    }
}

impl Stream {
    /// Opens memory to the peer, under `offset` or, if that is `None`, under its own address; which is returned. With
    /// `write` unset it is only registered. The peer is told with what is sent next.
    ///
    /// # Errors
    ///
    /// [`RsocketError::NotConnected`]; [`RsocketError::Full`] if the peer has no place left; those of registrations.
    #[doc(alias = "riomap")]
    pub fn map(&self, addr: u64, len: usize, write: bool, offset: Option<u64>) -> Result<u64, RsocketError> {
        let mut state = self.state.lock();
        if !matches!(state.role, Role::Connected) {
            return Err(RsocketError::NotConnected);
        }
        let State { link: Some(link), mapped, .. } = &mut *state else {
            return Err(RsocketError::NotConnected);
        };
        let index = if write {
            let places = link.books.as_ref().map_or(0, |books| books.peer_mappings());
            let free = (0..places).find(|place| mapped.iter().all(|known| known.index != Some(*place)));
            Some(free.ok_or(RsocketError::Full)?)
        } else {
            None
        };
        u32::try_from(len).map_err(|_| RsocketError::Invalid)?;
        let access = if write { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        let mr = link.home.pd.reg_mr(addr, len, addr, access)?;
        let offset = offset.unwrap_or(addr);
        mapped.push(Mapped { mr, addr, len, index, told: false, offset });
        Ok(offset)
    }

    /// Closes memory that was opened: WRITEs of the peer to it fail, and the connection with them.
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

impl State {
    /// Tells the peer of memory that it does not know. Whether it now knows all.
    pub(super) fn tell_mappings(&mut self) -> bool {
        let Some(link) = &mut self.link else { return true };
        for known in self.mapped.iter_mut().filter(|known| !known.told) {
            if let Some(index) = known.index {
                let memory = Grant { addr: known.addr, rkey: known.mr.rkey(), length: known.len as u32 };
                let mapping = Mapping { offset: known.offset, memory };
                let write = link.books.as_mut().and_then(|books| books.tell_mapping(index, &mapping));
                let Some(write) = write else { return false };
                link.post(&write);
            }
            known.told = true;
        }
        true
    }
}

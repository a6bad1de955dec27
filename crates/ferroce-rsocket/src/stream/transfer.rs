//! Sending and receiving.

use crate::protocol::{Phase, Stream as Books};

use super::{Guard, Role, RsocketError, State, Stream};
use crate::link::Pieces;
use crate::waker::Patience;

impl Stream {
    /// Waits for the connection if it is being made.
    fn enter(&self, patience: Patience) -> Result<Guard<'_>, RsocketError> {
        let settled = |state: &State| !matches!(state.role, Role::Connecting { .. });
        let state = self.wait(self.state.lock(), patience, settled)?;
        if matches!(state.role, Role::Connected) { Ok(state) } else { Err(RsocketError::NotConnected) }
    }

    /// Receives into several places behind their first `before` octets, which were received before: as much as is there, at
    /// least one octet unless the peer is done. How many are there now; with nothing before and nothing new, 0. With `peek`
    /// the octets can be read again.
    ///
    /// # Errors
    ///
    /// [`RsocketError::WouldBlock`] or [`RsocketError::Suspended`] if it would have to wait; [`RsocketError::Failed`], once, if
    /// the connection broke and nothing was received before; [`RsocketError::NotConnected`].
    #[doc(alias = "rrecv")]
    pub fn receive(
        &self,
        out: &mut [&mut [u8]],
        before: usize,
        nonblocking: bool,
        peek: bool,
    ) -> Result<usize, RsocketError> {
        let patience = Patience::unless(nonblocking);
        let room: usize = out.iter().map(|piece| piece.len()).sum();
        let mut state = self.enter(patience)?;
        if before == room {
            return Ok(before);
        }
        state = self.wait(state, patience, State::has_input)?;
        let Some(link) = &mut state.link else { return Err(RsocketError::Closed) };
        let count =
            if before == 0 { link.receive(out, peek) } else { link.receive(&mut behind(out, before), peek) };
        let broken = matches!(link.books.as_ref().map(Books::phase), Some(Phase::Failed(_)));
        match state.failure.take_if(|_| before + count == 0 && broken) {
            Some(failure) => Err(failure.into()),
            None => Ok(before + count),
        }
    }

    /// Sends all of `pieces` in order behind what `sent` says was sent before, and counts there; if it must not wait, as much
    /// as can be sent at once, at least one octet. How many were sent in all.
    ///
    /// # Errors
    ///
    /// [`RsocketError::Suspended`] if it has to wait, perhaps after it sent something; unless something was sent,
    /// [`RsocketError::WouldBlock`] if it must not wait, [`RsocketError::Reset`] if the peer went,
    /// [`RsocketError::ShutDown`] and [`RsocketError::NotConnected`].
    #[doc(alias = "rsend")]
    pub fn send(
        &self,
        pieces: &[&[u8]],
        sent: &mut Progress,
        nonblocking: bool,
    ) -> Result<usize, RsocketError> {
        self.send_by(pieces, sent, nonblocking, |state, pieces, piece, _| {
            Ok(state.link.as_mut().map_or(0, |link| link.send(pieces, piece)))
        })
    }

    /// As [`Self::send`], to what the peer mapped at `offset`: the peer is not told. Less than all if less is mapped.
    ///
    /// # Errors
    ///
    /// As there; [`RsocketError::NoMapping`] if nothing is mapped there.
    #[doc(alias = "riowrite")]
    pub fn send_direct(
        &self,
        octets: &[u8],
        sent: &mut Progress,
        offset: u64,
        nonblocking: bool,
    ) -> Result<usize, RsocketError> {
        // What the peer mapped stands in completions that nobody may have taken yet.
        self.ready();
        self.send_by(&[octets], sent, nonblocking, |state, pieces, piece, before| {
            let Some(link) = &mut state.link else { return Ok(0) };
            Ok(link.send_direct(pieces, piece, offset.wrapping_add(before as u64))?)
        })
    }

    fn send_by(
        &self,
        pieces: &[&[u8]],
        sent: &mut Progress,
        nonblocking: bool,
        mut step: impl FnMut(&mut State, &mut Pieces<'_>, &mut u32, usize) -> Result<usize, RsocketError>,
    ) -> Result<usize, RsocketError> {
        let patience = Patience::unless(nonblocking);
        let mut pieces = Pieces::new(pieces);
        let all = pieces.left();
        pieces.skip(sent.octets);
        let mut state = self.enter(patience)?;
        loop {
            let told = state.tell_mappings();
            let stepped =
                if told { step(&mut state, &mut pieces, &mut sent.piece, sent.octets) } else { Ok(0) };
            sent.octets = all - pieces.left();
            match stepped {
                Err(error) if sent.octets == 0 => return Err(error),
                Err(_) => return Ok(sent.octets),
                Ok(_) if pieces.left() == 0 && told => return Ok(sent.octets),
                Ok(_) => {}
            }
            if let Some(books) = state.books().filter(|books| !books.is_writable()) {
                return match books.phase() {
                    _ if sent.octets > 0 => Ok(sent.octets),
                    Phase::Connected => Err(RsocketError::ShutDown),
                    Phase::Disconnected | Phase::Failed(_) => Err(RsocketError::Reset),
                };
            }
            state = match self.wait(state, patience, State::has_room) {
                Ok(state) => state,
                Err(suspended @ RsocketError::Suspended(_)) => return Err(suspended),
                Err(_) if sent.octets > 0 => return Ok(sent.octets),
                Err(error) => return Err(error),
            };
        }
    }
}

/// How far a call that sends has come, over its sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    octets: usize,
    /// The size of the next WRITE.
    piece: u32,
}

impl Progress {
    /// Nothing was sent.
    pub const NONE: Self = Self { octets: 0, piece: Books::FIRST_PIECE };

    /// Octets that were sent.
    pub fn octets(&self) -> usize {
        self.octets
    }
}

/// What is behind the first `done` octets of several places.
fn behind<'a>(out: &'a mut [&mut [u8]], mut done: usize) -> Vec<&'a mut [u8]> {
    let mut rest = Vec::with_capacity(out.len());
    for piece in out {
        let skip = done.min(piece.len());
        done -= skip;
        rest.push(&mut piece[skip..]);
    }
    rest
}

//! Sending and receiving.

use ferroce_proto::rsocket::{Phase, Stream as Books};

use super::{Guard, Role, RsocketError, State, Stream};
use crate::rsocket::link::Pieces;

impl Stream {
    /// Waits for the connection if it is being made.
    fn enter(&self, nonblocking: bool) -> Result<Guard<'_>, RsocketError> {
        let settled = |state: &State| !matches!(state.role, Role::Connecting { .. });
        let state = self.wait(self.state.lock(), nonblocking, settled)?;
        if matches!(state.role, Role::Connected) { Ok(state) } else { Err(RsocketError::NotConnected) }
    }

    /// Receives into `out`, as much as is there, at least one octet unless the peer is done: then none. With `peek` the
    /// octets can be read again; with `all` it waits until `out` is full.
    ///
    /// # Errors
    ///
    /// [`RsocketError::WouldBlock`] if it must not wait; [`RsocketError::Failed`], once, if the connection broke;
    /// [`RsocketError::NotConnected`].
    #[doc(alias = "rrecv")]
    pub fn receive(
        &self,
        out: &mut [u8],
        nonblocking: bool,
        peek: bool,
        all: bool,
    ) -> Result<usize, RsocketError> {
        self.receive_pieces(&mut [out], nonblocking, peek, all)
    }

    /// As [`Self::receive`], into several places.
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "rreadv")]
    pub fn receive_pieces(
        &self,
        out: &mut [&mut [u8]],
        nonblocking: bool,
        peek: bool,
        all: bool,
    ) -> Result<usize, RsocketError> {
        let room: usize = out.iter().map(|piece| piece.len()).sum();
        let mut state = self.enter(nonblocking)?;
        let mut done = 0;
        while done < room {
            state = match self.wait(state, nonblocking, State::has_input) {
                Ok(state) => state,
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            };
            let Some(link) = &mut state.link else { return Err(RsocketError::Closed) };
            let count =
                if done == 0 { link.receive(out, peek) } else { link.receive(&mut behind(out, done), peek) };
            if count == 0 {
                let broken = matches!(link.books.as_ref().map(Books::phase), Some(Phase::Failed(_)));
                return match state.failure.take().filter(|_| done == 0 && broken) {
                    Some(failure) => Err(failure.into()),
                    None => Ok(done),
                };
            }
            done += count;
            if peek || !all {
                break;
            }
        }
        Ok(done)
    }

    /// Sends all of `pieces` in order; if it must not wait, as much as can be sent at once, at least one octet.
    ///
    /// # Errors
    ///
    /// [`RsocketError::WouldBlock`] if it must not wait; [`RsocketError::Reset`] if the peer went;
    /// [`RsocketError::ShutDown`]; [`RsocketError::NotConnected`].
    #[doc(alias = "rsend")]
    pub fn send(&self, pieces: &[&[u8]], nonblocking: bool) -> Result<usize, RsocketError> {
        self.send_by(pieces, nonblocking, |state, pieces, piece| {
            Ok(state.link.as_mut().map_or(0, |link| link.send(pieces, piece)))
        })
    }

    /// As [`Self::send`], to what the peer mapped at `offset`: the peer is not told. Less than all if less is mapped.
    ///
    /// # Errors
    ///
    /// As there; [`RsocketError::NoMapping`] if nothing is mapped there.
    #[doc(alias = "riowrite")]
    pub fn send_direct(&self, octets: &[u8], offset: u64, nonblocking: bool) -> Result<usize, RsocketError> {
        // What the peer mapped stands in completions that nobody may have taken yet.
        self.ready();
        let mut at = offset;
        self.send_by(&[octets], nonblocking, |state, pieces, piece| {
            let Some(link) = &mut state.link else { return Ok(0) };
            let sent = link.send_direct(pieces, piece, at)?;
            at = at.wrapping_add(sent as u64);
            Ok(sent)
        })
    }

    fn send_by(
        &self,
        pieces: &[&[u8]],
        nonblocking: bool,
        mut step: impl FnMut(&mut State, &mut Pieces<'_>, &mut u32) -> Result<usize, RsocketError>,
    ) -> Result<usize, RsocketError> {
        let mut pieces = Pieces::new(pieces);
        let all = pieces.left();
        let mut state = self.enter(nonblocking)?;
        let mut piece = Books::FIRST_PIECE;
        loop {
            let told = state.tell_mappings();
            let stepped = if told { step(&mut state, &mut pieces, &mut piece) } else { Ok(0) };
            let sent = all - pieces.left();
            match stepped {
                Err(error) if sent == 0 => return Err(error),
                Err(_) => return Ok(sent),
                Ok(_) if pieces.left() == 0 && told => return Ok(sent),
                Ok(_) => {}
            }
            if let Some(books) = state.books().filter(|books| !books.is_writable()) {
                return match books.phase() {
                    _ if sent > 0 => Ok(sent),
                    Phase::Connected => Err(RsocketError::ShutDown),
                    Phase::Disconnected | Phase::Failed(_) => Err(RsocketError::Reset),
                };
            }
            state = match self.wait(state, nonblocking, State::has_room) {
                Ok(state) => state,
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
            };
        }
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

//! Sending and receiving.

use crate::protocol::{Phase, StreamProtocol};

use super::{Guard, Role, RsocketError, Stream, StreamState};
use crate::link::{Link, Pieces};
use crate::waker::Blocking;

impl Stream {
    /// Waits for the connection if the stream is connecting. If the device is gone, the state says so
    /// afterwards.
    fn enter(&self, blocking: Blocking) -> Result<Guard<'_>, RsocketError> {
        let finished = |state: &StreamState| !matches!(state.role, Role::Connecting(_));
        let mut state = self.wait(self.state.lock(), blocking, finished)?;
        if state.link.as_ref().is_some_and(Link::is_dead) {
            state.pump();
        }
        if matches!(state.role, Role::Connected) { Ok(state) } else { Err(RsocketError::NotConnected) }
    }

    /// Receives available octets into `out` behind the first `before`, which an earlier call received; waits
    /// for at least one unless the peer has shut down. Returns the total, which is 0 at the end of the
    /// stream. With `peek` the octets stay readable.
    ///
    /// # Errors
    ///
    /// [`RsocketError::WouldBlock`] or [`RsocketError::Suspended`] if it would have to wait;
    /// [`RsocketError::Failed`], once, if the connection broke and `before` is 0;
    /// [`RsocketError::NotConnected`].
    #[doc(alias = "rrecv")]
    pub fn receive(
        &self,
        out: &mut [&mut [u8]],
        before: usize,
        nonblocking: bool,
        peek: bool,
    ) -> Result<usize, RsocketError> {
        let blocking = Blocking::unless(nonblocking);
        let room: usize = out.iter().map(|piece| piece.len()).sum();
        let mut state = self.enter(blocking)?;
        if before == room {
            return Ok(before);
        }
        state = self.wait(state, blocking, StreamState::has_input)?;
        let Some(link) = &mut state.link else { return Err(RsocketError::Closed) };
        let count =
            if before == 0 { link.receive(out, peek) } else { link.receive(&mut behind(out, before), peek) };
        let broken = matches!(link.protocol.as_ref().map(StreamProtocol::phase), Some(Phase::Failed(_)));
        match state.failure.take_if(|_| before + count == 0 && broken) {
            Some(failure) => Err(failure.into()),
            None => Ok(before + count),
        }
    }

    /// Sends all of `pieces` behind the octets that `sent` counts, and advances `sent`; with `nonblocking` it
    /// sends the part that fits at once, at least one octet. Returns the total.
    ///
    /// # Errors
    ///
    /// [`RsocketError::Suspended`] if it has to wait, perhaps after a part was sent. If nothing was sent:
    /// [`RsocketError::WouldBlock`] with `nonblocking`, [`RsocketError::Reset`] after the peer disconnected,
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

    /// As [`Self::send`], to the memory that the peer mapped at `offset`, without a message. Sends less if
    /// less is mapped.
    ///
    /// # Errors
    ///
    /// See [`Self::send`]; [`RsocketError::NoMapping`] if the peer mapped no memory there.
    #[doc(alias = "riowrite")]
    pub fn send_direct(
        &self,
        octets: &[u8],
        sent: &mut Progress,
        offset: u64,
        nonblocking: bool,
    ) -> Result<usize, RsocketError> {
        // The peer's mapping may be in a completion that was not polled yet.
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
        mut step: impl FnMut(&mut StreamState, &mut Pieces<'_>, &mut u32, usize) -> Result<usize, RsocketError>,
    ) -> Result<usize, RsocketError> {
        let blocking = Blocking::unless(nonblocking);
        let mut pieces = Pieces::new(pieces);
        let all = pieces.left();
        pieces.skip(sent.octets);
        let mut state = self.enter(blocking)?;
        loop {
            let complete = state.announce_mappings();
            let stepped =
                if complete { step(&mut state, &mut pieces, &mut sent.piece, sent.octets) } else { Ok(0) };
            sent.octets = all - pieces.left();
            match stepped {
                Err(error) if sent.octets == 0 => return Err(error),
                Err(_) => return Ok(sent.octets),
                Ok(_) if pieces.left() == 0 && complete => return Ok(sent.octets),
                Ok(_) => {}
            }
            if let Some(protocol) = state.protocol().filter(|protocol| !protocol.is_writable()) {
                return match protocol.phase() {
                    _ if sent.octets > 0 => Ok(sent.octets),
                    Phase::Connected => Err(RsocketError::ShutDown),
                    Phase::Disconnected | Phase::Failed(_) => Err(RsocketError::Reset),
                };
            }
            state = match self.wait(state, blocking, StreamState::has_room) {
                Ok(state) => state,
                Err(suspended @ RsocketError::Suspended(_)) => return Err(suspended),
                Err(_) if sent.octets > 0 => return Ok(sent.octets),
                Err(error) => return Err(error),
            };
        }
    }
}

/// Progress of a send call across its sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    octets: usize,
    /// The size of the next WRITE.
    piece: u32,
}

impl Progress {
    pub const NONE: Self = Self { octets: 0, piece: StreamProtocol::FIRST_PIECE };

    pub fn octets(&self) -> usize {
        self.octets
    }
}

/// Returns the buffers behind their first `done` octets.
fn behind<'a>(out: &'a mut [&mut [u8]], mut done: usize) -> Vec<&'a mut [u8]> {
    let mut rest = Vec::with_capacity(out.len());
    for piece in out {
        let skip = done.min(piece.len());
        done -= skip;
        rest.push(&mut piece[skip..]);
    }
    rest
}

//! A broker in a thread of a program, for programs that find no `ferroced`.

use std::sync::Mutex;

use ferroce_host::PerProcess;
use ferroce_host::process::is_privileged_program;
use ferroce_ipc::EmbedError;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use tracing::{error, info, warn};

use crate::server::{Server, ServerError, ServerOptions, Stopper};

static EMBEDDED: PerProcess<Mutex<Option<Embedded>>> = PerProcess::new();

struct Embedded {
    thread: std::thread::JoinHandle<()>,
    _stopper: Stopper,
}

/// Runs a broker in a thread of this process, for as long as the process lives. Does nothing where one runs
/// already.
///
/// # Errors
/// As [`Server::bind`]; that a broker runs already is none. [`EmbedError::Privileged`] in a program with more
/// rights than its user.
pub fn start(name: &str) -> Result<(), EmbedError> {
    if is_privileged_program() {
        return Err(EmbedError::Privileged);
    }
    let mut embedded = EMBEDDED.get().lock().unwrap_or_else(|e| e.into_inner());
    if embedded.as_ref().is_some_and(|e| !e.thread.is_finished()) {
        return Ok(());
    }
    let server = match Server::bind(&ServerOptions {
        name: name.to_owned(),
        idle: None,
        access: None,
        embedded: true,
    }) {
        Ok(server) => server,
        Err(ServerError::Running(_)) => return Ok(()),
        Err(taken @ ServerError::Taken { .. }) => return Err(EmbedError::Taken(taken.into())),
        Err(e) => return Err(EmbedError::Failed(e.into())),
    };
    let stopper = server.stopper();
    let io =
        |source| EmbedError::Failed(ServerError::Io { action: "start the broker's thread", source }.into());
    // The program's signals are for the program's threads.
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))
        .map_err(|e| io(e.into()))?;
    let thread = std::thread::Builder::new().name("ferroce-broker".to_owned()).spawn(move || {
        let run = std::panic::AssertUnwindSafe(|| server.run());
        match std::panic::catch_unwind(run) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => error!("the broker of this process failed: {e}"),
            Err(_) => error!("the broker of this process panicked"),
        }
    });
    if let Err(e) = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None) {
        warn!("the signal mask could not be restored: {e}");
    }
    info!("the broker runs in this process");
    *embedded = Some(Embedded { thread: thread.map_err(io)?, _stopper: stopper });
    Ok(())
}

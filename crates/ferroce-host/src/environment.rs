//! Environment variables. The stage `arrows` checks that no other file of the product reads them.
//!
//! A program with more rights than the user who started it (set-user-ID, file capabilities) follows none of
//! them: the environment is that user's, who could otherwise choose what the program loads, writes and
//! serves.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::process::is_privileged_program;

/// Names a variable that `ferroce run` has set for a fault of a program's library, so that the library tells.
pub const SET_FOR_A_FAULT: &str = "FERROCE_SET_FOR_A_FAULT";

/// The value of a variable; `None` for programs with more rights than their user.
pub fn variable(name: &str) -> Option<OsString> {
    if is_privileged_program() { None } else { std::env::var_os(name) }
}

/// As [`variable`], as text. Octets that are no UTF-8 become U+FFFD, so that such a value is told as wrong
/// and not taken for none.
pub fn text(name: &str) -> Option<String> {
    variable(name).map(|value| value.to_string_lossy().into_owned())
}

/// As [`variable`], as the path of a directory. A relative path is ignored.
pub fn directory(name: &str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Reads a variable that a service manager with a watchdog sets (sd_notify(3)), also in a program with more
/// rights than its user: a `ferroced` with file capabilities would otherwise be silent and be ended. Nothing
/// but a fixed word is sent there.
pub fn of_service_manager(name: &str) -> Option<OsString> {
    ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"].contains(&name).then(|| std::env::var_os(name))?
}

/// All variables; none for programs with more rights than their user.
pub fn all() -> Vec<(OsString, OsString)> {
    if is_privileged_program() { Vec::new() } else { std::env::vars_os().collect() }
}

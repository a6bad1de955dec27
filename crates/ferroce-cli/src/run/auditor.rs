//! The environment of glibc's loader: it asks ferroce's auditor which files it loads (`ferroce-audit`).

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result};

use crate::program;

/// The loader's setting, from glibc 2.33 on, of how many octets of thread-local variables the libraries of a
/// program may have that use them without a call.
///
/// With an auditor the loader reserves the room of each thread before it has mapped these libraries, and it
/// does not start a program whose libraries need more.
const SETTING: &str = "glibc.rtld.optional_static_tls";
/// As much as jemalloc and a few others need; the loader's default is 512. This comes out of each stack.
const ROOM: u64 = 4096;
/// As much as gcc's ThreadSanitizer needs, 768 KiB, which programs that use it have in their stacks anyway.
const ROOM_OF_SANITIZERS: u64 = 1 << 20;
const SANITIZERS: [&str; 2] = ["libtsan.so", "liblsan.so"];

/// The value of `LD_AUDIT`: our auditor, then those of the caller, which see our path. Another ferroce's is
/// left out: the loader asks all of them in turn, and the last answer counts.
pub fn auditors(own: &Path, before: Option<OsString>) -> Result<OsString> {
    let before = before.unwrap_or_default();
    let others = std::env::split_paths(&before).filter(|path| {
        !path.as_os_str().is_empty() && path.file_name().is_none_or(|name| name != ferroce_audit::FILE)
    });
    let all = std::env::join_paths(std::iter::once(own.to_owned()).chain(others));
    all.with_context(|| format!("{} cannot be an auditor", own.display()))
}

/// The value of `GLIBC_TUNABLES`: those of the caller, with room for the libraries of the program.
pub fn tunables(program: &Path, before: Option<String>) -> String {
    with_room(if is_sanitized(program) { ROOM_OF_SANITIZERS } else { ROOM }, &before.unwrap_or_default())
}

fn is_sanitized(program: &Path) -> bool {
    let needed = program::find(program).map(|file| program::needed(&file)).unwrap_or_default();
    needed.iter().any(|name| SANITIZERS.iter().any(|library| name.starts_with(library)))
}

/// The value of `VALGRIND_OPTS`, where the caller's options count if they say otherwise. After a start with
/// an auditor, glibc's `__libc_freeres` frees blocks that no malloc made. Valgrind alone calls it, when a
/// program exits; memcheck then reports errors, and massif crashes.
pub fn valgrind(before: Option<String>) -> String {
    const OPTION: &str = "--run-libc-freeres=no";
    let before = before.unwrap_or_default();
    let others = before.split_whitespace().filter(|word| *word != OPTION);
    std::iter::once(OPTION).chain(others).collect::<Vec<_>>().join(" ")
}

fn with_room(least: u64, before: &str) -> String {
    let (own, others): (Vec<&str>, Vec<&str>) = before
        .split(':')
        .filter(|word| !word.is_empty())
        .partition(|word| word.split('=').next() == Some(SETTING));
    let value = |word: &str| number(word.split_once('=')?.1);
    let room = own.into_iter().filter_map(value).fold(least, u64::max);
    let own = format!("{SETTING}={room}");
    others.into_iter().chain([&*own]).collect::<Vec<_>>().join(":")
}

/// A number as the loader reads one: hexadecimal behind 0x, octal behind 0.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.starts_with('0') => u64::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_auditor_comes_before_those_of_the_caller_and_once() {
        let own = Path::new("/opt/ferroce/lib/libferroce-audit.so");
        let all = |before: Option<&str>| auditors(own, before.map(OsString::from)).unwrap();
        assert_eq!(all(None), own);
        assert_eq!(all(Some("")), own);
        assert_eq!(all(Some("/a.so::b.so")), "/opt/ferroce/lib/libferroce-audit.so:/a.so:b.so");
        assert_eq!(all(Some("/usr/lib/ferroce/lib/libferroce-audit.so")), own, "of another ferroce");
        assert!(auditors(Path::new("/with:colon/l.so"), None).is_err(), "the loader would cut it in two");
    }

    #[test]
    fn the_callers_options_of_valgrind_come_later() {
        assert_eq!(valgrind(None), "--run-libc-freeres=no");
        let callers = Some("-q --run-libc-freeres=yes".to_owned());
        assert_eq!(valgrind(callers), "--run-libc-freeres=no -q --run-libc-freeres=yes");
        assert_eq!(valgrind(Some(valgrind(None))), valgrind(None));
    }

    #[test]
    fn the_callers_tunables_stay_and_the_larger_room_counts() {
        let room = |octets: u64| format!("glibc.rtld.optional_static_tls={octets}");
        assert_eq!(with_room(4096, ""), room(4096));
        assert_eq!(with_room(4096, &room(512)), room(4096));
        assert_eq!(with_room(4096, &room(9000)), room(9000));
        assert_eq!(with_room(4096, "glibc.rtld.optional_static_tls=0x2000"), room(8192));
        assert_eq!(with_room(4096, "glibc.rtld.optional_static_tls=020000"), room(8192));
        let malloc = "glibc.malloc.check=3";
        assert_eq!(
            with_room(1 << 20, &format!("{}:{malloc}", room(4096))),
            format!("{malloc}:{}", room(1 << 20))
        );
        assert!(!is_sanitized(&std::env::current_exe().unwrap()));
    }
}

//! Whether anybody is left in the broker's network namespace.
//!
//! A broker with links stays although no program runs, and a process keeps its network namespace alive: after
//! `ip netns del` the namespace and its interfaces would live on for the broker's sake alone. The rule: a
//! namespace is deserted if `/proc` shows no thread in it but the broker's own, and the broker's mount table
//! has no mount of it. A named namespace (`ip netns`, container engines) is such a mount, so links of a
//! namespace that has a name stay while nothing runs in it. A namespace that is held by nothing but an open
//! descriptor counts as deserted.
//!
//! Other users' processes need no permission: what `/proc/PID/net/dev` is depends on the namespace alone, and
//! anybody may look. Where `/proc` hides processes (`hidepid`), or is not there, nothing is known, and the
//! broker stays. Processes of other pid namespaces are not seen; the first process of ours is, which is in
//! the network namespace of a container as a rule.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether nobody but this process is in its network namespace, and nobody can come to it by a name. Looks at
/// every thread of the machine if so: for rare occasions.
pub(super) fn is_deserted() -> bool {
    let (Ok(name), Ok(mounts)) =
        (std::fs::read_link("/proc/self/ns/net"), std::fs::read("/proc/self/mountinfo"))
    else {
        return false;
    };
    let mounts = String::from_utf8_lossy(&mounts);
    match look(Path::new("/proc/self")) {
        Some(ours) if !hides_processes(&mounts) && !is_mounted(&mounts, &name.to_string_lossy()) => {
            !others(ours)
        }
        _ => false,
    }
}

/// The mark of the network namespace of a process or thread.
fn look(process: &Path) -> Option<(u64, u64)> {
    let file = process.join("net/dev").metadata().ok()?;
    Some((file.dev(), file.ino()))
}

/// Whether a thread of another process is in the namespace.
fn others(ours: (u64, u64)) -> bool {
    let numbered = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()))
    };
    let us = std::process::id().to_string();
    numbered(Path::new("/proc")).filter(|process| process.file_name().to_str() != Some(&us)).any(|process| {
        numbered(&process.path().join("task")).any(|thread| look(&thread.path()) == Some(ours))
    })
}

/// Whether a mount table (proc(5), `/proc/PID/mountinfo`) has a mount of the namespace, `net:[4026531840]`.
fn is_mounted(mounts: &str, name: &str) -> bool {
    mounts.lines().any(|line| line.split(' ').nth(3) == Some(name))
}

/// Whether `/proc` leaves out processes of other users.
fn hides_processes(mounts: &str) -> bool {
    let hides = |line: &str| {
        let (_, system) = line.split_once(" - ")?;
        let mut fields = system.split(' ');
        let (kind, options) = (fields.next()?, fields.nth(1)?);
        let option = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
        Some(kind == "proc" && option.is_some_and(|how| !matches!(how, "0" | "off")))
    };
    mounts.lines().any(|line| hides(line) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mount_table_tells() {
        let table = "22 60 0:21 / /proc rw,nosuid - proc proc rw\n\
                     199 198 0:4 net:[4026532177] /run/netns/blue rw master:2 - nsfs nsfs rw\n";
        assert!(is_mounted(table, "net:[4026532177]") && !is_mounted(table, "net:[4026532178]"));
        assert!(!hides_processes(table));
        for (options, hides) in
            [("rw,hidepid=2", true), ("rw,gid=5,hidepid=invisible", true), ("rw,hidepid=off", false)]
        {
            let table = format!("22 60 0:21 / /proc rw,nosuid shared:5 - proc proc {options}\n");
            assert_eq!(hides_processes(&table), hides, "{options}");
        }
    }

    #[test]
    fn a_namespace_with_another_process_is_not_deserted() {
        // The test program was started by one.
        assert!(look(Path::new("/proc/self")).is_some_and(others));
        assert!(!is_deserted());
    }
}

//! Environment variables are read in one place, which knows whether the environment is to be followed.

use super::scan::Sources;
use ferroce_harness::report::Checks;

/// The functions that read the environment, by the ends of their paths.
const READERS: &[&[&str]] = &[
    &["env", "home_dir"],
    &["env", "temp_dir"],
    &["env", "var"],
    &["env", "var_os"],
    &["env", "vars"],
    &["env", "vars_os"],
    &["libc", "getenv"],
    &["libc", "secure_getenv"],
];

/// The files that may call them, and why.
const READ_BY: &[(&str, &str)] = &[
    ("crates/ferroce-host/src/environment.rs", "the place"),
    ("crates/ferroce-sim/src/rng.rs", "the seed of a test"),
];

/// Checks crates of the product, by name.
pub fn check(checks: &mut Checks, crates: &[(&str, &[Sources])]) {
    let mut used = Vec::new();
    for (name, targets) in crates {
        let mut places: Vec<String> =
            targets.iter().flat_map(|target| target.mentioning(is_reader)).collect();
        places.sort();
        places.dedup();
        used.extend(places.iter().filter_map(|place| allowed(place)));
        places.retain(|place| allowed(place).is_none());
        let wrong = || format!("{}: use ferroce_host::environment", places.join(", "));
        let verdict = if places.is_empty() { Ok(()) } else { Err(wrong()) };
        checks.check(&format!("{name}: environment"), verdict);
    }
    for (file, _) in READ_BY.iter().filter(|(file, _)| !used.contains(file)) {
        checks.fail(file, "reads no variable: remove it from READ_BY in xtask/src/arrows/environment.rs");
    }
}

/// The row of [`READ_BY`] for a place (`FILE:LINE`).
fn allowed(place: &str) -> Option<&'static str> {
    let file = place.rsplit_once(':').map(|(file, _)| file)?;
    READ_BY.iter().map(|(allowed, _)| *allowed).find(|allowed| *allowed == file)
}

fn is_reader(path: &[String]) -> bool {
    READERS.iter().any(|reader| {
        let end = path.len().checked_sub(reader.len()).and_then(|from| path.get(from..));
        end.is_some_and(|end| end.iter().eq(reader.iter()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_are_known_by_the_ends_of_their_paths() {
        let is = |path: &str| is_reader(&path.split("::").map(str::to_owned).collect::<Vec<_>>());
        assert!(is("std::env::var_os") && is("env::vars") && is("libc::getenv") && is("std::env::temp_dir"));
        assert!(!is("std::env::current_exe") && !is("environment::variable") && !is("var"));
        assert_eq!(allowed("crates/ferroce-sim/src/rng.rs:53"), Some("crates/ferroce-sim/src/rng.rs"));
        assert_eq!(allowed("crates/ferroce-sim/src/lib.rs:53"), None);
    }
}

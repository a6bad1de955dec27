//! `ferroce doctor PROGRAM`: the libraries that a program will load, and why.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ferroce_audit::is_replaced;
use ferroce_host::environment;

use crate::finding::{Finding, Severity};
use crate::program::{self, Elf, Kind, Loaded};

const CHECK: &str = "program";
const UNKNOWN: &str = "`ferroce run` does not know";
const RENAME: &str = "patchelf --replace-needed COPY libibverbs.so.1 FILE, for each file that needs it";
/// Limit of nested script interpreters, as in the kernel.
const MOST_SCRIPTS: usize = 5;

/// The findings about the program `name`; `ours` is the folder of ferroce's libraries.
pub fn judge(name: &Path, ours: &Path) -> Vec<Finding> {
    let Some(mut file) = program::find(name) else {
        return vec![error(format!("{} was not found as a path or in PATH", name.display()), None)];
    };
    let mut findings = Vec::new();
    for _ in 0..MOST_SCRIPTS {
        if let Some(obstacle) = obstacle(&file) {
            findings.push(obstacle);
            return findings;
        }
        match fs::read(&file).map(|bytes| Kind::of(&bytes)) {
            Err(why) => {
                findings.push(error(format!("{} cannot be read: {why}", file.display()), None));
                return findings;
            }
            Ok(Kind::Script(by)) => {
                findings.push(Finding::ok(
                    CHECK,
                    format!("{} is a script, run by {}", file.display(), by.display()),
                ));
                match interpreter(&file, by) {
                    Some(by) => file = by,
                    None => {
                        findings.push(error(format!("{} has no interpreter here", file.display()), None));
                        return findings;
                    }
                }
            }
            Ok(kind) => {
                findings.extend(of_file(&file, &kind, ours));
                return findings;
            }
        }
    }
    findings.push(error(format!("{} has too many nested script interpreters", name.display()), None));
    findings
}

/// The reason why the program cannot be started, or ignores the environment.
fn obstacle(file: &Path) -> Option<Finding> {
    let mode = fs::metadata(file).ok()?;
    let shown = file.display();
    if !mode.is_file() {
        return Some(error(format!("{shown} is not a regular file"), None));
    }
    // A library or Python module may be examined as well, and is not executable.
    if mode.permissions().mode() & 0o111 == 0 && !shown.to_string().contains(".so") {
        let cure = format!("chmod +x {shown}, if it is a program");
        return Some(error(format!("{shown} is not executable"), Some(cure)));
    }
    let privilege = program::privilege(file)?;
    let found = format!("{shown} is {privilege}: the loader ignores LD_AUDIT and LD_LIBRARY_PATH for it");
    let cure = "run a copy without these rights (cp), or let all programs of the host load ferroce (`ferroce system on`)";
    Some(error(found, Some(cure.to_owned())))
}

/// The interpreter; `env` is resolved.
fn interpreter(script: &Path, by: PathBuf) -> Option<PathBuf> {
    if by.file_name().is_none_or(|name| name != "env") {
        return program::find(&by);
    }
    let text = fs::read(script).ok()?;
    let line = text.split(|octet| *octet == b'\n').next()?;
    let line = String::from_utf8_lossy(line).into_owned();
    let words = line.split_whitespace().skip(1);
    let word = words.into_iter().find(|word| !word.starts_with('-') && !word.contains('='))?;
    program::find(Path::new(word))
}

fn of_file(file: &Path, kind: &Kind, ours: &Path) -> Vec<Finding> {
    let shown = file.display();
    let elf = match kind {
        Kind::Elf(elf) => elf,
        Kind::Foreign => {
            let machine = std::env::consts::ARCH;
            let found =
                format!("{shown} is for another machine; ferroce's libraries are for {machine}, 64 bit");
            return vec![error(found, Some("use a build for this machine".to_owned()))];
        }
        Kind::Script(_) | Kind::Unknown => return vec![error(format!("{shown} is not a program"), None)],
    };
    if !elf.dynamic {
        let cure = "link it dynamically: a static program loads no library, so ferroce's cannot replace it";
        return vec![error(format!("{shown} is static"), Some(cure.to_owned()))];
    }
    if elf.loader.as_ref().is_some_and(|loader| loader.contains("ld-musl")) {
        let cure = "use a build for glibc: ferroce's library is one, and a process has one C library";
        return vec![error(format!("{shown} is for musl"), Some(cure.to_owned()))];
    }
    libraries(file, elf, ours)
}

fn libraries(file: &Path, elf: &Elf, ours: &Path) -> Vec<Finding> {
    let mut environment = vec![ours.to_owned()];
    environment.extend(std::env::split_paths(&environment::variable("LD_LIBRARY_PATH").unwrap_or_default()));
    let loaded = program::loads(file, elf, &environment);
    let mut found: Vec<Finding> = loaded.iter().map(|library| of_library(library, file, ours)).collect();
    let (replaced, others): (Vec<_>, Vec<_>) =
        program::bundled(file).into_iter().partition(|copy| is_replaced(copy.as_os_str().as_bytes()));
    let list = |copies: &[PathBuf]| {
        let names: Vec<String> = copies.iter().map(|path| path.display().to_string()).collect();
        names.join(", ")
    };
    if !replaced.is_empty() {
        let sentence =
            format!("packages contain copies, and ferroce's is loaded for them: {}", list(&replaced));
        found.push(Finding::ok(CHECK, sentence));
    }
    if !others.is_empty() {
        let sentence = format!("packages contain copies under names that {UNKNOWN}: {}", list(&others));
        found.push(Finding::new(CHECK, Severity::Warning, sentence).cure(RENAME));
    }
    if found.is_empty() {
        let sentence = format!(
            "{} needs none of the libraries itself. What it loads later (dlopen, modules) is ferroce's by every name",
            file.display()
        );
        let cure = "ferroce doctor FILE for a module or plugin of it; LD_DEBUG=libs shows what is loaded";
        found.push(Finding::new(CHECK, Severity::Note, sentence).cure(cure));
    }
    found
}

fn of_library(library: &Loaded, program: &Path, ours: &Path) -> Finding {
    let Loaded { name, by, file } = library;
    let by = if by == program { String::new() } else { format!(", needed by {}", by.display()) };
    if is_replaced(name.as_bytes()) {
        let copy = file.as_ref().filter(|file| file.parent() != Some(ours));
        let copy = copy.map(|file| format!(", in place of {}", file.display())).unwrap_or_default();
        let at = ours.join(ferroce_audit::LIBRARY);
        return Finding::ok(CHECK, format!("{name} is ferroce's, {}{copy}{by}", at.display()));
    }
    match file {
        Some(file) => {
            let sentence = format!("{name} is {}, a copy under a name that {UNKNOWN}{by}", file.display());
            Finding::new(CHECK, Severity::Warning, sentence).cure(RENAME)
        }
        None => error(format!("{name} was not found{by}"), None),
    }
}

fn error(found: String, cure: Option<String>) -> Finding {
    Finding { cure, ..Finding::new(CHECK, Severity::Error, found) }
}

//! `ferroce doctor --pid PID`: the libraries that a running process has, and the devices that it sees.
//!
//! [`Facts`] come from `/proc/PID`, [`judge`] derives the findings from them alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ferroce_ipc::DeviceInfo;

use super::host::{self, Broker};
use crate::finding::{Finding, Severity};
use crate::program::{self, Kind};

const PROCESS: &str = "process";
const LIBRARY: &str = "library";
const AUDITOR: &str = "auditor";
const DEVICES: &str = "devices";

/// The entry of the auxiliary vector that says whether the program started with more rights than its caller
/// (getauxval(3)).
const AT_SECURE: u64 = 23;

/// The settings that decide which devices a program sees.
const SETTINGS: [&str; 3] = ["FERROCE_BROKER", "FERROCE_NETDEV", "FERROCE_RUNTIME_DIR"];

/// A process of which nothing is to be learned.
#[derive(Debug, PartialEq, Eq)]
enum Opaque {
    Missing,
    /// The kernel lets us not look; the user of the process.
    Forbidden(Option<u32>),
    /// The process ended, and its parent has not asked for its status.
    Ended,
    KernelThread,
}

#[derive(Debug)]
struct Facts {
    /// The program's file.
    program: PathBuf,
    kind: Kind,
    /// Whether the loader ignored the environment; unknown if the vector cannot be read.
    secure: Option<bool>,
    /// The C library is musl's.
    musl: bool,
    /// Libraries of the three families by their path, and whether they are ferroce's; unknown for a file
    /// that cannot be read any more.
    libraries: BTreeMap<PathBuf, Option<bool>>,
    /// The auditor's file, if it is mapped.
    auditor: Option<PathBuf>,
    /// `LD_AUDIT` and the settings, as the process was started with them; `None` if they cannot be read.
    environment: Option<BTreeMap<String, String>>,
    uid: Option<u32>,
    /// Whether the process is in our network namespace.
    same_network: Option<bool>,
}

/// The findings about the process `pid`.
pub fn judge(pid: u32) -> Vec<Finding> {
    let facts = match Facts::gather(pid) {
        Ok(facts) => facts,
        Err(opaque) => return vec![of_opaque(pid, &opaque)],
    };
    let broker = if facts.same_network == Some(true) { host::who_answers() } else { Broker::None };
    findings(pid, &facts, &broker)
}

impl Facts {
    fn gather(pid: u32) -> Result<Self, Opaque> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let uid = fs::metadata(&folder).map(|found| found.uid()).ok();
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::PermissionDenied => Opaque::Forbidden(uid),
            _ => Opaque::Missing,
        };
        let status = fs::read_to_string(folder.join("status")).map_err(failed)?;
        if status.lines().any(|line| line.starts_with("State:") && line.contains('Z')) {
            return Err(Opaque::Ended);
        }
        // A kernel thread has no memory of its own.
        if !status.lines().any(|line| line.starts_with("VmSize:")) {
            return Err(Opaque::KernelThread);
        }
        let exe = folder.join("exe");
        let program = fs::read_link(&exe).map_err(failed)?;
        let maps = fs::read(folder.join("maps")).map_err(failed)?;
        let kind = Kind::of(&fs::read(&exe).map_err(failed)?);
        let files = mapped(&maps);
        let named = |path: &Path, is: &dyn Fn(&str) -> bool| {
            path.file_name().and_then(|n| n.to_str()).is_some_and(is)
        };
        // The file as the process sees it, which may be in a container.
        let inside = |path: &Path| folder.join("root").join(path.strip_prefix("/").unwrap_or(path));
        // The process may have put a pipe in its place, which a read would wait for.
        let file = |path: &Path| {
            let path = inside(path);
            if fs::metadata(&path).is_ok_and(|of| of.is_file()) { fs::read(path).ok() } else { None }
        };
        let whose = |path: &PathBuf| (path.clone(), file(path).map(|file| host::has_note(&file)));
        let mut auditor = files.iter().filter(|path| named(path, &|name| name == ferroce_audit::FILE));
        let environment = fs::read(folder.join("environ")).ok().map(|octets| variables(&octets));
        let network = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
        Ok(Self {
            secure: fs::read(folder.join("auxv"))
                .ok()
                .and_then(|octets| entry(&octets, AT_SECURE))
                .map(|value| value != 0),
            musl: has_musl(&kind, &files),
            libraries: files.iter().filter(|path| named(path, &program::is_ours)).map(whose).collect(),
            auditor: auditor.next().cloned(),
            environment,
            uid,
            same_network: network("self").zip(network(&pid.to_string())).map(|(ours, its)| ours == its),
            program,
            kind,
        })
    }
}

/// Whether the C library is musl's: its loader has that name, which may be a link to the library.
fn has_musl(kind: &Kind, files: &[PathBuf]) -> bool {
    let is_loader =
        |path: &Path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-musl-"));
    let wanted = match kind {
        Kind::Elf(elf) => elf.loader.as_deref(),
        Kind::Foreign | Kind::Script(_) | Kind::Unknown => None,
    };
    wanted.is_some_and(|loader| is_loader(Path::new(loader))) || files.iter().any(|path| is_loader(path))
}

/// The files that `/proc/PID/maps` names, each once.
fn mapped(maps: &[u8]) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.split(|octet| *octet == b'\n') {
        let Some(at) = line.iter().position(|octet| *octet == b'/') else { continue };
        let path = Path::new(std::ffi::OsStr::from_bytes(&line[at..])).to_owned();
        if !files.contains(&path) {
            files.push(path);
        }
    }
    files
}

/// The variables that count here.
fn variables(environ: &[u8]) -> BTreeMap<String, String> {
    let words = environ.split(|octet| *octet == 0).map(String::from_utf8_lossy);
    let pair = |word: std::borrow::Cow<'_, str>| {
        let (name, value) = word.split_once('=')?;
        (name == "LD_AUDIT" || SETTINGS.contains(&name)).then(|| (name.to_owned(), value.to_owned()))
    };
    words.filter_map(pair).collect()
}

/// The value of an entry of an auxiliary vector of a program of 64 bits.
fn entry(auxv: &[u8], kind: u64) -> Option<u64> {
    let (words, _) = auxv.as_chunks::<8>();
    let mut pairs =
        words.chunks_exact(2).map(|pair| (u64::from_ne_bytes(pair[0]), u64::from_ne_bytes(pair[1])));
    pairs.find(|(found, _)| *found == kind).map(|(_, value)| value)
}

fn of_opaque(pid: u32, opaque: &Opaque) -> Finding {
    let (found, cure) = match opaque {
        Opaque::Missing => (format!("there is no process {pid}"), None),
        Opaque::Forbidden(uid) => {
            let user = uid.map(|uid| format!(" of uid {uid}")).unwrap_or_default();
            let found = format!("process {pid}{user} does not let this user look at it");
            (found, Some(format!("sudo ferroce doctor --pid {pid}")))
        }
        Opaque::Ended => (format!("process {pid} has ended"), None),
        Opaque::KernelThread => (format!("process {pid} is a thread of the kernel"), None),
    };
    Finding { cure, ..Finding::new(PROCESS, Severity::Error, found) }
}

fn findings(pid: u32, facts: &Facts, broker: &Broker) -> Vec<Finding> {
    let shown = facts.program.display();
    let mut found = vec![Finding::ok(PROCESS, format!("process {pid} runs {shown}"))];
    if let Some(finding) = obstacle(facts) {
        let ends = finding.state == Severity::Error && facts.libraries.is_empty();
        found.push(finding);
        if ends {
            return found;
        }
    }
    found.extend(facts.libraries.iter().map(|(path, ours)| of_library(path, *ours)));
    let has_ours = facts.libraries.values().any(|ours| *ours == Some(true));
    if facts.libraries.is_empty() {
        let sentence = "has loaded none of libibverbs, librdmacm and libibumad: it has not asked for RDMA yet, or does not use it";
        found.push(Finding::new(LIBRARY, Severity::Note, sentence));
    }
    found.push(of_auditor(facts));
    if has_ours || facts.auditor.is_some() {
        found.push(of_devices(pid, facts, broker));
    }
    found
}

/// The reason why the process cannot have ferroce's libraries, or has them only by the system's paths.
fn obstacle(facts: &Facts) -> Option<Finding> {
    let error = |found: &str, cure: &str| Some(Finding::new(PROCESS, Severity::Error, found).cure(cure));
    match &facts.kind {
        Kind::Foreign => {
            let found = format!(
                "the program is for another machine or has 32 bits; ferroce's libraries are for {}, 64 bit",
                std::env::consts::ARCH
            );
            return error(&found, "use a build for this machine");
        }
        Kind::Elf(elf) if elf.loader.is_none() && facts.libraries.is_empty() => {
            return error(
                "the program is static: no loader runs in it, so no library of ferroce's is loaded",
                "link it dynamically",
            );
        }
        Kind::Elf(_) | Kind::Script(_) | Kind::Unknown => {}
    }
    if facts.musl {
        let cure = "use a build for glibc: ferroce's library is one, and a process has one C library";
        return error("the program's C library is musl", cure);
    }
    if facts.secure == Some(true) {
        let found = "was started with more rights than its caller (set-user-ID, set-group-ID or capabilities): the loader \
                     ignored LD_AUDIT and LD_LIBRARY_PATH";
        let cure = "run a copy without these rights (cp), or let all programs of the host load ferroce (`ferroce system on`)";
        let has_ours = facts.libraries.values().any(|ours| *ours == Some(true));
        let state = if has_ours { Severity::Note } else { Severity::Error };
        let finding = Finding::new(PROCESS, state, found);
        return Some(if has_ours { finding } else { finding.cure(cure) });
    }
    None
}

fn of_library(path: &Path, ours: Option<bool>) -> Finding {
    let shown = path.display();
    match ours {
        Some(true) => Finding::ok(LIBRARY, format!("{shown} is ferroce's")),
        Some(false) => Finding::new(LIBRARY, Severity::Error, format!("{shown} is not ferroce's"))
            .cure("start the program by `ferroce run -- PROGRAM`; a running process keeps its libraries"),
        None => Finding::new(LIBRARY, Severity::Warning, format!("{shown} cannot be read any more"))
            .cure("start the program again, if its libraries were replaced or removed since"),
    }
}

fn of_auditor(facts: &Facts) -> Finding {
    if let Some(auditor) = &facts.auditor {
        let sentence = format!(
            "runs with ferroce's auditor, {}: libraries that it loads later are ferroce's too",
            auditor.display()
        );
        return Finding::ok(AUDITOR, sentence);
    }
    let asked = facts.environment.as_ref().and_then(|variables| variables.get("LD_AUDIT"));
    let sentence = match asked {
        Some(value) if value.contains(ferroce_audit::FILE) => {
            "LD_AUDIT names ferroce's auditor, and the loader did not take it"
        }
        _ => {
            "runs without ferroce's auditor: copies of the libraries that it loads by a path or an RPATH are not ferroce's"
        }
    };
    Finding::new(AUDITOR, Severity::Note, sentence).cure("ferroce run -- PROGRAM")
}

fn of_devices(pid: u32, facts: &Facts, broker: &Broker) -> Finding {
    let setting = |name: &str| facts.environment.as_ref().and_then(|variables| variables.get(name));
    let settings: Vec<String> =
        SETTINGS.iter().filter_map(|name| setting(name).map(|value| format!("{name}={value}"))).collect();
    let with = if settings.is_empty() { String::new() } else { format!(", with {}", settings.join(" ")) };
    if facts.same_network != Some(true) {
        let sentence = format!("are those of the process's own network namespace{with}");
        return Finding::new(DEVICES, Severity::Note, sentence)
            .cure(format!("nsenter --target {pid} --net ferroce link"));
    }
    if setting("FERROCE_BROKER").is_some_and(|value| value == "none") && matches!(broker, Broker::None) {
        let sentence = format!("none: no broker runs, and the process starts none{with}");
        return Finding::new(DEVICES, Severity::Error, sentence).cure("ferroced, or unset FERROCE_BROKER");
    }
    match broker {
        Broker::None => Finding::ok(
            DEVICES,
            format!("those of the broker that the process starts when it asks for them{with}"),
        ),
        Broker::Unusable(why) => {
            Finding::new(DEVICES, Severity::Warning, format!("are not known: {why}{with}"))
        }
        Broker::Runs { uid, .. } if *uid != 0 && facts.uid.is_some_and(|own| own != *uid) => {
            let own = facts.uid.unwrap_or_default();
            let sentence = format!("none: the broker is of uid {uid}, and the process of uid {own}{with}");
            Finding::new(DEVICES, Severity::Error, sentence)
                .cure("ferroced --system as root, for programs of all users")
        }
        Broker::Runs { devices, .. } => {
            let name = |device: &DeviceInfo| {
                let state = if device.port_active { "" } else { ", down" };
                format!("{} ({} on {}{state})", device.name, device.kind.transport(), device.netdev)
            };
            let names: Vec<String> = devices.iter().map(name).collect();
            Finding::ok(DEVICES, format!("{}{with}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests;

//! The loader's view of a program: which libraries it would find without ferroce.
//!
//! The search is glibc's, as far as it concerns programs on ferroce (ld.so(8)): DT_RPATH of the object and of
//! those that loaded it unless the object has DT_RUNPATH, then LD_LIBRARY_PATH, then DT_RUNPATH, then the
//! system's directories. Libraries that a program loads itself later (`dlopen`, Python modules) are not
//! visible in its file.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ferroce_audit::FAMILIES;
use ferroce_host::environment;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};

/// The ELF machine of ferroce's library.
const MACHINE: u16 = match cfg!(target_arch = "aarch64") {
    true => elf::EM_AARCH64,
    false => elf::EM_X86_64,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `#!`, with its interpreter.
    Script(PathBuf),
    /// An ELF file of another machine or word size.
    Foreign,
    Elf(Elf),
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elf {
    /// PT_INTERP; `None` for libraries and static programs.
    pub loader: Option<String>,
    /// Whether it has a dynamic section, without which it loads nothing.
    pub dynamic: bool,
    /// DT_NEEDED.
    pub needed: Vec<String>,
    /// DT_RPATH, as written.
    pub rpath: Vec<String>,
    /// DT_RUNPATH, as written; if present, the loader ignores DT_RPATH.
    pub runpath: Vec<String>,
}

impl Kind {
    /// Parses a file.
    pub fn of(bytes: &[u8]) -> Self {
        if let Some(line) = bytes.strip_prefix(b"#!") {
            let line = line.split(|octet| *octet == b'\n').next().unwrap_or_default().trim_ascii();
            let word = line.split(|octet| octet.is_ascii_whitespace()).next().unwrap_or_default();
            return Self::Script(OsStr::from_bytes(word).into());
        }
        if !bytes.starts_with(&elf::ELFMAG) {
            return Self::Unknown;
        }
        let machine = bytes.get(18..20).and_then(|field| field.try_into().ok()).map(u16::from_le_bytes);
        let little_64 = bytes.get(4..6) == Some(&[elf::ELFCLASS64, elf::ELFDATA2LSB]);
        if !little_64 || machine != Some(MACHINE) {
            return Self::Foreign;
        }
        parse(bytes).map_or(Self::Unknown, Self::Elf)
    }
}

/// DT_NEEDED of a program, whose other parts are not read; empty for other files.
pub fn needed(file: &Path) -> Vec<String> {
    let Ok(file) = fs::File::open(file) else { return Vec::new() };
    parse(&ReadCache::new(file)).map(|elf| elf.needed).unwrap_or_default()
}

fn parse<'data>(bytes: impl ReadRef<'data>) -> Option<Elf> {
    let header = elf::FileHeader64::<object::Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let headers = header.program_headers(endian, bytes).ok()?;
    let mut found = Elf::default();
    for header in headers {
        if header.p_type(endian) == elf::PT_INTERP {
            let path = header.data(endian, bytes).ok()?;
            found.loader = Some(text(path.strip_suffix(b"\0").unwrap_or(path)));
        }
    }
    // Uses the program headers, as the loader does: a file may have no sections at all.
    let Some(entries) = headers.iter().find_map(|header| header.dynamic(endian, bytes).ok().flatten()) else {
        return Some(found);
    };
    found.dynamic = true;
    let value =
        |tag: u32| entries.iter().find(|entry| entry.tag32(endian) == Some(tag)).map(|e| e.d_val(endian));
    let (start, length) = (value(elf::DT_STRTAB)?, value(elf::DT_STRSZ)?);
    let strings =
        headers.iter().find_map(|header| header.data_range(endian, bytes, start, length).ok().flatten())?;
    for entry in entries {
        let list = match entry.tag32(endian) {
            Some(elf::DT_NEEDED) => &mut found.needed,
            Some(elf::DT_RPATH) => &mut found.rpath,
            Some(elf::DT_RUNPATH) => &mut found.runpath,
            _ => continue,
        };
        let from = strings.get(usize::try_from(entry.d_val(endian)).ok()?..)?;
        let word = text(from.split(|octet| *octet == 0).next()?);
        match entry.tag32(endian) {
            Some(elf::DT_NEEDED) => list.push(word),
            _ => list.extend(word.split(':').filter(|path| !path.is_empty()).map(str::to_owned)),
        }
    }
    Some(found)
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

/// Returns whether a file name is one of ferroce's libraries, or of a renamed copy
/// (`libibverbs-1de1263b.so.1.14`).
pub fn is_ours(name: &str) -> bool {
    FAMILIES.iter().any(|ours| {
        name.strip_prefix(ours).is_some_and(|rest| rest.contains(".so") && rest.starts_with(['.', '-']))
    })
}

/// The path of a program: a name with a slash as it is, others from `PATH`.
pub fn find(name: &Path) -> Option<PathBuf> {
    if name.as_os_str().as_bytes().contains(&b'/') {
        return name.exists().then(|| name.to_owned());
    }
    let path = environment::variable("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let is = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(is)
}

/// The reason why the loader ignores a program's environment: the program has more rights than its caller.
pub fn privilege(file: &Path) -> Option<&'static str> {
    let mode = fs::metadata(file).ok()?;
    let own = |id: u32, caller: u32| id != caller;
    if mode.mode() & 0o4000 != 0 && own(mode.uid(), nix::unistd::getuid().as_raw()) {
        return Some("set-user-ID");
    }
    if mode.mode() & 0o2010 == 0o2010 && own(mode.gid(), nix::unistd::getgid().as_raw()) {
        return Some("set-group-ID");
    }
    let mut room = [0; 64];
    let has = rustix::fs::getxattr(file, c"security.capability", room.as_mut_slice());
    (has.is_ok() && !nix::unistd::getuid().is_root()).then_some("given capabilities (setcap)")
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loaded {
    /// The name in DT_NEEDED.
    pub name: String,
    /// The object that needs it.
    pub by: PathBuf,
    /// The file that the loader finds by itself.
    pub file: Option<PathBuf>,
}

/// Limit of a program's libraries in the search, since files may be malformed.
const MOST: usize = 2000;

/// The libraries of a program that are ferroce's or copies of them; `environment` is LD_LIBRARY_PATH.
pub fn loads(file: &Path, program: &Elf, environment: &[PathBuf]) -> Vec<Loaded> {
    let system = system_directories();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut found = Vec::new();
    // Each object with the DT_RPATHs that apply to its libraries: its own and those of the objects that
    // loaded it.
    let mut left = vec![(file.to_owned(), program.clone(), Vec::new())];
    while let Some((by, object, above)) = left.pop() {
        let here = |path: &String| expanded(path, &by);
        let modern = !object.runpath.is_empty();
        let own = object.rpath.iter().filter(|_| !modern).map(here);
        let below: Vec<PathBuf> = own.chain(above).collect();
        let rpath = if modern { [].as_slice() } else { &below };
        let runpath: Vec<PathBuf> = object.runpath.iter().map(here).collect();
        for name in object.needed.iter().filter(|name| seen.len() < MOST && seen.insert((*name).clone())) {
            let places = [rpath, environment, &runpath, &system].concat();
            let (path, library) = search(name, &places).unzip();
            if is_ours(name.rsplit('/').next().unwrap_or(name)) {
                found.push(Loaded { name: name.clone(), by: by.clone(), file: path });
            } else if let (Some(path), Some(library)) = (path, library) {
                left.push((path, library, below.clone()));
            }
        }
    }
    found.sort();
    found
}

/// Skips files for other machines.
fn search(name: &str, places: &[PathBuf]) -> Option<(PathBuf, Elf)> {
    let look = |path: PathBuf| match Kind::of(&fs::read(&path).ok()?) {
        Kind::Elf(library) => Some((path, library)),
        _ => None,
    };
    if name.contains('/') {
        look(name.into())
    } else {
        places.iter().find_map(|place| look(place.join(name)))
    }
}

/// Expands a path of DT_RPATH or DT_RUNPATH of the object `by`.
fn expanded(path: &str, by: &Path) -> PathBuf {
    let by = by.canonicalize().unwrap_or_else(|_| by.to_owned());
    let origin = by.parent().unwrap_or(Path::new("/")).to_string_lossy();
    path.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin).into()
}

/// The loader's own directories, and those of `/etc/ld.so.conf`.
fn system_directories() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut files: Vec<PathBuf> = vec!["/etc/ld.so.conf".into()];
    files.extend(fs::read_dir("/etc/ld.so.conf.d").into_iter().flatten().flatten().map(|entry| entry.path()));
    for file in files {
        let text = fs::read_to_string(file).unwrap_or_default();
        found.extend(text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from));
    }
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let own = ["/lib", "/usr/lib"].map(|directory| Path::new(directory).join(&multiarch));
    found.extend(own);
    found.extend(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from));
    found
}

/// Copies of ferroce's libraries in this Python's wheels, in folders `*.libs` of its packages. Empty for
/// other programs.
pub fn bundled(interpreter: &Path) -> Vec<PathBuf> {
    let name = interpreter.file_name().unwrap_or_default().to_string_lossy();
    let Some(root) = interpreter.parent().and_then(Path::parent).filter(|_| name.starts_with("python"))
    else {
        return Vec::new();
    };
    let entries =
        |directory: PathBuf| fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path());
    let named = |path: &PathBuf, test: &dyn Fn(&str) -> bool| {
        path.file_name().and_then(OsStr::to_str).is_some_and(test)
    };
    let pythons = entries(root.join("lib")).filter(|path| named(path, &|name| name.starts_with("python3")));
    let packages = pythons.flat_map(|python| entries(python.join("site-packages")));
    let folders = packages.filter(|path| named(path, &|name| name.ends_with(".libs")));
    let mut found: Vec<PathBuf> = folders.flat_map(entries).filter(|path| named(path, &is_ours)).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests;

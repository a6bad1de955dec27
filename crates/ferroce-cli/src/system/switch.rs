//! `ferroce system on|off|status`: whether all programs of this host load ferroce's libraries.
//!
//! The loader finds libraries by a cache, which ldconfig(8) makes of the folders in `/etc/ld.so.conf.d`, in
//! the order of these files' names, and of the system's own folders. `on` adds a file with a name that comes
//! first, `off` removes it. The libraries of rdma-core stay where they are and are found again afterwards.

use std::fmt::{self, Display};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::args::Style;
use crate::rows;
use crate::run::{self, LIBRARIES};

/// The file that switches ferroce on.
const NAME: &str = "00-ferroce.conf";
/// The first line of the file. A file without this line is not ours.
const MARK: &str = "# ferroce: `ferroce system off` removes this file.";
/// The oldest glibc whose loader looks for a function in other libraries than the one that the program names
/// for it, which the libraries without code in `lib/system` rely on.
const OLDEST: (u32, u32) = (2, 30);
/// Devices of the kernel.
const CARDS: &str = "/sys/class/infiniband";

/// The loader's configuration.
struct Loader {
    /// The folder of configuration files.
    folder: PathBuf,
    ldconfig: PathBuf,
    /// Options before all others: tests have a cache of their own.
    options: Vec<String>,
}

/// The libraries that programs load.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
struct Loaded {
    /// `on` if all of them are ferroce's, `off` if none is.
    libraries: &'static str,
    #[serde(rename = "libibverbs.so.1")]
    verbs: Option<PathBuf>,
    #[serde(rename = "librdmacm.so.1")]
    rdmacm: Option<PathBuf>,
    #[serde(rename = "libibumad.so.3")]
    umad: Option<PathBuf>,
}

/// Makes all programs of the host load ferroce's libraries. With `force` also if the host has RDMA devices,
/// which programs then no longer see.
pub fn on(force: bool, style: Style) -> Result<()> {
    ensure_root("on")?;
    let lib = run::library_dir()?.join("system").canonicalize();
    let lib = lib.context("no lib/system is here: the wheel has none, take another package")?;
    for name in LIBRARIES {
        ensure_roots_alone(
            &lib.join(name).canonicalize().with_context(|| lib.join(name).display().to_string())?,
        )?;
    }
    let cards: Vec<String> = fs::read_dir(CARDS)
        .into_iter()
        .flatten()
        .flatten()
        .map(|card| card.file_name().to_string_lossy().into_owned())
        .collect();
    ensure!(
        force || cards.is_empty(),
        "this host has the RDMA devices {}, which programs would no longer see; --force does it all the same",
        cards.join(", ")
    );
    let loader = Loader::of_this_host()?;
    ensure_new_enough(&loader.ask(&["--version"])?)?;
    loader.switch_on(&lib)?;
    rows::print(&[loader.loaded()?], style)
}

/// Makes programs load the libraries of the system again.
pub fn off(style: Style) -> Result<()> {
    ensure_root("off")?;
    let loader = Loader::of_this_host()?;
    loader.switch_off()?;
    rows::print(&[loader.loaded()?], style)
}

/// Prints which libraries programs load.
pub fn status(style: Style) -> Result<()> {
    rows::print(&[Loader::of_this_host()?.loaded()?], style)
}

fn ensure_root(word: &str) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "only root can switch the libraries of all programs {word}; `ferroce run -- CMD` needs no privilege"
    );
    Ok(())
}

/// Checks that only root can replace a file, which programs of all users will load.
fn ensure_roots_alone(file: &Path) -> Result<()> {
    for path in file.ancestors() {
        let found = path.metadata().with_context(|| path.display().to_string())?;
        ensure!(
            found.uid() == 0 && found.mode() & 0o022 == 0,
            "{} can be changed by others than root (uid {}, mode {:o}), and programs of all users would load {}",
            path.display(),
            found.uid(),
            found.mode() & 0o7777,
            file.display()
        );
    }
    Ok(())
}

/// Checks the version of glibc, by the last word of the first line of `ldconfig --version`.
fn ensure_new_enough(said: &str) -> Result<()> {
    let word = said.lines().next().and_then(|line| line.split_whitespace().last()).unwrap_or_default();
    let mut numbers = word.split('.').map(|number| number.parse::<u32>().ok());
    let version = numbers.next().flatten().zip(numbers.next().flatten());
    let version = version.with_context(|| format!("ldconfig says no version of glibc: {said:?}"))?;
    let (major, minor) = OLDEST;
    ensure!(
        version >= OLDEST,
        "`ferroce system on` needs glibc {major}.{minor} or later, and this is {word}; `ferroce run -- CMD` works"
    );
    Ok(())
}

impl Loader {
    fn of_this_host() -> Result<Self> {
        // Ubuntu's ldconfig leaves the work to dpkg within the scripts of packages.
        let places = ["/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/sbin/ldconfig", "/usr/bin/ldconfig"];
        let ldconfig = places.map(PathBuf::from).into_iter().find(|path| path.is_file());
        let ldconfig = ldconfig.context("this system has no ldconfig; set LD_LIBRARY_PATH instead")?;
        Ok(Self { folder: "/etc/ld.so.conf.d".into(), ldconfig, options: Vec::new() })
    }

    /// Writes the file and renews the cache. If that fails, or others' libraries still come first, everything
    /// is as before.
    fn switch_on(&self, lib: &Path) -> Result<()> {
        let name =
            lib.to_str().filter(|name| !name.contains([' ', '\t', '\n', '#', ':', ',', '=', '*', '?', '[']));
        let name = name.with_context(|| format!("ldconfig cannot read the name {}", lib.display()))?;
        let before = self.content()?;
        self.write(&format!("{MARK}\n{name}\n"))?;
        let done = self.renew().and_then(|()| {
            let loaded = self.loaded()?;
            let strange =
                loaded.all().into_iter().find(|found| found.is_none_or(|path| !path.starts_with(lib)));
            match strange {
                None => Ok(()),
                Some(Some(path)) => bail!("{} still comes first in the loader's cache", path.display()),
                Some(None) => bail!("ldconfig does not list all libraries of {}", lib.display()),
            }
        });
        if done.is_err() {
            match before {
                Some(text) => self.write(&text)?,
                None => self.remove()?,
            }
            self.renew()?;
        }
        done
    }

    fn switch_off(&self) -> Result<()> {
        self.content()?;
        self.remove()?;
        self.renew()
    }

    fn file(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    /// The present file of ours.
    fn content(&self) -> Result<Option<String>> {
        let file = self.file();
        match fs::read_to_string(&file) {
            Ok(text) if text.starts_with(MARK) => Ok(Some(text)),
            Ok(_) => bail!("{} is not a file of `ferroce system on`; remove it if it may go", file.display()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| file.display().to_string()),
        }
    }

    /// Replaces the file as a whole.
    fn write(&self, text: &str) -> Result<()> {
        // ldconfig reads no file with this ending.
        let fresh = self.folder.join(format!("{NAME}.{}.new", std::process::id()));
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&fresh)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&fresh, self.file()));
        made.inspect_err(|_| drop(fs::remove_file(&fresh))).with_context(|| self.folder.display().to_string())
    }

    fn remove(&self) -> Result<()> {
        match fs::remove_file(self.file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| self.file().display().to_string())
            }
            _ => Ok(()),
        }
    }

    /// Runs ldconfig; what it prints.
    fn ask(&self, options: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.ldconfig);
        let output = command.args(&self.options).args(options).output();
        let output = output.with_context(|| self.ldconfig.display().to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", self.ldconfig.display(), said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn renew(&self) -> Result<()> {
        self.ask(&[]).map(drop)
    }

    fn loaded(&self) -> Result<Loaded> {
        let ours = self.content().ok().flatten();
        let ours = ours.as_deref().and_then(|text| text.lines().nth(1)).map(PathBuf::from);
        let cache = self.ask(&["-p"])?;
        let [verbs, rdmacm, umad] = LIBRARIES.map(|name| first(&cache, name));
        let mut loaded = Loaded { libraries: "off", verbs, rdmacm, umad };
        let is_ours =
            |path: Option<&Path>| path.zip(ours.as_deref()).is_some_and(|(path, lib)| path.starts_with(lib));
        loaded.libraries = match loaded.all().into_iter().filter(|path| is_ours(*path)).count() {
            0 => "off",
            3 => "on",
            _ => "mixed",
        };
        Ok(loaded)
    }
}

/// The file that the loader takes for a library: the first of that name in the output of `ldconfig -p`.
fn first(cache: &str, name: &str) -> Option<PathBuf> {
    let kind = if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" };
    let mut lines = cache.lines().filter_map(|line| line.trim().split_once(" => "));
    let found = lines.find(|(left, _)| {
        left.split_once(" (").is_some_and(|(library, flags)| library == name && flags.contains(kind))
    });
    found.map(|(_, path)| PathBuf::from(path))
}

impl Loaded {
    fn all(&self) -> [Option<&Path>; 3] {
        [self.verbs.as_deref(), self.rdmacm.as_deref(), self.umad.as_deref()]
    }
}

impl Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "libraries {}", self.libraries)?;
        let mut all = LIBRARIES.into_iter().zip(self.all());
        all.try_for_each(|(name, path)| match path {
            Some(path) => write!(f, " {name} {}", path.display()),
            None => write!(f, " {name} none"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loader's configuration below a folder of its own: `theirs` before `zzz` in the order of names.
    struct Bed {
        top: PathBuf,
        loader: Loader,
    }

    impl Bed {
        /// `None` without ldconfig and cc.
        fn new(name: &str) -> Option<Self> {
            let loader = Loader::of_this_host().ok()?;
            Command::new("cc").arg("--version").output().ok()?;
            let top = std::env::temp_dir().join(format!("ferroce-switch-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&top);
            for folder in ["conf", "lib/system", "theirs"] {
                fs::create_dir_all(top.join(folder)).unwrap();
            }
            let top = top.canonicalize().unwrap();
            let (main, cache) = (top.join("main.conf"), top.join("cache"));
            fs::write(&main, format!("include {}/conf/*.conf\n", top.display())).unwrap();
            fs::write(top.join("conf/zzz.conf"), format!("{}\n", top.join("theirs").display())).unwrap();
            let options = [format!("-f{}", main.display()), format!("-C{}", cache.display())];
            let loader = Loader { folder: top.join("conf"), options: options.into(), ..loader };
            let bed = Self { top, loader };
            for folder in ["lib/system", "theirs"] {
                LIBRARIES.iter().for_each(|name| bed.library(folder, name));
            }
            bed.loader.renew().unwrap();
            Some(bed)
        }

        fn library(&self, folder: &str, name: &str) {
            let mut command = Command::new("cc");
            command.args(["-shared", "-nostdlib", "-x", "c", "/dev/null"]).arg(format!("-Wl,-soname,{name}"));
            assert!(command.arg("-o").arg(self.top.join(folder).join(name)).status().unwrap().success());
        }

        fn lib(&self) -> PathBuf {
            self.top.join("lib/system")
        }

        fn state(&self) -> &'static str {
            self.loader.loaded().unwrap().libraries
        }

        fn files(&self) -> usize {
            fs::read_dir(self.top.join("conf")).unwrap().count()
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.top);
        }
    }

    #[test]
    fn on_and_off_may_be_repeated() {
        let Some(bed) = Bed::new("repeated") else {
            println!("skipped: needs ldconfig and cc");
            return;
        };
        assert_eq!(bed.state(), "off");
        for _ in 0..2 {
            bed.loader.switch_on(&bed.lib()).unwrap();
            assert_eq!((bed.state(), bed.files()), ("on", 2));
        }
        for _ in 0..2 {
            bed.loader.switch_off().unwrap();
            assert_eq!((bed.state(), bed.files()), ("off", 1));
            let theirs = bed.top.join("theirs/librdmacm.so.1");
            assert_eq!(bed.loader.loaded().unwrap().rdmacm, Some(theirs));
        }
    }

    #[test]
    fn half_of_the_libraries_are_never_switched_on() {
        let Some(bed) = Bed::new("half") else {
            println!("skipped: needs ldconfig and cc");
            return;
        };
        // As the links to one file would be: its SONAME is another name.
        bed.library("lib/system", "other.so");
        fs::rename(bed.lib().join("other.so"), bed.lib().join("librdmacm.so.1")).unwrap();
        let error = bed.loader.switch_on(&bed.lib()).unwrap_err().to_string();
        assert!(error.contains("theirs/librdmacm.so.1"), "{error}");
        assert_eq!((bed.state(), bed.files()), ("off", 1));
    }

    #[test]
    fn a_file_of_others_and_a_folder_that_sorts_first_are_left_alone() {
        let Some(bed) = Bed::new("others") else {
            println!("skipped: needs ldconfig and cc");
            return;
        };
        let first = bed.top.join("conf/00-a.conf");
        fs::rename(bed.top.join("conf/zzz.conf"), &first).unwrap();
        let error = bed.loader.switch_on(&bed.lib()).unwrap_err().to_string();
        assert!(error.contains("comes first"), "{error}");
        assert_eq!((bed.state(), bed.files()), ("off", 1));
        fs::write(bed.loader.file(), "/opt/other\n").unwrap();
        for done in [bed.loader.switch_on(&bed.lib()), bed.loader.switch_off()] {
            assert!(done.unwrap_err().to_string().contains("is not a file of"));
        }
        assert_eq!(fs::read_to_string(bed.loader.file()).unwrap(), "/opt/other\n");
    }

    #[test]
    fn names_that_ldconfig_would_misread_are_refused() {
        let loader =
            Loader { folder: "/nonexistent".into(), ldconfig: "/bin/false".into(), options: Vec::new() };
        for name in ["/a b", "/a#b", "/a:b", "/a=libc6", "/a*"] {
            let error = loader.switch_on(Path::new(name)).unwrap_err().to_string();
            assert!(error.contains("cannot read the name"), "{error}");
        }
    }

    #[test]
    fn an_old_loader_is_refused() {
        for (said, good) in [
            ("ldconfig (Ubuntu GLIBC 2.27-3ubuntu1.6) 2.27\nCopyright (C) 2018", false),
            ("ldconfig (GNU libc) 2.29\n", false),
            ("ldconfig (GNU libc) 2.30\n", true),
            ("ldconfig (Debian GLIBC 2.36-9+deb12u14) 2.36\n", true),
            ("ldconfig (GNU libc) 3.0\n", true),
            ("", false),
            ("ldconfig of another library", false),
        ] {
            assert_eq!(ensure_new_enough(said).is_ok(), good, "{said}");
        }
    }

    #[test]
    fn the_first_library_of_the_machine_counts() {
        let cache = "3 libs found\n\tlibibverbs.so.1 (libc6) => /usr/lib32/libibverbs.so.1\n\
                     \tlibibverbs.so.1 (libc6,x86-64) => /a/libibverbs.so.1\n\
                     \tlibibverbs.so.1 (libc6,x86-64) => /b/libibverbs.so.1\n"
            .replace("x86-64", if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" });
        assert_eq!(first(&cache, "libibverbs.so.1"), Some("/a/libibverbs.so.1".into()));
        assert_eq!(first(&cache, "libibverbs.so"), None);
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let error = ensure_roots_alone(&std::env::temp_dir()).unwrap_err().to_string();
        assert!(error.contains("can be changed by others than root"), "{error}");
        // In a user namespace root may be another number.
        if Path::new("/").metadata().is_ok_and(|root| root.uid() == 0) {
            assert!(ensure_roots_alone(Path::new("/usr")).is_ok());
        }
    }
}

//! Packages of a distribution, as far as they can be tried without another root.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::elf::Glibc;
use crate::make::all;
use crate::output::{Package, write};
use crate::version::VERSION;
use ferroce_harness::job::{self, Ended};
use ferroce_harness::report::Checks;
use ferroce_harness::tree;

/// For one command.
const LIMIT: Duration = Duration::from_secs(60);
/// The user without any privilege.
const NOBODY: u32 = 65_534;

/// A program in `PATH` or in the system's folders.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Makes all packages of the distribution in the folder `dist` twice, and tries them; the oldest glibc that
/// they run with. `work` is a folder for temporary files.
///
/// # Errors
/// The packages cannot be made.
pub fn inspect(checks: &mut Checks, dist: &Path, work: &Path) -> Result<Glibc> {
    let (packages, glibc) = all(dist, work)?;
    let (again, _) = all(dist, work)?;
    let bed = Bed::new(&packages)?;
    checks.check("built twice", same(&packages, &again));
    checks.check("no folder of this machine is named", nameless(dist));
    checks.check("SHA256SUMS", bed.sums());
    checks.check("the tarball", bed.tarball());
    checks.check("the bill of materials", bed.bill());
    match find("dpkg-deb") {
        Some(_) => checks.check("the .deb", bed.deb()),
        None => checks.skip("the .deb", "dpkg-deb is missing (Debian: dpkg)"),
    }
    match find("lintian") {
        Some(lintian) => checks.check("lintian", bed.lintian(&lintian)),
        None => checks.skip("lintian", "lintian is missing (Debian: lintian)"),
    }
    match Command::new(Bed::python()).args(["-c", "import venv, ensurepip"]).output() {
        Ok(output) if output.status.success() => checks.check("the wheel", bed.wheel()),
        _ => checks.skip("the wheel", "python3 with venv is missing (Debian: python3-venv)"),
    }
    Ok(glibc)
}

fn same(one: &[Package], other: &[Package]) -> Result<()> {
    ensure!(one.len() == other.len() && one.len() > 4, "{} and {} packages", one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        ensure!(one.name == other.name && one.bytes == other.bytes, "{} differs", one.name);
    }
    Ok(())
}

/// The files of the distribution, debug information included, contain neither the folder of the workspace nor
/// that of cargo.
fn nameless(dist: &Path) -> Result<()> {
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| Ok::<_, anyhow::Error>(std::env::var("HOME")? + "/.cargo"))?;
    let names = [tree::root().display().to_string(), home];
    for path in ["bin/ferroce", "bin/ferroced", "lib/libibverbs.so.1"].map(|path| dist.join(path)) {
        let bytes = std::fs::read(&path)?;
        for name in &names {
            let found = bytes.windows(name.len()).position(|window| window == name.as_bytes());
            ensure!(found.is_none(), "{} names {name}", path.display());
        }
    }
    Ok(())
}

/// Packages in a folder that everybody can read, with a home for nobody. It vanishes at the end.
struct Bed {
    folder: PathBuf,
    names: Vec<String>,
}

impl Bed {
    fn new(packages: &[Package]) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("ferroce-package.{}", std::process::id()));
        write(packages, &folder)?;
        let names = packages.iter().map(|package| package.name.clone()).collect();
        let bed = Self { folder, names };
        std::fs::set_permissions(&bed.folder, std::fs::Permissions::from_mode(0o755))?;
        let home = bed.home();
        std::fs::create_dir(&home)?;
        // Only root may; and in a user namespace that maps root alone, root is as good as nobody.
        chown(&home, Some(NOBODY), Some(NOBODY)).ok();
        Ok(bed)
    }

    fn home(&self) -> PathBuf {
        self.folder.join("home")
    }

    fn package(&self, ending: &str) -> Result<PathBuf> {
        let mut names = self.names.iter();
        let name =
            names.find(|name| name.ends_with(ending)).with_context(|| format!("no package *{ending}"))?;
        Ok(self.folder.join(name))
    }

    /// A command of nobody's, in a home of its own.
    fn nobody(&self, program: &Path, words: &[&str]) -> Result<Ended> {
        let mut command = Command::new(find("setpriv").context("setpriv is missing")?);
        command.arg("--no-new-privs");
        if self.home().metadata().is_ok_and(|home| home.uid() == NOBODY) {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        command.arg("--").arg(program).args(words).env("HOME", self.home()).current_dir(self.home());
        for name in ["XDG_RUNTIME_DIR", "LD_LIBRARY_PATH"] {
            command.env_remove(name);
        }
        self.run(command)
    }

    fn run(&self, command: Command) -> Result<Ended> {
        job::run(command, &self.folder.join("log"), LIMIT)
    }

    /// The output of a command of nobody's.
    fn says(&self, program: &Path, words: &[&str]) -> Result<String> {
        let ended = self.nobody(program, words)?;
        ensure!(ended.ok(), "{}", ended.describe());
        Ok(ended.output)
    }

    fn is_ferroce(&self, program: &Path, words: &[&str]) -> Result<()> {
        let said = self.says(program, &[words, &["--version"]].concat())?;
        ensure!(said == format!("ferroce {VERSION}\n"), "{} --version: {said}", program.display());
        Ok(())
    }

    fn sums(&self) -> Result<()> {
        let mut command = Command::new("sha256sum");
        let output =
            command.args(["--check", "--strict", "SHA256SUMS"]).current_dir(&self.folder).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{said}");
        // Itself it cannot name.
        ensure!(said.lines().count() == self.names.len() - 1, "{said}");
        Ok(())
    }

    fn tarball(&self) -> Result<()> {
        for ending in ["-gnu.tar.gz", "-gnu-debug.tar.gz"] {
            let mut command = Command::new("tar");
            command.arg("-C").arg(&self.folder).arg("-xf").arg(self.package(ending)?);
            let output = command.output().context("tar")?;
            ensure!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr));
        }
        let root = self.folder.join(format!("ferroce-{VERSION}-x86_64-linux-gnu"));
        self.is_ferroce(&root.join("bin/ferroce"), &[])?;
        let listed = self.says(&root.join("bin/ferroce"), &["doctor", "/bin/sh"])?;
        ensure!(!listed.contains("error "), "{listed}");
        for name in ["lib/librdmacm.so.1", "lib/libibumad.so.3", "lib/system/libibverbs.so"] {
            let file = root.join(name).canonicalize().with_context(|| name.to_owned())?;
            ensure!(file.ends_with("lib/libibverbs.so.1"), "{name} is {}", file.display());
        }
        ensure!(root.join("lib/libferroce-audit.so").is_file(), "the auditor of the loader is missing");
        // Both halves name each other by the same build id.
        let id = |path: &str| -> Result<String> {
            let output =
                Command::new("readelf").arg("-n").arg(root.join(path)).env("LC_ALL", "C").output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let id = said.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
            Ok(id.with_context(|| format!("{path} has no build id"))?.to_owned())
        };
        for (file, debug) in [
            ("bin/ferroced", "bin/.debug/ferroced.debug"),
            ("lib/libibverbs.so.1", "lib/.debug/libibverbs.so.1.debug"),
        ] {
            ensure!(id(file)? == id(debug)?, "{file} and {debug} do not belong together");
        }
        Ok(())
    }

    fn bill(&self) -> Result<()> {
        let bill: Value = serde_json::from_slice(&std::fs::read(self.package(".cdx.json")?)?)?;
        let format = bill.get("bomFormat").and_then(Value::as_str);
        let count = bill.get("components").and_then(Value::as_array).map_or(0, Vec::len);
        ensure!(format == Some("CycloneDX") && count > 50, "{format:?}, {count} components");
        Ok(())
    }

    fn deb(&self) -> Result<()> {
        let deb = self.package(".deb")?;
        let root = self.folder.join("deb");
        let mut command = Command::new("dpkg-deb");
        let output = command.arg("-R").arg(&deb).arg(&root).output()?;
        ensure!(output.status.success(), "dpkg-deb: {}", String::from_utf8_lossy(&output.stderr));
        for script in ["postinst", "prerm", "postrm"] {
            let status = Command::new("sh").arg("-n").arg(root.join("DEBIAN").join(script)).status()?;
            ensure!(status.success(), "{script} is no shell script");
        }
        let mut command = Command::new("md5sum");
        let output =
            command.args(["--check", "--strict", "--quiet", "DEBIAN/md5sums"]).current_dir(&root).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        self.is_ferroce(&root.join("usr/bin/ferroce"), &[])?;
        // Nothing lies where the loader looks by itself.
        let free = ["usr/lib/libibverbs.so.1", "usr/lib/x86_64-linux-gnu", "etc"];
        ensure!(free.iter().all(|path| !root.join(path).exists()), "it installs one of {free:?}");
        Ok(())
    }

    fn lintian(&self, lintian: &Path) -> Result<()> {
        let mut command = Command::new(lintian);
        command.args(["--fail-on", "error", "--tag-display-limit", "0"]).arg(self.package(".deb")?);
        let ended = self.run(command)?;
        ensure!(ended.ok() && !ended.output.contains("E: "), "{}", ended.describe());
        Ok(())
    }

    /// Path of a Python that everybody can run, if there is one.
    fn python() -> PathBuf {
        let system = PathBuf::from("/usr/bin/python3");
        if system.exists() { system } else { PathBuf::from("python3") }
    }

    fn wheel(&self) -> Result<()> {
        let venv = self.home().join("venv");
        self.says(&Self::python(), &["-m", "venv", "venv"])?;
        let wheel = self.package(".whl")?.display().to_string();
        let pip = venv.join("bin/pip");
        self.says(&pip, &["install", "--quiet", "--no-index", "--disable-pip-version-check", &wheel])?;
        self.is_ferroce(&venv.join("bin/ferroce"), &[])?;
        let python = venv.join("bin/python");
        self.is_ferroce(&python, &["-m", "ferroce"])?;
        let said = self.says(&python, &["-c", "import ferroce; print(ferroce.program())"])?;
        let program = Path::new(said.trim());
        ensure!(program.starts_with(&venv) && program.is_file(), "{said}");
        // The library has all its names, in a folder of links.
        let listed = self.says(&venv.join("bin/ferroce"), &["doctor", "/bin/sh"])?;
        ensure!(!listed.contains("error "), "{listed}");
        let search = self.says(&venv.join("bin/ferroce"), &["run", "--", "printenv", "LD_LIBRARY_PATH"])?;
        let library = Path::new(search.trim()).join("librdmacm.so.1").canonicalize().context(search)?;
        ensure!(library == program.canonicalize()?.with_file_name("../lib/libibverbs.so.1").canonicalize()?);
        self.says(&pip, &["uninstall", "--quiet", "--yes", "ferroce"])?;
        ensure!(!venv.join("bin/ferroce").exists() && !program.exists(), "pip leaves the program");
        Ok(())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

//! `ferroce doctor --pid`, asked about programs that this test starts.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const FERROCE: &str = env!("CARGO_BIN_EXE_ferroce");
/// Some user other than root.
const NOBODY: u32 = 65_534;

/// Opens the libraries in its arguments, says so, and waits for the end of its input.
const WAITER: &str = "#include <stdio.h>\n#ifndef PLAIN\n#include <dlfcn.h>\n#endif\n\
    int main(int argc, char **argv) {\n\
    #ifndef PLAIN\n for (int i = 1; i < argc; i++) if (!dlopen(argv[i], RTLD_NOW)) return 1;\n#else\n (void)argc, (void)argv;\n#endif\n\
    puts(\"ready\"); fflush(stdout); return getchar() != EOF; }\n";

/// A folder of this test's own, which ends with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ferroce-process-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("waiter.c"), WAITER).unwrap();
        Self(folder)
    }

    /// Compiles the waiter; `None` if that is impossible here, which is said.
    fn compile(&self, name: &str, cc: &str, flags: &[&str]) -> Option<PathBuf> {
        let file = self.0.join(name);
        let mut command = Command::new(cc);
        command.args(["-w", "-o"]).arg(&file).arg(self.0.join("waiter.c")).args(flags);
        match command.output() {
            Ok(output) if output.status.success() => Some(file),
            found => {
                println!("skipped {name}: {cc} {flags:?} makes no program here: {found:?}");
                None
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program that waits, until it is dropped.
struct Waiting(Child);

impl Waiting {
    fn start(program: &Path, libraries: &[&Path], environment: &[(&str, &Path)], uid: Option<u32>) -> Self {
        let mut command = Command::new(program);
        command.args(libraries).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env_remove("LD_AUDIT").env_remove("LD_LIBRARY_PATH").envs(environment.iter().copied());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{program:?} {libraries:?}");
        Self(child)
    }

    /// Runs `ferroce doctor --pid` on the process. Returns the output and the exit status.
    fn doctor(&self, words: &[&str]) -> (String, Option<i32>) {
        doctor(&[&["--pid", &self.0.id().to_string()], words].concat(), None)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Output and exit status of `ferroce doctor`, run as this user or another.
fn doctor(words: &[&str], uid: Option<u32>) -> (String, Option<i32>) {
    let mut command = Command::new(FERROCE);
    command.arg("doctor").args(words).env("FERROCE_BROKER", "none");
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8(said).unwrap(), output.status.code())
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Ferroce's library, as `cargo build` leaves it beside the program.
fn library() -> Option<PathBuf> {
    let file = Path::new(FERROCE).with_file_name("libibverbs.so");
    if !file.exists() {
        println!("skipped: libibverbs.so is not built, which tests of the whole workspace do");
    }
    file.exists().then_some(file)
}

#[test]
fn libraries_of_a_process() {
    let folder = Folder::new("libraries");
    let Some(waiter) = folder.compile("waiter", "cc", &["-ldl"]) else { return };
    let nothing = Waiting::start(&waiter, &[], &[], None);
    let (said, status) = nothing.doctor(&[]);
    assert!(said.contains(&format!("process {} runs {}", nothing.0.id(), waiter.display())), "{said}");
    assert!(said.contains("has loaded none of libibverbs, librdmacm and libibumad"), "{said}");
    assert_eq!(status, Some(0), "{said}");

    std::fs::write(folder.0.join("other.c"), "int other(void) { return 0; }\n").unwrap();
    let other = folder.0.join("librdmacm-0a1b2c3d.so.1.3.57.0");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&other).arg(folder.0.join("other.c"));
    assert!(cc.status().unwrap().success());
    let (said, status) = Waiting::start(&waiter, &[&other], &[], None).doctor(&[]);
    assert!(said.contains(&format!("{} is not ferroce's", other.display())), "{said}");
    assert_eq!(status, Some(1), "{said}");

    let Some(library) = library() else { return };
    let ours = folder.0.join("libibverbs.so.1");
    std::fs::copy(&library, &ours).unwrap();
    let loaded = Waiting::start(&waiter, &[&ours], &[("FERROCE_NETDEV", Path::new("eth9"))], None);
    let (said, status) = loaded.doctor(&[]);
    assert!(said.contains(&format!("{} is ferroce's", ours.display())), "{said}");
    assert!(
        said.contains("runs without ferroce's auditor") && said.contains("with FERROCE_NETDEV=eth9"),
        "{said}"
    );
    assert_eq!(status, Some(0), "{said}");
    let (json, _) = loaded.doctor(&["--json"]);
    assert!(json.starts_with("[{\"check\":\"process\",\"state\":\"ok\",\"found\":\"process "), "{json}");
    assert!(
        json.contains("{\"check\":\"library\",\"state\":\"ok\"") && json.contains("\"check\":\"devices\""),
        "{json}"
    );
    std::fs::remove_file(&ours).unwrap();
    let (said, _) = loaded.doctor(&[]);
    assert!(said.contains("(deleted) cannot be read any more"), "{said}");
}

#[test]
fn static_programs_those_of_musl_and_of_32_bits() {
    let folder = Folder::new("static");
    let cases = [
        ("static", "cc", &["-static", "-DPLAIN"][..], "the program is static"),
        ("musl", "musl-gcc", &["-DPLAIN"], "the program's C library is musl"),
        ("static-musl", "musl-gcc", &["-static", "-DPLAIN"], "the program is static"),
        ("short", "cc", &["-m32", "-DPLAIN"], "has 32 bits"),
    ];
    for (name, cc, flags, wanted) in cases {
        let Some(program) = folder.compile(name, cc, flags) else { continue };
        let (said, status) = Waiting::start(&program, &[], &[], None).doctor(&[]);
        assert!(said.contains(wanted), "{name}: {said}");
        assert_eq!(status, Some(1), "{name}: {said}");
    }
}

#[test]
fn programs_with_more_rights_and_of_other_users() {
    let folder = Folder::new("rights");
    if !is_root() {
        return println!("skipped: only root can start programs of other users");
    }
    let Some(waiter) = folder.compile("waiter", "cc", &["-ldl"]) else { return };
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).unwrap();
    let owned = folder.0.join("owned");
    std::fs::copy(&waiter, &owned).unwrap();
    std::os::unix::fs::chown(&owned, Some(NOBODY), None).unwrap();
    std::fs::set_permissions(&owned, PermissionsExt::from_mode(0o4755)).unwrap();
    let (said, status) = Waiting::start(&owned, &[], &[], None).doctor(&[]);
    assert!(said.contains("was started with more rights than its caller"), "{said}");
    assert_eq!(status, Some(1), "{said}");

    // The user `nobody` has no right to look at a process of root's.
    let own = Waiting::start(&waiter, &[], &[], None);
    let visible = folder.0.join("ferroce");
    std::fs::copy(FERROCE, &visible).unwrap();
    let pid = own.0.id().to_string();
    let output =
        Command::new(&visible).args(["doctor", "--pid", &pid]).uid(NOBODY).gid(NOBODY).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(&format!("process {pid} of uid 0 does not let this user look at it")), "{said}");
    assert!(said.contains(&format!("sudo ferroce doctor --pid {pid}")), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn processes_that_are_not_there() {
    let mut ended = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    let pid = ended.id().to_string();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap().contains("State:\tZ") {
        assert!(std::time::Instant::now() < deadline, "it does not end");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let (said, status) = doctor(&["--pid", &pid], None);
    assert!(said.contains(&format!("process {pid} has ended")), "{said}");
    assert_eq!(status, Some(1));
    ended.wait().unwrap();
    let (said, status) = doctor(&["--pid", "4294967295"], None);
    assert!(said.contains("there is no process 4294967295"), "{said}");
    assert_eq!(status, Some(1));
    for wrong in [&["--pid", "0"][..], &["--pid", "x"], &["--pid", "-1"], &["--pid"], &["--pid", "1", "sh"]] {
        assert_eq!(doctor(wrong, None).1, Some(2), "{wrong:?}");
    }
}

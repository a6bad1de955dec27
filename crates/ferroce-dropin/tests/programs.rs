//! Every program, library and module on this machine that links one of the three libraries resolves with ours, without
//! messages; copies instead of links are refused with a message.

use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::ElfFile64;

mod support;

const DIRECTORIES: &[&str] = &[
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/python3/dist-packages/pyverbs",
];

/// The files in `DIRECTORIES` and two levels below that need one of our names.
fn users() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left: Vec<(PathBuf, u8)> = DIRECTORIES.iter().map(|dir| (PathBuf::from(dir), 0)).collect();
    while let Some((dir, depth)) = left.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < 2 && !dir.starts_with("/usr/bin") {
                left.push((entry.path(), depth + 1));
            } else if kind.is_file() && needs_us(&entry.path()) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

fn needs_us(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else { return false };
    let mut magic = [0; 4];
    use std::io::Read;
    if (&file).read_exact(&mut magic).is_err() || &magic != b"\x7fELF" {
        return false;
    }
    let Ok(bytes) = std::fs::read(path) else { return false };
    let Ok(elf) = ElfFile64::<object::Endianness>::parse(&*bytes) else { return false };
    let (endian, sections) = (elf.endian(), elf.elf_section_table());
    let Ok(Some((dynamic, strings))) = sections.dynamic(endian, &*bytes) else { return false };
    let Ok(strings) = sections.strings(endian, &*bytes, strings) else { return false };
    use object::read::elf::Dyn;
    dynamic.iter().filter(|entry| entry.tag32(endian) == Some(object::elf::DT_NEEDED)).any(|entry| {
        let name = entry.string(endian, strings).unwrap_or_default();
        [&b"libibverbs.so.1"[..], b"librdmacm.so.1", b"libibumad.so.3"].contains(&name)
    })
}

#[test]
fn everything_that_links_us_resolves() {
    let users = users();
    if users.is_empty() {
        println!("skipped: no program here links libibverbs, librdmacm or libibumad");
        return;
    }
    let dir = support::library_dir();
    for user in &users {
        // Binds each symbol, as BIND_NOW programs do, and prints missing ones.
        let Ok(output) = Command::new("ldd").arg("-r").arg(user).env("LD_LIBRARY_PATH", &dir).output() else {
            println!("skipped: there is no ldd");
            return;
        };
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        for line in said.lines() {
            let ours = ["ibv_", "verbs_", "rdma_", "umad_", "IBVERBS_", "RDMACM_", "IBUMAD_"];
            // Plugins leave symbols of their host undefined; those are not ours.
            let open = line.contains("undefined symbol") && ours.iter().any(|part| line.contains(part));
            let versions =
                line.contains("version") && (line.contains("not found") || line.contains("no version"));
            assert!(!open && !versions, "{}: {line}", user.display());
        }
        assert!(said.contains(&*dir.to_string_lossy()), "{} does not load ours: {said}", user.display());
    }
    println!("{} files resolve", users.len());
}

#[test]
fn programs_start_without_a_word_of_the_loader() {
    let dir = support::library_dir();
    let python =
        "import pyverbs.device, pyverbs.cq, pyverbs.qp, pyverbs.mr, pyverbs.pd, pyverbs.cmid, pyverbs.addr";
    let programs: &[&[&str]] = &[
        &["ibv_devinfo", "-h"],
        &["ib_write_bw", "--version"],
        &["ib_send_lat", "--help"],
        &["rping", "-h"],
        &["qperf", "--version"],
        &["fio", "--version"],
        &["ucx_info", "-v"],
        &["fi_info", "--version"],
        &["ibstat", "-V"],
        &["/usr/bin/python3", "-c", python],
    ];
    for program in programs {
        let run = Command::new("timeout")
            .arg("20")
            .args(*program)
            .env("LD_LIBRARY_PATH", &dir)
            .env("LD_BIND_NOW", "1")
            .env("FERROCE_LOG", "off")
            .output();
        let Ok(output) = run else {
            println!("skipped: there is no timeout(1)");
            return;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(127) && !said.contains("error while loading")
            || said.contains("ModuleNotFoundError")
        {
            println!("skipped: {} is not installed", program[0]);
            continue;
        }
        for message in
            ["symbol lookup error", "error while loading", "no version information", "undefined symbol"]
        {
            assert!(!said.contains(message), "{program:?}: {said}");
        }
        let code = output.status.code();
        assert!(code.is_some_and(|code| code != 127), "{program:?}: {}\n{said}", output.status);
    }
}

/// A program linked with our folder needs the libraries by rdma-core's names, and starts with either implementation.
#[test]
fn programs_linked_here_run_on_rdma_core() {
    let dir = support::library_dir();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("linked");
    std::fs::create_dir_all(&folder).expect("target is writable");
    let (source, program) = (folder.join("linked.c"), folder.join("linked"));
    let text = "#include <infiniband/umad.h>\n#include <infiniband/umad_str.h>\n#include <rdma/rdma_cma.h>\n\
                int main(void) { return !ibv_node_type_str(0) || !rdma_event_str(0) || !umad_class_str(1); }\n";
    std::fs::write(&source, text).expect("written");
    let mut cc = Command::new("cc");
    cc.arg(&source).arg("-o").arg(&program).arg("-L").arg(&dir).args(["-lrdmacm", "-libumad", "-libverbs"]);
    if !cc.status().is_ok_and(|status| status.success()) {
        return println!("skipped: no C compiler, or no rdma-core to link with");
    }
    let bytes = std::fs::read(&program).expect("it was made");
    for name in [&b"libibverbs.so.1\0"[..], b"librdmacm.so.1\0", b"libibumad.so.3\0"] {
        let named = bytes.windows(name.len()).any(|window| window == name);
        assert!(named, "it does not need {}", String::from_utf8_lossy(name));
    }
    for path in ["", &*dir.to_string_lossy()] {
        let output = Command::new(&program).env("LD_LIBRARY_PATH", path).env("LD_BIND_NOW", "1").output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{path:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn copies_are_refused_by_name() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("copies");
    std::fs::create_dir_all(&dir).expect("target is writable");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::fs::copy(support::library(), dir.join(name)).expect("copied");
    }
    let source = dir.join("load.c");
    let program = dir.join("load");
    let text = "#include <dlfcn.h>\nint main(void) { return !dlopen(\"libibverbs.so.1\", RTLD_NOW) || \
                !dlopen(\"librdmacm.so.1\", RTLD_NOW); }\n";
    std::fs::write(&source, text).expect("written");
    match Command::new("cc").arg(&source).arg("-o").arg(&program).arg("-ldl").status() {
        Ok(status) => assert!(status.success()),
        Err(_) => return println!("skipped: there is no C compiler"),
    }
    let with_copies = Command::new(&program).env("LD_LIBRARY_PATH", &dir).output().expect("it runs");
    let said = String::from_utf8_lossy(&with_copies.stderr);
    assert_eq!(with_copies.status.code(), Some(127), "{said}");
    assert!(
        said.contains("copies/libibverbs.so.1 and ") && said.contains("copies/librdmacm.so.1 are copies"),
        "{said}"
    );
    let with_links = Command::new(&program).env("LD_LIBRARY_PATH", support::library_dir()).status();
    assert!(with_links.is_ok_and(|status| status.success()));
}

/// Runs `ibv_devices` without a broker, where none may be started.
fn without_broker(environment: &[(&str, &str)]) -> Result<std::process::Output, String> {
    let form = support::namespace()?;
    let output = Command::new(form[0])
        .args(&form[1..])
        .arg("ibv_devices")
        .env("LD_LIBRARY_PATH", support::library_dir())
        .env("FERROCE_BROKER", "none")
        .env_remove("FERROCE_LOG")
        .env_remove("VERBS_LOG_LEVEL")
        .env_remove("VERBS_LOG_FILE")
        .envs(environment.iter().copied())
        .output();
    match output {
        Ok(output) if output.status.code() == Some(127) => Err("ibv_devices is not installed".to_owned()),
        Ok(output) => Ok(output),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_missing_broker_is_logged_where_configured() {
    let told = match without_broker(&[]) {
        Ok(output) => output,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(!told.status.success());
    assert_eq!(said.matches("ferroce: error: ").count(), 1, "{said}");
    assert!(said.contains("Function not implemented"), "{said}");

    let silent = without_broker(&[("VERBS_LOG_LEVEL", "0")]).expect("as before");
    assert!(!String::from_utf8_lossy(&silent.stderr).contains("ferroce"));

    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("verbs.log");
    let _ = std::fs::remove_file(&file);
    let path = file.to_string_lossy();
    let logged = without_broker(&[("VERBS_LOG_FILE", &path), ("VERBS_LOG_LEVEL", "4")]).expect("as before");
    assert!(!String::from_utf8_lossy(&logged.stderr).contains("ferroce"));
    let text = std::fs::read_to_string(&file).expect("the log was written");
    assert!(text.contains("ferroce: error: "), "{text}");
}

#[test]
fn programs_that_look_for_devices_survive() {
    let form = match support::namespace() {
        Ok(form) => form,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let programs: &[&[&str]] = &[
        &["ibv_devinfo", "-v"],
        &["fi_info"],
        &["fi_info", "-p", "verbs"],
        &["ucx_info", "-d"],
        &["ibstat"],
        &["rping", "-s", "-a", "127.0.0.1"],
        &["ibv_ud_pingpong"],
        &["ibv_srq_pingpong"],
        &["ibv_xsrq_pingpong"],
    ];
    for program in programs {
        let output = Command::new(form[0])
            .args(&form[1..])
            .args(["timeout", "20"])
            .args(*program)
            .env("LD_LIBRARY_PATH", support::library_dir())
            .env("FERROCE_BROKER", "embedded")
            .output()
            .expect("timeout(1) runs");
        let said = String::from_utf8_lossy(&output.stderr);
        // 124: it waits for a peer. 128 and more: a signal ended it; 255: it reported an error itself.
        let code = output.status.code();
        assert!(code.is_some_and(|code| code < 128 || code == 255), "{program:?}: {}\n{said}", output.status);
        assert!(!said.contains("terminated with signal"), "{program:?}: {said}");
    }
}

//! Every way by which a program asks for the libraries, in every state of the libraries on its host, leads to ferroce's
//! library with the auditor that `ferroce run` names in `LD_AUDIT`, and to one copy of it. Without the auditor a program
//! has `LD_LIBRARY_PATH` alone, and the table says what it loads then.
//!
//! The other libraries are small stand-ins with the names, SONAMEs and symbol versions of rdma-core's, so that this runs
//! wherever there is a C compiler.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::{Dyn, ElfFile64, ProgramHeader, Sym};

mod support;

/// The copies of the libraries that a program may find on its host.
const STATES: [(&str, &str); 4] = [
    ("runtime", "rdma-core without its development package, by LD_LIBRARY_PATH"),
    ("development", "rdma-core with its development package, by LD_LIBRARY_PATH"),
    ("bundled", "renamed copies in a folder of a wheel, by RPATH"),
    ("conda", "all names in the folder of an environment, by RPATH"),
];

/// A row: the state; the program, which is the name of its link; its arguments, where `@` is the folder of the state;
/// what it loads without the auditor. `ferroce` is ours, another word the state of which it is.
type Row = (&'static str, &'static str, &'static [&'static str], &'static str);

const ROWS: &[Row] = &[
    ("runtime", "linked", &[], "ferroce"),
    ("runtime", "rpath", &[], "runtime"),
    ("runtime", "runpath", &[], "ferroce"),
    ("runtime", "plain", &["libibverbs.so.1"], "ferroce"),
    ("runtime", "plain", &["librdmacm.so.1", "libibumad.so.3", "libibverbs.so.1"], "ferroce"),
    ("runtime", "plain", &["libibverbs.so.1.14.44.0"], "runtime"),
    ("runtime", "plain", &["@/libibverbs.so.1"], "runtime"),
    ("runtime", "plain", &["@/libibverbs.so.1.14.44.0", "@/librdmacm.so.1", "libibumad.so.3"], "mixed"),
    ("runtime", "plain", &["deep:libibverbs.so.1", "deep:@/librdmacm.so.1"], "mixed"),
    ("runtime", "plain", &["new:libibverbs.so.1"], "ferroce"),
    ("runtime", "plain", UNASKED, "runtime"),
    ("runtime", "plain", &["libibverbs.so"], "nothing"),
    ("runtime", "plain", &["/usr/lib/nowhere/libibverbs.so.1"], "nothing"),
    ("development", "linked", &["libibverbs.so", "librdmacm.so", "libibumad.so"], "mixed"),
    ("development", "rpath", &["libibverbs.so.1", "librdmacm.so"], "development"),
    ("development", "runpath", &["libibverbs.so"], "mixed"),
    ("development", "plain", &["libibverbs.so"], "development"),
    ("development", "plain", &["libibverbs.so", "libibverbs.so.1", "librdmacm.so.1"], "mixed"),
    ("development", "plain", &["librdmacm.so", "libibumad.so", "libibverbs.so"], "development"),
    ("development", "plain", &["@/libibverbs.so", "libibverbs.so.1"], "development"),
    ("development", "plain", &["deep:libibverbs.so"], "development"),
    ("development", "plain", &["new:libibverbs.so", "new:librdmacm.so"], "development"),
    ("development", "plain", &["libibverbs.so", "new:libibverbs.so"], "development"),
    ("bundled", "linked", &[], "nothing"),
    ("bundled", "rpath", &["libibverbs.so.1"], "mixed"),
    ("bundled", "runpath", &["librdmacm.so.1", "libibumad.so.3"], "mixed"),
    ("bundled", "rpath", &["@/libibverbs-9f86d081884c7d65.so.1"], "bundled"),
    ("bundled", "plain", &["@/libibverbs-1de1263b.so.1.14.57.0"], "bundled"),
    ("bundled", "plain", &["@/module.so", "@/other.so", "libibverbs.so.1"], "mixed"),
    ("bundled", "plain", &["deep:@/module.so"], "bundled"),
    ("bundled", "plain", &["new:@/module.so"], "bundled"),
    ("conda", "linked", &[], "ferroce"),
    ("conda", "rpath", &[], "conda"),
    ("conda", "rpath", &["libibverbs.so", "librdmacm.so.1", "libibumad.so"], "conda"),
    ("conda", "runpath", &["libibverbs.so", "libibumad.so.3"], "mixed"),
    ("conda", "plain", &["@/libibverbs.so", "@/librdmacm.so.1"], "conda"),
    ("conda", "plain", &["@/module.so", "deep:@/libibumad.so.3"], "conda"),
    ("conda", "plain", &["new:@/module.so"], "conda"),
];

/// Programs for which no auditor is asked, so that they load the same with it and without: static ones, whose own
/// `dlopen` follows LD_LIBRARY_PATH; those of musl, which cannot load a library for glibc; and those with more rights
/// than their caller (`owned`), for which the loader ignores the environment. `nothing` includes what the host has.
const UNAUDITED: &[Row] = &[
    ("runtime", "static", &["libibverbs.so.1"], "ferroce"),
    ("runtime", "static", &["libibverbs.so.1.14.44.0", "@/librdmacm.so.1"], "runtime"),
    ("development", "static", &["libibverbs.so"], "development"),
    ("bundled", "static", &["@/module.so"], "bundled"),
    ("conda", "static", &["@/libibverbs.so"], "conda"),
    ("runtime", "musl", &["libibverbs.so.1"], "nothing"),
    ("runtime", "musl", &["@/libibverbs.so.1"], "runtime"),
    ("bundled", "musl", &["@/libibverbs-1de1263b.so.1.14.57.0"], "bundled"),
    ("conda", "musl", &["@/libibverbs.so"], "conda"),
    ("runtime", "static-musl", &["libibverbs.so.1", "@/libibverbs.so.1"], "nothing"),
    ("runtime", "owned-plain", &["libibverbs.so.1"], "nothing"),
    ("runtime", "owned-plain", &["@/libibverbs.so.1"], "runtime"),
    ("development", "owned-plain", &["@/libibverbs.so"], "development"),
    ("bundled", "owned-plain", &["@/module.so"], "bundled"),
    ("conda", "owned-rpath", &[], "conda"),
];

/// The way that an auditor cannot change: the loader asks about a name that a program passes to dlmopen, and not about
/// a path.
const UNASKED: &[&str] = &["new:@/libibverbs.so.1"];

/// Some user other than root.
const NOBODY: u32 = 65_534;

/// A version node of each library, as rdma-core has it.
const NODES: &str = "IBVERBS_1.0 { };\nIBVERBS_1.1 { global: ibv_get_device_list; };\n\
                     RDMACM_1.0 { global: rdma_create_event_channel; };\n\
                     IBUMAD_1.0 { global: umad_init; };\nREST { local: *; };\n";
const STAND_IN: &str = "void *ibv_get_device_list(int *n) { *n = 0; return 0; }\n\
                        void *rdma_create_event_channel(void) { return 0; }\nint umad_init(void) { return 0; }\n";
/// A module of Python, say, which needs the libraries.
const MODULE: &str = "extern void *ibv_get_device_list(int *);\nextern void *rdma_create_event_channel(void);\n\
                      void *use(int *n) { return n ? ibv_get_device_list(n) : rdma_create_event_channel(); }\n";

struct Fixture {
    root: PathBuf,
}

impl Fixture {
    /// Makes the libraries of all states, and the programs for each.
    fn make(name: &str) -> Result<Self, String> {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}", std::process::id()));
        let made = Self { root };
        std::fs::create_dir_all(&made.root).expect("target is writable");
        let audited = made.root.join("audited");
        std::fs::create_dir_all(&audited).expect("target is writable");
        symlink(support::library(), audited.join("libibverbs.so.1")).expect("links can be made");
        symlink(support::auditor(), audited.join("libferroce-audit.so")).expect("links can be made");
        for (file, text) in [("nodes.map", NODES), ("stand_in.c", STAND_IN), ("module.c", MODULE)] {
            std::fs::write(made.root.join(file), text).expect("target is writable");
        }
        if Command::new("cc").arg("--version").output().is_err() {
            return Err("there is no C compiler".to_owned());
        }
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/loading.c");
        let program = program.to_str().expect("a path in UTF-8");
        for (state, _) in STATES {
            let folder = made.folder(state);
            std::fs::create_dir_all(&folder).expect("target is writable");
            let verbs = made.stand_ins(state);
            let libraries: Vec<&str> = verbs.iter().map(String::as_str).collect();
            let [rpath, runpath] = ["--disable-new-dtags", "--enable-new-dtags"]
                .map(|tags| format!("-Wl,{tags},-rpath,{}", folder.display()));
            let keep = "-Wl,--no-as-needed";
            for (name, flag) in [("linked", keep), ("rpath", &*rpath), ("runpath", &*runpath)] {
                made.cc(state, name, &[&["-DLINKED", program, keep, flag], &*libraries, &["-ldl"]].concat());
            }
            made.cc(state, "plain", &[program, "-ldl"]);
            for (name, library) in [("module.so", 0), ("other.so", libraries.len() - 1)] {
                // The other one needs a copy of another package, under another name.
                let needs = if library == 0 { &libraries[..2] } else { &libraries[library..] };
                made.cc(state, name, &[&["-shared", "-fPIC", "../module.c", keep, &rpath], needs].concat());
            }
        }
        Ok(made)
    }

    fn folder(&self, state: &str) -> PathBuf {
        self.root.join(state)
    }

    /// Makes the libraries of a state: the files to link with, libibverbs and librdmacm first.
    fn stand_ins(&self, state: &str) -> Vec<String> {
        let bundled = ["libibverbs-1de1263b.so.1.14.57.0", "librdmacm-0a1b2c3d.so.1.3.57.0"];
        let other = "libibverbs-9f86d081884c7d65.so.1";
        let names: &[(&str, &str)] = match state {
            // A wheel's copy has its whole file name as SONAME.
            "bundled" => &[(bundled[0], bundled[0]), (bundled[1], bundled[1]), (other, other)],
            _ => &[
                ("libibverbs.so.1.14.44.0", "libibverbs.so.1"),
                ("librdmacm.so.1.3.44.0", "librdmacm.so.1"),
                ("libibumad.so.3.2.44.0", "libibumad.so.3"),
            ],
        };
        for (file, soname) in names {
            let soname_flag = format!("-Wl,-soname,{soname},--version-script=../nodes.map");
            self.cc(state, file, &["-shared", "-fPIC", "../stand_in.c", &soname_flag]);
            let folder = self.folder(state);
            if file != soname {
                symlink(file, folder.join(soname)).expect("links can be made");
            }
            if matches!(state, "development" | "conda") {
                let plain = &soname[..soname.len() - 2];
                symlink(soname, folder.join(plain)).expect("links can be made");
            }
        }
        names.iter().map(|(file, _)| (*file).to_owned()).collect()
    }

    /// Makes the program of a row of [`UNAUDITED`]; the reason if that is impossible here.
    fn make_unaudited(&self, state: &str, program: &str) -> Result<(), String> {
        let folder = self.folder(state);
        if folder.join(program).exists() {
            return Ok(());
        }
        if let Some(ordinary) = program.strip_prefix("owned-") {
            if !std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
                return Err("only root can make a program of another user".to_owned());
            }
            std::fs::copy(folder.join(ordinary), folder.join(program)).expect("target is writable");
            chown(folder.join(program), Some(NOBODY), None).expect("root may");
            let mode = Permissions::from_mode(0o4755);
            std::fs::set_permissions(folder.join(program), mode).expect("root may");
            return Ok(());
        }
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/loading.c");
        let (cc, flags) = match program {
            "static" => ("cc", &["-static", "-ldl"][..]),
            "musl" => ("musl-gcc", &[][..]),
            _ => ("musl-gcc", &["-static"][..]),
        };
        let made =
            Command::new(cc).args(["-w", "-o", program, source]).args(flags).current_dir(folder).output();
        match made {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!("{cc} {flags:?}: {}", String::from_utf8_lossy(&output.stderr))),
            Err(_) => Err(format!("there is no {cc} (Debian: musl-tools)")),
        }
    }

    fn cc(&self, state: &str, name: &str, words: &[&str]) {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", name]).args(words);
        let output = cc.current_dir(self.folder(state)).output().expect("cc runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs a row. Says what was loaded, in a word; and how many copies there are in the program's namespace.
    fn run(&self, (state, program, words, _): &Row, audited: bool) -> (String, String) {
        let folder = self.folder(state);
        let at = format!("{}/", folder.display());
        let mut command = Command::new(folder.join(program));
        command.args(words.iter().map(|word| word.replace("@/", &at)));
        let mut search = vec![support::library_dir()];
        if !matches!(*state, "bundled" | "conda") {
            search.push(folder);
        }
        command.env("LD_LIBRARY_PATH", std::env::join_paths(search).expect("paths without colons"));
        command.env_remove("LD_AUDIT").env_remove("LD_PRELOAD").env("FERROCE_LOG", "off");
        if audited {
            command.env("LD_AUDIT", self.root.join("audited/libferroce-audit.so"));
        }
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(127) {
            return ("nothing".to_owned(), errors.into_owned());
        }
        assert!(output.status.success(), "{state} {program} {words:?}: {}\n{said}{errors}", output.status);
        let mut found: Vec<&str> =
            said.lines().filter(|line| line.starts_with("load ")).map(|line| self.whose(line)).collect();
        found.sort_unstable();
        found.dedup();
        let whose = match &found[..] {
            [one] => *one,
            _ => "mixed",
        };
        let copies = said.lines().find_map(|line| line.strip_prefix("copies ")).expect("it counts them");
        (whose.to_owned(), copies.to_owned())
    }

    /// Whose library a line of the program names.
    fn whose(&self, line: &str) -> &'static str {
        let library = support::library().canonicalize().expect("it was built");
        if line.ends_with(&*library.to_string_lossy()) {
            return "ferroce";
        }
        // As the loaders of glibc and musl say that there is nothing.
        let failed = ["cannot open", "Error loading", "not supported"].iter().any(|why| line.contains(why));
        let state = STATES
            .iter()
            .find(|(state, _)| line.contains(&format!("{}/", self.folder(state).display())) && !failed);
        state.map_or("nothing", |(state, _)| state)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

#[test]
fn every_way_of_loading_leads_to_one_copy_of_ours() {
    if support::sanitized().is_some() {
        return println!("skipped: a library with a sanitizer runs in programs with one alone");
    }
    let fixture = match Fixture::make("loading") {
        Ok(fixture) => fixture,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let mut wrong = Vec::new();
    for row in ROWS {
        let (state, program, words, without) = row;
        let (before, _) = fixture.run(row, false);
        let (after, copies) = fixture.run(row, true);
        println!("{state:12} {program:8} {:70} {before:12} {after:8} {copies}", words.join(" "));
        let alone = words.iter().all(|word| word.starts_with("new:")) && *program == "plain";
        let want = (if *words == UNASKED { without } else { "ferroce" }, if alone { "0" } else { "1" });
        if before != *without || (&*after, &*copies) != want {
            wrong.push(format!("{row:?}: without the auditor {before}, with it {after}, {copies} copies"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn programs_that_have_no_auditor_load_what_their_loader_finds() {
    if support::sanitized().is_some() {
        return println!("skipped: a library with a sanitizer runs in programs with one alone");
    }
    let fixture = match Fixture::make("loading-unaudited") {
        Ok(fixture) => fixture,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let mut wrong = Vec::new();
    for row in UNAUDITED {
        let (state, program, words, want) = row;
        if let Err(reason) = fixture.make_unaudited(state, program) {
            println!("skipped {state} {program}: {reason}");
            continue;
        }
        let [without, with] = [false, true].map(|audited| fixture.run(row, audited).0);
        println!("{state:12} {program:12} {:50} {without:12} {with}", words.join(" "));
        if (&*without, &*with) != (want, want) {
            wrong.push(format!("{row:?}: without the auditor {without}, with it {with}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The loader maps an auditor with all that it needs at each start of a program, so ours needs nothing.
#[test]
fn the_auditor_brings_no_c_library_along() {
    let bytes = std::fs::read(support::auditor()).expect("it was built");
    let elf = ElfFile64::<object::Endianness>::parse(&*bytes).expect("a library");
    let (endian, sections) = (elf.endian(), elf.elf_section_table());
    let (dynamic, strings) = sections.dynamic(endian, &*bytes).expect("well formed").expect("dynamic");
    let strings = sections.strings(endian, &*bytes, strings).expect("well formed");
    let needed = dynamic.iter().filter(|entry| entry.tag32(endian) == Some(object::elf::DT_NEEDED));
    for name in needed.map(|entry| entry.string(endian, strings).expect("a name")) {
        assert!(name.starts_with(b"ld-linux"), "{}", String::from_utf8_lossy(name));
    }
    let symbols = sections.symbols(endian, &*bytes, object::elf::SHT_DYNSYM).expect("well formed");
    for symbol in symbols
        .iter()
        .filter(|symbol| symbol.is_undefined(endian) && symbol.st_bind() == object::elf::STB_GLOBAL)
    {
        let name = symbol.name(endian, symbols.strings()).expect("a name");
        assert_eq!(String::from_utf8_lossy(name), "__libc_stack_end");
    }
    let mut headers = elf.elf_program_headers().iter();
    assert!(
        headers.all(|header| header.p_type(endian) != object::elf::PT_TLS),
        "it has thread-local storage"
    );
}

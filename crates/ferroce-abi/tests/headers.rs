//! The layouts asserted in this crate are those of the installed C headers. Skipped with a message without the headers
//! (Debian: libibverbs-dev, librdmacm-dev, libibumad-dev) or a C compiler.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Types and members of releases after 44; older headers may lack them, and no others.
const NEWER_THAN_44: &[&str] = &[
    "ibv_comp_cntr",
    "ibv_comp_cntr_caps",
    "ibv_comp_cntr_init_attr",
    "ibv_dmah",
    "ibv_mr_init_attr",
    "ibv_port_attr.active_speed_ex",
    "ibv_qp_attach_comp_cntr_attr",
    "ibv_qp_ex.wr_flush",
    "rdma_cm_event.param.arg",
    "verbs_context.free_buf",
    "verbs_context.alloc_buf",
    "verbs_context.dm_export_dmabuf_fd",
    "verbs_context.reg_mr_ex",
    "verbs_context.dealloc_dmah",
    "verbs_context.alloc_dmah",
];

/// Structures that newer releases enlarge: only their members are compared. `verbs_context` grows at its front, so the
/// test compares the distance of its members from the end.
const GROW: &[&str] = &["verbs_context", "ibv_port_attr", "ibv_qp_ex"];

struct Layout {
    size: usize,
    members: Vec<(String, usize)>,
}

/// The `layout!` and `structure!` lines of the sources, with their C names.
fn layouts() -> BTreeMap<String, Layout> {
    let mut layouts = BTreeMap::new();
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("sources") {
        let text = std::fs::read_to_string(file.expect("listed").path()).expect("readable");
        for kind in ["layout", "structure"] {
            for block in text.split(&format!("\n{kind}!(")).skip(1) {
                let block = &block[..block.find("});").expect("closed")];
                let (head, body) = block.split_once('{').expect("opened");
                let mut head = head.split(',').map(str::trim);
                let name = head.next().expect("named").to_owned();
                let size = head.next().expect("sized").parse().expect("a number");
                let members: Vec<(&str, &str)> = if kind == "layout" {
                    body.split(',').filter_map(|member| member.split_once(':')).collect()
                } else {
                    // A member begins a line, and its offset ends that line or a later one.
                    let names = body.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(':'));
                    let offsets = body.lines().filter_map(|line| line.strip_suffix(',')?.rsplit_once(" = "));
                    let names = names.map(|(name, _)| name).filter(|name| !name.starts_with(' '));
                    names.zip(offsets.map(|(_, offset)| offset)).collect()
                };
                let number = |offset: &str| offset.trim().parse().expect("a number");
                let members =
                    members.into_iter().map(|(path, at)| (c_path(path.trim()), number(at))).collect();
                layouts.insert(name, Layout { size, members });
            }
        }
    }
    layouts
}

fn c_path(path: &str) -> String {
    let steps = path.split('.').filter(|step| !step.starts_with("unnamed"));
    let steps = steps.map(|step| if step.starts_with('_') { step } else { step.trim_end_matches('_') });
    steps.collect::<Vec<_>>().join(".")
}

fn c_type(name: &str) -> String {
    let union = matches!(name, "ibv_gid" | "umad_gid");
    format!("{} {name}", if union { "union" } else { "struct" })
}

/// A C program that prints `type size` and `type.member offset`, without the lines in `left_out`.
fn probe(layouts: &BTreeMap<String, Layout>, left_out: &[String]) -> String {
    let mut program = String::from(
        "#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n#include <infiniband/ib.h>\n\
         #include <infiniband/umad.h>\n#include <infiniband/umad_types.h>\n#include <rdma/rdma_cma.h>\n\
         #include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for (name, layout) in layouts {
        if left_out.contains(name) {
            continue;
        }
        let c = c_type(name);
        program.push_str(&format!("printf(\"{name} %zu\\n\", sizeof({c})); // {name}\n"));
        for (member, _) in &layout.members {
            let full = format!("{name}.{member}");
            if left_out.contains(&full) {
                continue;
            }
            program.push_str(&format!("printf(\"{full} %zu\\n\", offsetof({c}, {member})); // {full}\n"));
        }
    }
    program.push_str("return 0;\n}\n");
    program
}

/// The `pub const` lines of the sources: name and value.
fn constants() -> BTreeMap<String, i64> {
    let mut constants = BTreeMap::new();
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("sources") {
        let text = std::fs::read_to_string(file.expect("listed").path()).expect("readable");
        for line in text.lines().filter_map(|line| line.strip_prefix("pub const ")) {
            let (name, rest) = line.split_once(':').expect("typed");
            let value = rest.split_once('=').expect("valued").1.trim().trim_end_matches(';').replace('_', "");
            let number = match value.strip_prefix("0x") {
                Some(digits) => i64::from_str_radix(digits, 16),
                None => value.parse(),
            };
            constants.insert(name.to_owned(), number.unwrap_or_else(|_| panic!("{name} = {value}")));
        }
    }
    constants
}

#[test]
fn constants_are_those_of_the_c_headers() {
    if !Path::new("/usr/include/infiniband/umad.h").exists()
        || !Path::new("/usr/include/rdma/rdma_cma.h").exists()
    {
        println!("skipped: the C headers of libibverbs, librdmacm and libibumad are not installed");
        return;
    }
    let constants = constants();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (dir.join("constant_probe.c"), dir.join("constant_probe"));
    let mut newer: Vec<String> = Vec::new();
    loop {
        let mut program = String::from(
            "#include <infiniband/verbs.h>\n#include <infiniband/umad.h>\n#include <infiniband/umad_types.h>\n\
             #include <rdma/rdma_cma.h>\n#include <stdio.h>\nint main(void) {\n",
        );
        for name in constants.keys().filter(|name| !newer.contains(name)) {
            program.push_str(&format!("printf(\"{name} %lld\\n\", (long long)({name})); // {name}\n"));
        }
        program.push_str("return 0;\n}\n");
        std::fs::write(&source, &program).expect("target is writable");
        let Ok(output) = Command::new("cc").arg("-w").arg("-o").arg(&binary).arg(&source).output() else {
            println!("skipped: no C compiler");
            return;
        };
        if output.status.success() {
            break;
        }
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let before = newer.len();
        for error in errors.lines().filter(|line| line.contains("undeclared")) {
            let line: usize =
                error.split(':').nth(1).and_then(|n| n.parse().ok()).expect("gcc names the line");
            let name =
                program.lines().nth(line - 1).and_then(|line| line.rsplit("// ").next()).expect("marked");
            newer.push(name.to_owned());
        }
        assert!(newer.len() > before, "the probe does not compile: {errors}");
    }
    let output = Command::new(&binary).output().expect("the probe runs");
    let text = String::from_utf8(output.stdout).expect("ASCII");
    let mut compared = 0;
    for (name, value) in text.lines().map(|line| line.split_once(' ').expect("two fields")) {
        assert_eq!(constants[name], value.parse::<i64>().expect("a number"), "{name}");
        compared += 1;
    }
    println!("{compared} constants compared, {} newer than the headers: {newer:?}", newer.len());
    assert!(compared > 220);
}

#[test]
fn layouts_are_those_of_the_c_headers() {
    if !Path::new("/usr/include/infiniband/umad.h").exists()
        || !Path::new("/usr/include/rdma/rdma_cma.h").exists()
    {
        println!("skipped: the C headers of libibverbs, librdmacm and libibumad are not installed");
        return;
    }
    let layouts = layouts();
    assert!(layouts.len() > 80, "only {} layouts found", layouts.len());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = dir.join("layout_probe.c");
    let binary = dir.join("layout_probe");
    let mut left_out = Vec::new();
    loop {
        let program = probe(&layouts, &left_out);
        std::fs::write(&source, &program).expect("target is writable");
        let Ok(output) = Command::new("cc").arg("-w").arg("-o").arg(&binary).arg(&source).output() else {
            println!("skipped: no C compiler");
            return;
        };
        if output.status.success() {
            break;
        }
        // Omits members that these headers lack, if they are known to be newer.
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<&str> = program.lines().collect();
        let before = left_out.len();
        for error in errors.lines().filter(|line| line.contains(": error:")) {
            let line: usize =
                error.split(':').nth(1).and_then(|n| n.parse().ok()).expect("gcc names the line");
            let full = lines[line - 1].rsplit("// ").next().expect("marked").to_owned();
            let owner = full.split('.').next().expect("named").to_owned();
            let newer = [owner, full.clone()].into_iter().find(|name| NEWER_THAN_44.contains(&name.as_str()));
            let newer = newer.unwrap_or_else(|| panic!("the headers lack {full}: {error}"));
            if !left_out.contains(&newer) {
                left_out.push(newer);
            }
        }
        assert!(left_out.len() > before, "the probe does not compile: {errors}");
    }
    let output = Command::new(&binary).output().expect("the probe runs");
    let text = String::from_utf8(output.stdout).expect("ASCII");
    let found: BTreeMap<&str, usize> = text
        .lines()
        .map(|line| line.split_once(' ').expect("two fields"))
        .map(|(k, v)| (k, v.parse().expect("a number")))
        .collect();
    let mut compared = 0;
    for (name, layout) in &layouts {
        let Some(&size) = found.get(name.as_str()) else { continue };
        let grown = if name == "verbs_context" { layout.size.wrapping_sub(size) } else { 0 };
        assert!(
            size == layout.size || GROW.contains(&name.as_str()),
            "{name}: {} here, {size} in C",
            layout.size
        );
        for (member, offset) in &layout.members {
            let full = format!("{name}.{member}");
            if let Some(theirs) = found.get(full.as_str()) {
                assert_eq!(theirs.wrapping_add(grown), *offset, "{full}");
                compared += 1;
            }
        }
    }
    println!(
        "{compared} members of {} types compared, {} newer than the headers",
        found.len() - compared,
        left_out.len()
    );
    assert!(compared > 700);
}

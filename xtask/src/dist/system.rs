//! `lib/system`: the libraries as `ferroce system on` gives them to all programs of a host.
//!
//! There ldconfig lists files by their SONAME, and the library has one SONAME alone, `libibverbs.so.1`: the
//! links that are its other names would be left out, and programs would load rdma-core's librdmacm beside
//! ferroce's libibverbs. So each other name is a library without code here, with that SONAME and the version
//! nodes that programs ask it for, which needs `libibverbs.so.1`. The loader finds the functions there,
//! because it searches all libraries of a program.
//!
//! Each name is there without its version as well: programs such as NCCL open `libibverbs.so`, which leads to
//! rdma-core where its development package is installed. ldconfig lists such a link under the link's name.
//!
//! Before glibc 2.30 the loader gives up at the first library that has the name and not the function, so
//! `system on` refuses there. A filter (DT_FILTER) would be searched after what it stands for, but before
//! glibc 2.34 a program that opens one by dlopen is aborted.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use ferroce_harness::dist::LIBRARY;
use ferroce_harness::tree;

/// SONAMEs, and the beginning of the names of their version nodes.
const OTHERS: [(&str, &str); 2] = [("librdmacm.so.1", "RDMACM_"), ("libibumad.so.3", "IBUMAD_")];

/// Fills `lib/system`.
///
/// # Errors
/// cc does not run, or the version script of the library has no node of a name.
pub fn fill(lib: &Path) -> Result<()> {
    let folder = lib.join("system");
    std::fs::create_dir_all(&folder)?;
    symlink(Path::new("..").join(LIBRARY), folder.join(LIBRARY))?;
    for name in [LIBRARY, OTHERS[0].0, OTHERS[1].0] {
        let (plain, _) = name.rsplit_once('.').context("a name without a version")?;
        symlink(name, folder.join(plain))?;
    }
    let nodes = std::fs::read_to_string(tree::root().join("crates/ferroce-dropin/abi.map"))?;
    for (name, prefix) in OTHERS {
        let script = folder.join("map");
        std::fs::write(&script, nodes_of(&nodes, prefix)?)?;
        let mut command = Command::new("cc");
        command.args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-x", "none"]);
        command.arg(format!("-Wl,-soname,{name},--no-as-needed,--build-id=sha1,-z,noexecstack"));
        command.arg(format!("-Wl,--version-script={}", script.display())).arg(lib.join(LIBRARY)).arg("-lc");
        let output = command.arg("-o").arg(folder.join(name)).output().context("cc (Debian: gcc)")?;
        ensure!(output.status.success(), "cc {name}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::remove_file(&script)?;
    }
    Ok(())
}

/// The lines of a version script whose nodes have such a name.
fn nodes_of(script: &str, prefix: &str) -> Result<String> {
    let lines: Vec<&str> = script.lines().filter(|line| line.starts_with(prefix)).collect();
    ensure!(!lines.is_empty(), "the version script has no node {prefix}");
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_chosen_by_their_name() {
        let script = "IBVERBS_1.0 { };\nRDMACM_1.0 { };\nRDMACM_1.1 { } RDMACM_1.0;\n";
        assert_eq!(nodes_of(script, "RDMACM_").unwrap(), "RDMACM_1.0 { };\nRDMACM_1.1 { } RDMACM_1.0;\n");
        assert!(nodes_of(script, "IBUMAD_").is_err());
    }
}

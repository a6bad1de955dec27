//! The Python wheel: the programs and the library in a module, which has a script and a plugin of pytest.
//! A wheel cannot have links: `ferroce run` makes those of the library.

use std::io::{Cursor, Write};

use anyhow::{Context, Result};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::digest;
use crate::files::{Entry, Files};
use crate::output::Package;
use crate::release::Release;
use crate::version::VERSION;
use ferroce_harness::tree;

/// `ferroce-VERSION-py3-none-manylinux_2_MINOR_x86_64.whl`. The platform is that of the oldest glibc that the
/// files run with (PEP 600).
///
/// # Errors
/// A source of the package cannot be read.
pub fn make(release: &Release) -> Result<Vec<Package>> {
    let glibc = release.glibc;
    let tag = format!("py3-none-manylinux_{}_{}_x86_64", glibc.major, glibc.minor);
    let info = format!("ferroce-{VERSION}.dist-info");
    let mut files = Files::read(&tree::root().join("packaging/python"))?;
    // Python leaves these where the sources were run.
    files.0.retain(|path, _| path.ends_with(".py"));
    for path in ["bin/ferroce", "bin/ferroced", "lib/libibverbs.so.1", "lib/libferroce-audit.so"] {
        files.program(&format!("ferroce/{path}"), release.files.content(path)?);
    }
    files.extend(&format!("{info}/licenses/"), release.texts()?);
    files.text(&format!("{info}/METADATA"), metadata()?);
    let wheel = format!("Wheel-Version: 1.0\nGenerator: ferroce\nRoot-Is-Purelib: false\nTag: {tag}\n");
    files.text(&format!("{info}/WHEEL"), wheel);
    let entries =
        "[console_scripts]\nferroce = ferroce.__main__:main\n\n[pytest11]\nferroce = ferroce.pytest_plugin\n";
    files.text(&format!("{info}/entry_points.txt"), entries);
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let mut add = |path: &str, content: &[u8], mode: u32| -> Result<()> {
        // Without a time: that is the first one of the format.
        let options = SimpleFileOptions::default().compression_level(Some(9)).unix_permissions(mode);
        zip.start_file(path, options)?;
        Ok(zip.write_all(content)?)
    };
    let mut record = String::new();
    for (path, entry) in &files.0 {
        let Entry::File(content, executable) = entry else { continue };
        add(path, content, if *executable { 0o755 } else { 0o644 })?;
        record += &format!("{path},sha256={},{}\n", digest::sha256_base64(content), content.len());
    }
    record += &format!("{info}/RECORD,,\n");
    add(&format!("{info}/RECORD"), record.as_bytes(), 0o644)?;
    Ok(vec![Package {
        name: format!("ferroce-{VERSION}-{tag}.whl"),
        bytes: zip.finish()?.into_inner(),
        executable: false,
    }])
}

fn metadata() -> Result<String> {
    let page = "docs/book/src/python.md";
    let text = std::fs::read_to_string(tree::root().join(page)).with_context(|| page.to_owned())?;
    Ok(format!(
        "Metadata-Version: 2.1\nName: ferroce\nVersion: {VERSION}\n\
         Summary: RDMA (RoCE v2) in user space, without a card, a kernel module or root\n\
         License: MIT OR Apache-2.0\n\
         Keywords: rdma,roce,infiniband,verbs,pytest\n\
         Classifier: Framework :: Pytest\nClassifier: Operating System :: POSIX :: Linux\n\
         Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n{text}"
    ))
}

//! The files of devices, in the layout of the kernel's sysfs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ferroce_host::speed::{self, DEFAULT_SPEED, width_and_speed};
use ferroce_ipc::sysfs::{self, Node, Tree};
use ferroce_ipc::{CmStatus, DeviceInfo};

use crate::gids;

const NO_GID: &str = "0000:0000:0000:0000:0000:0000:0000:0000\n";

/// Writes changed files below the working directory, each by a rename: readers get the old or the new
/// content.
#[derive(Default)]
pub struct Writer {
    written: BTreeMap<PathBuf, Node>,
    counters: BTreeMap<PathBuf, u64>,
}

impl Writer {
    /// Writes the files of these devices, and removes all others.
    pub fn devices(&mut self, devices: &[DeviceInfo]) -> io::Result<()> {
        let tree = Tree {
            devices,
            speed: &|device| {
                width_and_speed(speed::of(device.ifindex, &device.netdev).unwrap_or(DEFAULT_SPEED))
            },
            netdev: &gids::netdev_name,
            numa_node: &sysfs::numa_node,
        };
        let tree: BTreeMap<PathBuf, Node> =
            tree.all().into_iter().map(|(path, node)| (path.into(), node)).collect();
        let old = std::mem::take(&mut self.written);
        for path in old.keys().filter(|path| !tree.contains_key(*path)) {
            remove(path);
        }
        // Removes the counters of removed devices, and empty directories.
        let here = |path: &Path| {
            devices.iter().any(|device| path.starts_with(format!("infiniband/{}", device.name)))
        };
        self.counters.retain(|path, _| {
            let stays = here(path);
            if !stays {
                remove(path);
            }
            stays
        });
        for (path, node) in tree.iter().filter(|(path, node)| old.get(*path) != Some(*node)) {
            write(path, node)?;
        }
        self.written = tree;
        Ok(())
    }

    /// Writes the counters of a device, and those of connection management for all.
    pub fn counters(
        &mut self,
        device: &DeviceInfo,
        counters: &[(String, u64)],
        cm: &CmStatus,
    ) -> io::Result<()> {
        for (group, name, value) in sysfs::counters(counters, cm) {
            let path = PathBuf::from(sysfs::counter_path(&device.name, group, name));
            if self.counters.get(&path) != Some(&value) {
                write_text(&path, &format!("{value}\n"))?;
                self.counters.insert(path, value);
            }
        }
        Ok(())
    }
}

fn write(path: &Path, node: &Node) -> io::Result<()> {
    match node {
        Node::Directory => fs::create_dir_all(path),
        Node::Link(target) => {
            let _ = fs::remove_file(path);
            std::os::unix::fs::symlink(target, parent_of(path)?)
        }
        Node::Text(text) => write_text(path, text),
        // A regular file cannot refuse a read.
        Node::Unreadable => write_text(path, ""),
        // [`Writer::counters`] writes it.
        Node::Counter { .. } => Ok(()),
    }
}

/// Creates the parent directory of a path.
fn parent_of(path: &Path) -> io::Result<&Path> {
    path.parent().map_or(Ok(()), fs::create_dir_all).map(|()| path)
}

fn write_text(path: &Path, text: &str) -> io::Result<()> {
    let new = Path::new("new");
    // Most entries of a GID table are equal, and share one file.
    let shared = match text {
        NO_GID => Some("no_gid"),
        "" => Some("nothing"),
        _ => None,
    };
    match shared {
        Some(shared) => {
            if !Path::new(shared).exists() {
                fs::write(shared, text)?;
            }
            fs::hard_link(shared, new)?;
        }
        None => fs::write(new, text)?,
    }
    // If both names are links to one file, `rename` keeps both.
    fs::rename(new, parent_of(path)?)?;
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a file, and the directories that become empty.
fn remove(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
    for parent in path.ancestors().skip(1).filter(|parent| parent.components().count() > 1) {
        if fs::remove_dir(parent).is_err() {
            break;
        }
    }
}

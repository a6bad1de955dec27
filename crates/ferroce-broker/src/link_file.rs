//! The links that somebody configured, in a file, so that they outlive the broker and the machine's restart.

mod kind;
mod settings;

use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use ferroce_ipc::{LinkKind, LinkSettings};
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use ferroce_host::runtime_dir::{OFlags, RuntimeDir};

const NAME: &str = "links.json";
const BAD: &str = "links.json.bad";
/// A file of ours is never longer.
const LONGEST: u64 = 1 << 20;
/// Version of the file's form.
const VERSION: u32 = 1;

/// A configured link. It comes to life when its interface is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfiguredLink {
    /// Name of the device.
    pub name: String,
    /// Transport of the link.
    #[serde(default, rename = "type", with = "kind")]
    pub kind: LinkKind,
    /// Name of its interface.
    pub netdev: String,
    /// DPDK's device arguments, if the interface is the tap of a port that DPDK drives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dpdk: Option<String>,
    /// Hardware address of the interface, so that another of that name, say in a container, is not taken for
    /// it.
    pub mac: Option<[u8; 6]>,
    /// Settings of the link. An entry for the default device exists for its settings alone.
    #[serde(default, with = "settings", skip_serializing_if = "settings::is_default")]
    pub settings: LinkSettings,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    links: Vec<ConfiguredLink>,
}

/// The file, in the directory for what outlives a restart, or in one that a test names.
#[derive(Clone, Debug, Default)]
pub struct LinkFile(Option<PathBuf>);

impl LinkFile {
    /// Reads the configured links. A file that cannot be parsed is renamed to `links.json.bad` and counts as
    /// empty. A file in a directory that another user can write to stays unread: that user could bring back
    /// an older file of ours.
    pub fn read(&self) -> Vec<ConfiguredLink> {
        let dir = self.0.clone().map_or_else(RuntimeDir::persistent_path, Ok).and_then(RuntimeDir::existing);
        let dir = match dir {
            Ok(dir) => dir,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                debug!("no link is configured: {e}");
                return Vec::new();
            }
            Err(e) => {
                warn!("{NAME} is not read, so no link is configured: {e}");
                return Vec::new();
            }
        };
        match content(&dir) {
            Ok(links) => links,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => {
                // A file that may be readable next time stays in its place.
                let fate = match is_passing(&e) {
                    true => "it stays".to_owned(),
                    false => put_aside(&dir),
                };
                let path = dir.path().join(NAME);
                warn!("{} cannot be used, so no link is configured: {e}; {fate}", path.display());
                Vec::new()
            }
        }
    }

    /// Replaces what is configured, as a whole or not at all.
    ///
    /// # Errors
    /// Errors of the file system; there may be no directory for the file.
    pub fn write(&self, links: &[ConfiguredLink]) -> io::Result<()> {
        let dir = match &self.0 {
            Some(dir) => RuntimeDir::existing(dir.clone())
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", dir.join(NAME).display())))?,
            None => RuntimeDir::persistent()?,
        };
        let path = dir.path().join(NAME);
        // Nothing is replaced that was not understood.
        if content(&dir).is_err_and(|e| e.kind() != io::ErrorKind::NotFound) {
            let fate = put_aside(&dir);
            warn!("{} could not be used; {fate}", path.display());
        }
        let fresh = format!("{NAME}.{}", std::process::id());
        let written = write_whole(&dir, &fresh, links).and_then(|()| dir.rename(&fresh, NAME));
        if written.is_err() {
            let _ = dir.remove(&fresh); // it may not be there
        }
        written.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        // So that the new name outlives a power cut, too; where that cannot be had, the old content outlives
        // it.
        let _ = dir.sync();
        Ok(())
    }
}

/// Whether the next attempt may be better.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EIO | libc::EINTR))
}

/// Keeps a file as `links.json.bad`, and says what became of it.
fn put_aside(dir: &RuntimeDir) -> String {
    match dir.rename(NAME, BAD) {
        Ok(()) => format!("kept as {}", dir.path().join(BAD).display()),
        Err(e) => format!("it stays: {e}"),
    }
}

fn content(dir: &RuntimeDir) -> io::Result<Vec<ConfiguredLink>> {
    let file = dir.file(NAME, OFlags::RDONLY | OFlags::NONBLOCK)?;
    if file.metadata()?.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is another user's"));
    }
    let mut text = Vec::new();
    if file.take(LONGEST + 1).read_to_end(&mut text)? as u64 > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "longer than a file of links can be"));
    }
    let content: Content = serde_json::from_slice(&text)?;
    if content.version != VERSION {
        let sentence = format!("version {} is unknown, this ferroced knows {VERSION}", content.version);
        return Err(io::Error::new(io::ErrorKind::InvalidData, sentence));
    }
    Ok(content.links)
}

fn write_whole(dir: &RuntimeDir, name: &str, links: &[ConfiguredLink]) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(&Content { version: VERSION, links: links.to_vec() })?;
    text.push(b'\n');
    let mut file = dir.file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
    file.write_all(&text)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_ipc::{GidType, RoceMode, TcRule};
    use std::fs;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

    fn links() -> Vec<ConfiguredLink> {
        vec![
            ConfiguredLink {
                name: "fr1".to_owned(),
                kind: LinkKind::Rxe,
                netdev: "eth0".to_owned(),
                dpdk: None,
                mac: Some([2, 0, 0, 0, 0, 255]),
                settings: LinkSettings::default(),
            },
            ConfiguredLink {
                name: "rxe0".to_owned(),
                kind: LinkKind::Rxe,
                netdev: "tun\"0".to_owned(),
                dpdk: None,
                mac: None,
                settings: LinkSettings {
                    roce_mode: RoceMode::Both,
                    cm_mode: Some(GidType::RoceV1),
                    cm_tos: 96,
                    tclass: Some(0),
                    ttl: Some(3),
                    rules: vec![TcRule {
                        tclass: 16,
                        source: "1.1.1.2".parse().unwrap(),
                        destination: "any".parse().unwrap(),
                    }],
                    crc: false,
                    congestion: false,
                    roce: false,
                    mtu: Some(ferroce_wire::PathMtu::B512),
                    datapath: ferroce_ipc::Datapath::Xdp,
                    xdp_ports: ferroce_ipc::XdpPorts::Pairs,
                },
            },
            ConfiguredLink {
                name: "siw0".to_owned(),
                kind: LinkKind::Siw,
                netdev: "eth0".to_owned(),
                dpdk: None,
                mac: Some([2, 0, 0, 0, 0, 255]),
                settings: LinkSettings { crc: false, ..LinkSettings::default() },
            },
        ]
    }

    /// An empty directory of our own, removed when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ferroce-links-{name}-{}", std::process::id()));
            fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
            Self(path)
        }

        fn file(&self) -> LinkFile {
            LinkFile(Some(self.0.clone()))
        }

        fn names(&self) -> Vec<String> {
            let entries =
                fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = entries.collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = Folder::new("read");
        assert_eq!(folder.file().read(), [], "no file yet");
        assert!(folder.names().is_empty(), "reading makes nothing");
        for links in [links(), Vec::new(), links()] {
            folder.file().write(&links).unwrap();
            assert_eq!(folder.file().read(), links);
            assert_eq!(folder.names(), ["links.json"]);
        }
    }

    #[test]
    fn a_spoilt_file_is_kept_aside() {
        let folder = Folder::new("spoilt");
        folder.file().write(&links()).unwrap();
        let whole = fs::read(folder.0.join(NAME)).unwrap();
        let later = String::from_utf8(whole.clone()).unwrap().replace("\"version\": 1", "\"version\": 2");
        let long = vec![b' '; LONGEST as usize + 1];
        let spoilt = [&whole[..whole.len() / 2], b"", b"\0\xff", b"[]", later.as_bytes(), &long];
        for bytes in spoilt {
            fs::write(folder.0.join(NAME), bytes).unwrap();
            assert_eq!(
                folder.file().read(),
                [],
                "{}",
                String::from_utf8_lossy(&bytes[..bytes.len().min(99)])
            );
            assert_eq!(folder.names(), ["links.json.bad"]);
            assert_eq!(fs::read(folder.0.join("links.json.bad")).unwrap(), bytes);
        }
        folder.file().write(&links()).unwrap();
        assert_eq!(folder.file().read(), links());
    }

    #[test]
    fn settings_are_what_can_be_set() {
        let folder = Folder::new("settings");
        let read = |settings: &str| {
            let link = format!("{{\"name\":\"fr1\",\"netdev\":\"eth0\",\"mac\":null,{settings}}}");
            fs::write(folder.0.join(NAME), format!("{{\"version\":1,\"links\":[{link}]}}")).unwrap();
            folder.file().read().first().map(|link| link.settings.clone())
        };
        assert_eq!(
            read("\"later\":1"),
            Some(LinkSettings::default()),
            "no settings, and a word that is unknown"
        );
        let mode = LinkSettings { roce_mode: RoceMode::V1, ..LinkSettings::default() };
        assert_eq!(read("\"settings\":{\"roce_mode\":\"v1\"}"), Some(mode));
        for bad in [
            "{\"roce_mode\":\"v3\"}",
            "{\"cm_mode\":\"both\"}",
            "{\"cm_mode\":\"v1\"}",
            "{\"cm_tos\":256}",
            "{\"tclass\":-1}",
            "{\"ttl\":0}",
            "{\"mtu\":1000}",
            "{\"datapath\":\"later\"}",
            "{\"xdp_ports\":\"later\"}",
            "{\"tc\":[{\"tclass\":16,\"src\":\"1.1.1.1/33\",\"dst\":\"any\"}]}",
            "7",
        ] {
            assert_eq!(read(&format!("\"settings\":{bad}")), None, "{bad}");
            assert!(folder.names().contains(&"links.json.bad".to_owned()), "{bad}");
        }
    }

    #[test]
    fn the_kind_of_a_link_is_a_word() {
        let folder = Folder::new("kind");
        let read = |word: &str| {
            let link = format!("{{\"name\":\"a\",\"netdev\":\"eth0\",\"mac\":null{word}}}");
            fs::write(folder.0.join(NAME), format!("{{\"version\":1,\"links\":[{link}]}}")).unwrap();
            folder.file().read().first().map(|link| link.kind)
        };
        assert_eq!(read(""), Some(LinkKind::Rxe), "no word");
        assert_eq!(read(",\"type\":\"rxe\""), Some(LinkKind::Rxe));
        assert_eq!(read(",\"type\":\"siw\""), Some(LinkKind::Siw));
        assert_eq!(read(",\"type\":\"later\""), None);
        folder.file().write(&links()).unwrap();
        let text = fs::read_to_string(folder.0.join(NAME)).unwrap();
        assert_eq!((text.matches("\"rxe\"").count(), text.matches("\"siw\"").count()), (2, 1), "{text}");
    }

    #[test]
    fn a_device_of_dpdk_is_kept() {
        let folder = Folder::new("dpdk");
        let mut links = links();
        links[0].dpdk = Some("net_af_packet0,iface=eth1".to_owned());
        folder.file().write(&links).unwrap();
        assert_eq!(folder.file().read(), links);
        let text = fs::read_to_string(folder.0.join(NAME)).unwrap();
        assert_eq!(text.matches("\"dpdk\"").count(), 1, "{text}");
    }

    #[test]
    fn what_was_not_understood_is_not_written_over() {
        let folder = Folder::new("over");
        fs::write(folder.0.join(NAME), "not yet read").unwrap();
        folder.file().write(&links()).unwrap();
        assert_eq!(folder.file().read(), links());
        assert_eq!(fs::read(folder.0.join("links.json.bad")).unwrap(), b"not yet read");
        let full = |errno| is_passing(&io::Error::from_raw_os_error(errno));
        assert!(full(libc::EMFILE) && full(libc::EIO) && !full(libc::ELOOP));
    }

    #[test]
    fn what_is_no_file_of_ours_is_not_followed() {
        let folder = Folder::new("link");
        fs::write(folder.0.join("other"), "{\"version\":1,\"links\":[]}").unwrap();
        std::os::unix::fs::symlink("other", folder.0.join(NAME)).unwrap();
        assert_eq!(folder.file().read(), []);
        assert_eq!(folder.names(), ["links.json.bad", "other"]);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_not_read() {
        let folder = Folder::new("open");
        folder.file().write(&links()).unwrap();
        for (mode, read) in [(0o777, Vec::new()), (0o720, Vec::new()), (0o755, links())] {
            fs::set_permissions(&folder.0, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(folder.file().read(), read, "{mode:o}");
            assert_eq!(folder.names(), ["links.json"], "the file stays, {mode:o}");
        }
        let link = LinkFile(Some(folder.0.join("link")));
        std::os::unix::fs::symlink(".", folder.0.join("link")).unwrap();
        assert_eq!(link.read(), [], "any user can make a link in /tmp");
    }

    #[test]
    fn without_a_directory_it_says_so() {
        let folder = Folder::new("none");
        let file = LinkFile(Some(folder.0.join("not there")));
        assert_eq!(file.read(), []);
        let error = file.write(&links()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("not there/links.json"), "{error}");
        assert!(folder.names().is_empty());
    }
}

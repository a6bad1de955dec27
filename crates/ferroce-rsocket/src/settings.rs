use std::path::Path;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use crate::message::mappings_for;
use crate::protocol::Sizes;

/// Options that a program may set before a stream is connected; accepted streams inherit them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Rounded to permitted values when the queue pair is created.
    pub sizes: Sizes,
    /// Permits other sockets with this option to use the same port, unless one listens.
    pub reuse: bool,
    /// `::` does not include IPv4 addresses.
    pub v6_only: bool,
    /// The IP type of service; `None` is the device's default.
    pub tos: Option<u8>,
}

/// The administrator's defaults: one file for each, with one number (rsocket(7)).
const DIRECTORY: &str = "/etc/rdma/rsocket";

/// Defaults of this host.
struct Configured {
    sizes: Sizes,
    polling: Duration,
}

static CONFIGURED: LazyLock<Configured> = LazyLock::new(|| configured(Path::new(DIRECTORY)));

fn number<T: FromStr>(directory: &Path, name: &str) -> Option<T> {
    std::fs::read_to_string(directory.join(name)).ok()?.split_whitespace().next()?.parse().ok()
}

fn configured(directory: &Path) -> Configured {
    let usual = Sizes::DEFAULT;
    let sizes = Sizes {
        send_buffer: number(directory, "wmem_default").unwrap_or(usual.send_buffer),
        receive_buffer: number(directory, "mem_default").unwrap_or(usual.receive_buffer),
        send_queue: number(directory, "sqsize_default").unwrap_or(usual.send_queue),
        receive_queue: number(directory, "rqsize_default").unwrap_or(usual.receive_queue),
        inline: number::<u16>(directory, "inline_default").map_or(usual.inline, u32::from),
        mappings: mappings_for(number(directory, "iomap_size").unwrap_or(usual.mappings)),
    };
    let polling = Duration::from_micros(number::<u32>(directory, "polling_time").unwrap_or(10).into());
    Configured { sizes, polling }
}

/// The host's defaults.
impl Default for Settings {
    fn default() -> Self {
        Self { sizes: CONFIGURED.sizes, reuse: false, v6_only: false, tos: None }
    }
}

impl Settings {
    /// The time that `rpoll` polls before it sleeps.
    pub fn polling() -> Duration {
        CONFIGURED.polling
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_give_defaults() {
        let directory = std::env::temp_dir().join(format!("ferroce-rsocket-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        for (name, text) in [
            ("mem_default", "65536\n"),
            ("sqsize_default", "100 and more"),
            ("rqsize_default", "none"),
            ("inline_default", "70000"),
            ("iomap_size", "300"),
            ("polling_time", "7"),
        ] {
            std::fs::write(directory.join(name), text).expect("a file");
        }
        let Configured { sizes, polling } = configured(&directory);
        std::fs::remove_dir_all(&directory).expect("it is there");
        let want = Sizes { receive_buffer: 65536, send_queue: 100, mappings: 256, ..Sizes::DEFAULT };
        assert_eq!((sizes, polling), (want, Duration::from_micros(7)));
        assert_eq!(configured(&directory).sizes, Sizes::DEFAULT);
    }
}

//! The ways that packets can take between two programs, for `cargo xtask test --datapath`.

use std::process::Command;

use anyhow::{Result, bail};

/// A way, and the variables that choose it.
#[derive(Debug, PartialEq, Eq)]
pub struct Datapath {
    /// Its name on the command line.
    pub name: &'static str,
    /// Sentence for `--list`.
    pub what: &'static str,
    variables: &'static [(&'static str, &'static str)],
}

/// All ways. Without any variable, programs choose by themselves.
pub const ALL: [Datapath; 5] = [
    Datapath { name: "udp", what: "UDP sockets", variables: &[("FERROCE_DATAPATH", "udp")] },
    Datapath {
        name: "udp-single",
        what: "UDP sockets without segmentation, so that nothing is merged either",
        variables: &[("FERROCE_DATAPATH", "udp"), ("FERROCE_GSO", "off")],
    },
    Datapath { name: "packet", what: "the broker's rings", variables: &[("FERROCE_DATAPATH", "packet")] },
    Datapath {
        name: "shm",
        what: "shared memory with direct copies",
        variables: &[("FERROCE_DATAPATH", "shm")],
    },
    Datapath {
        name: "shm-packets",
        what: "shared memory without direct copies",
        variables: &[("FERROCE_DATAPATH", "shm"), ("FERROCE_DIRECT", "off")],
    },
];

/// The stages that `cargo xtask test --all` repeats on each way: those whose programs exchange data and are not about one way.
pub const STAGES: [&str; 6] = ["pingpong", "vprobe", "cm", "lifecycle", "pyverbs", "perftest"];

/// The way of that name.
pub fn named(name: &str) -> Result<&'static Datapath> {
    match ALL.iter().find(|datapath| datapath.name == name) {
        Some(datapath) => Ok(datapath),
        None => {
            bail!("no datapath is called {name}; there are {}", ALL.map(|datapath| datapath.name).join(", "))
        }
    }
}

impl Datapath {
    /// Makes the programs of `command` take this way.
    pub fn choose(&self, command: &mut Command) {
        command.envs(self.variables.iter().copied());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_chooses_its_variables() {
        let mut command = Command::new("true");
        named("udp-single").unwrap().choose(&mut command);
        assert!(command.get_envs().any(|(key, value)| key == "FERROCE_GSO" && value == Some("off".as_ref())));
        assert!(named("tcp").unwrap_err().to_string().contains("udp-single, packet"));
    }
}

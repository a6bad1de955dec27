//! The runs of each program.

mod libfabric;
mod movers;
mod mpi;
mod sockets;
mod storage;
mod torch;
mod ucx;
mod verbs;

use super::software::Software;
use super::trial::Trial;

/// All runs, in the order of the page.
pub fn all() -> impl Iterator<Item = &'static Trial> {
    [
        verbs::TRIALS,
        ucx::TRIALS,
        libfabric::TRIALS,
        mpi::TRIALS,
        sockets::TRIALS,
        storage::TRIALS,
        movers::TRIALS,
        torch::TRIALS,
    ]
    .into_iter()
    .flatten()
}

/// All programs, each once, in the order of the page.
pub fn software() -> Vec<&'static Software> {
    let mut list: Vec<&Software> = Vec::new();
    for trial in all() {
        if list.iter().all(|known| known.name != trial.of.name) {
            list.push(trial.of);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_run_has_a_name_of_its_own_and_ends_that_find_each_other() {
        let names: BTreeSet<_> = all().map(|trial| (trial.of.name, trial.what)).collect();
        assert_eq!(names.len(), all().count());
        for trial in all() {
            for ends in [Some(trial.ends), trial.tcp.map(|(ends, _)| ends)].into_iter().flatten() {
                assert!((1..=2).contains(&ends.len()), "{}", trial.what);
                if let [server, client] = ends {
                    assert!(server.contains("{port}") && client.contains("{port}"), "{}", trial.what);
                    assert!(client.contains("{host}"), "{}", trial.what);
                }
            }
            assert!(trial.tcp.is_none() || trial.figure.is_some(), "{}: a ratio of what?", trial.what);
            assert!(
                !trial.what.contains('|') && !trial.limit.contains('|'),
                "{}: a cell has no bar",
                trial.what
            );
            let wheels = trial.of.wheels.is_empty();
            assert!(!trial.quick || wheels, "{}: the quick part needs Debian's packages alone", trial.what);
        }
    }

    #[test]
    fn wheels_have_exact_versions() {
        for wheel in software().iter().flat_map(|software| software.wheels) {
            assert!(wheel.contains("=="), "{wheel}");
        }
    }
}

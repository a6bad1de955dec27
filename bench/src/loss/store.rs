//! Samples outlive a run, so that a long benchmark can be made in several parts.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::grid::Cell;

/// The samples of one distribution on one machine.
#[derive(Default)]
pub struct Store {
    file: PathBuf,
    kept: Kept,
}

#[derive(Default, Serialize, Deserialize)]
struct Kept {
    /// The machine, and a hash of the library and of the seconds of a sample.
    of: String,
    cells: BTreeMap<String, Samples>,
}

#[derive(Default, Clone, Serialize, Deserialize)]
pub struct Samples {
    /// Octets a second.
    pub values: Vec<f64>,
    /// Runs without a result.
    pub failures: u32,
    /// The reason of the last one.
    pub why: String,
}

impl Samples {
    pub fn runs(&self) -> usize {
        self.values.len() + self.failures as usize
    }
}

impl Store {
    /// Reads the samples, unless they are of another machine or library, or are not wanted.
    pub fn open(file: PathBuf, of: String, again: bool) -> Self {
        let kept = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Kept>(&text).ok());
        let kept = kept.filter(|kept| kept.of == of && !again);
        Self { file, kept: kept.unwrap_or(Kept { of, cells: BTreeMap::new() }) }
    }

    pub fn of(&self, cell: &Cell) -> Samples {
        self.kept.cells.get(&cell.name()).cloned().unwrap_or_default()
    }

    /// Adds a sample, or the reason for which there is none, and writes the file.
    pub fn add(&mut self, cell: &Cell, sample: Result<f64, String>) -> Result<()> {
        let samples = self.kept.cells.entry(cell.name()).or_default();
        match sample {
            Ok(value) => samples.values.push(value),
            Err(why) => {
                samples.failures += 1;
                samples.why = why;
            }
        }
        std::fs::write(&self.file, serde_json::to_vec(&self.kept)?)
            .with_context(|| self.file.display().to_string())
    }
}

/// A number that differs if the file does.
pub fn fingerprint(file: &Path) -> Result<u64> {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(&std::fs::read(file).with_context(|| file.display().to_string())?);
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::grid::Bed;

    #[test]
    fn samples_are_read_again_unless_they_are_of_something_else() {
        let file = std::env::temp_dir().join(format!("ferroce-loss-store-{}", std::process::id()));
        let cell = Bed::Veth.cells()[0];
        let mut store = Store::open(file.clone(), "a".to_owned(), false);
        store.add(&cell, Ok(2.5)).unwrap();
        store.add(&cell, Err("no".to_owned())).unwrap();
        let again = |of: &str, again| Store::open(file.clone(), of.to_owned(), again).of(&cell);
        assert_eq!((again("a", false).values, again("a", false).runs()), (vec![2.5], 2));
        assert_eq!((again("b", false).runs(), again("a", true).runs()), (0, 0));
        std::fs::remove_file(file).unwrap();
    }
}

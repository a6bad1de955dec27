//! A writer of zip archives, as wheels are: deflated entries below 4 GiB, without anything that depends on the machine.

use std::io::Write;

use anyhow::{Context, Result};
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use crate::date::Date;

/// Version 2.0 of the format, which deflation needs.
const NEEDED: u16 = 20;
/// Made on Unix, so that the attributes are its permissions.
const MADE: u16 = 3 << 8 | NEEDED;
const DEFLATED: u16 = 8;

/// An archive that is being written.
pub struct Zip {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    count: u16,
    /// Date and time of MS-DOS.
    stamp: [u16; 2],
}

impl Zip {
    /// Entries have the time `stamp`, in seconds of the epoch; the format begins with 1980.
    pub fn new(stamp: u64) -> Self {
        Self { bytes: Vec::new(), directory: Vec::new(), count: 0, stamp: dos(stamp) }
    }

    /// Adds a file.
    ///
    /// # Errors
    /// The archive would be larger than the format permits.
    pub fn add(&mut self, path: &str, content: &[u8], executable: bool) -> Result<()> {
        let mut deflated = DeflateEncoder::new(Vec::new(), Compression::best());
        deflated.write_all(content)?;
        let deflated = deflated.finish()?;
        let mut crc = Crc::new();
        crc.update(content);
        let [date, time] = self.stamp;
        let mut common = Vec::new();
        for number in [NEEDED, 0, DEFLATED, time, date] {
            common.extend(number.to_le_bytes());
        }
        for number in [crc.sum(), u32::try_from(deflated.len())?, u32::try_from(content.len())?] {
            common.extend(number.to_le_bytes());
        }
        common.extend(u16::try_from(path.len())?.to_le_bytes());
        common.extend(0_u16.to_le_bytes());
        let offset = u32::try_from(self.bytes.len()).context("the archive is too large")?;
        self.bytes.extend(b"PK\x03\x04");
        self.bytes.extend(&common);
        self.bytes.extend(path.as_bytes());
        self.bytes.extend(&deflated);
        let mode: u32 = if executable { 0o100_755 } else { 0o100_644 };
        self.directory.extend(b"PK\x01\x02");
        self.directory.extend(MADE.to_le_bytes());
        self.directory.extend(&common);
        // Comment, disk, internal attributes.
        self.directory.extend([0; 6]);
        self.directory.extend((mode << 16).to_le_bytes());
        self.directory.extend(offset.to_le_bytes());
        self.directory.extend(path.as_bytes());
        self.count += 1;
        Ok(())
    }

    /// The whole archive.
    ///
    /// # Errors
    /// It is larger than the format permits.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        let (start, length) = (u32::try_from(self.bytes.len())?, u32::try_from(self.directory.len())?);
        self.bytes.extend(&self.directory);
        self.bytes.extend(b"PK\x05\x06\0\0\0\0");
        self.bytes.extend(self.count.to_le_bytes());
        self.bytes.extend(self.count.to_le_bytes());
        self.bytes.extend(length.to_le_bytes());
        self.bytes.extend(start.to_le_bytes());
        self.bytes.extend([0; 2]);
        Ok(self.bytes)
    }
}

/// Date and time, in UTC; the format has the years from 1980 to 2107.
fn dos(stamp: u64) -> [u16; 2] {
    let Date { year, month, day, hour, minute, second } = Date::of(stamp);
    if !(1980..2108).contains(&year) {
        return [1 << 5 | 1, 0];
    }
    // Both are below 2^16 by the ranges of their parts.
    [((year - 1980) << 9 | month << 5 | day) as u16, (hour << 11 | minute << 5 | (second / 2)) as u16]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        // 2024-02-29 12:34:56, 2026-11-23 06:05:20, and before the format begins.
        for (stamp, [year, month, day, hour, minute, second]) in [
            (1_709_210_096, [2024, 2, 29, 12, 34, 56]),
            (1_795_413_920, [2026, 11, 23, 6, 5, 20]),
            (0, [1980, 1, 1, 0, 0, 0]),
        ] {
            let want = [(year - 1980) << 9 | month << 5 | day, hour << 11 | minute << 5 | (second / 2)];
            assert_eq!(dos(stamp), want, "{stamp}");
        }
    }

    #[test]
    fn python_reads_it() {
        let mut zip = Zip::new(1_709_210_096);
        zip.add("a/program", b"content", true).unwrap();
        zip.add("b", &[0; 100_000], false).unwrap();
        let path = std::env::temp_dir().join(format!("ferroce-zip-{}", std::process::id()));
        std::fs::write(&path, zip.finish().unwrap()).unwrap();
        let script = "import sys, zipfile\nz = zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\n\
                      print([(i.filename, oct(i.external_attr >> 16), i.file_size, i.date_time) for i in z.infolist()])";
        let output = std::process::Command::new("python3").args(["-c", script]).arg(&path).output();
        std::fs::remove_file(&path).unwrap();
        let Ok(output) = output else {
            println!("skipped: python3 is not here");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let want = "[('a/program', '0o100755', 7, (2024, 2, 29, 12, 34, 56)), \
                    ('b', '0o100644', 100000, (2024, 2, 29, 12, 34, 56))]\n";
        assert_eq!(said, want, "{}", String::from_utf8_lossy(&output.stderr));
    }
}

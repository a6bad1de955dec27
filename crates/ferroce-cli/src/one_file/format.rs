//! The form of the one-file `ferroce`: the program, then the other files, then their list, then a trailer.
//! `cargo xtask package` compiles this file too, to write what the program reads.
//!
//! | part | octets |
//! |---|---|
//! | the program, which is also the file `bin/ferroce` | its length |
//! | the other files, one after the other | their lengths |
//! | the list, JSON | *n* |
//! | *n*, little-endian | 8 |
//! | SHA-256 of all of the above | 32 |
//! | the constant `MAGIC` | 16 |

use std::ops::Range;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The last octets of the file.
pub const MAGIC: [u8; 16] = *b"ferroce one file";
/// Octets of the trailer.
pub const TRAILER: usize = 8 + 32 + MAGIC.len();
/// The program's own path in the list.
pub const PROGRAM: &str = "bin/ferroce";

/// Paths are relative, with `/`, without `.` and `..`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// All of them can be executed.
    pub files: Vec<File>,
    pub links: Vec<Link>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub path: String,
    /// Offset of the content in the one file, in octets.
    pub offset: usize,
    /// Octets.
    pub length: usize,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub path: String,
    /// Relative, as the link has it.
    pub target: String,
}

/// A file that ends in [`MAGIC`], and is damaged nevertheless.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Damaged {
    #[error("its checksum is wrong")]
    Sum,
    #[error("its list of files cannot be read")]
    List,
    #[error("its list names {0:?}")]
    Path(String),
}

/// A one-file program in memory.
#[derive(Debug)]
pub struct OneFile {
    bytes: Vec<u8>,
    list: List,
    sum: [u8; 32],
}

impl OneFile {
    /// Puts the files behind the program.
    #[allow(dead_code, reason = "the program reads only")]
    pub fn new(program: &[u8], others: &[(String, Vec<u8>)], links: Vec<Link>) -> Self {
        let mut bytes = program.to_vec();
        let mut list = List { links, ..List::default() };
        list.files.push(File { path: PROGRAM.to_owned(), offset: 0, length: program.len() });
        for (path, content) in others {
            list.files.push(File { path: path.clone(), offset: bytes.len(), length: content.len() });
            bytes.extend(content);
        }
        // A list of names and numbers always has a text.
        let text = serde_json::to_vec(&list).unwrap_or_default();
        bytes.extend(&text);
        bytes.extend((text.len() as u64).to_le_bytes());
        let sum = Sha256::digest(&bytes).into();
        bytes.extend(sum);
        bytes.extend(MAGIC);
        Self { bytes, list, sum }
    }

    /// Reads one; `None` without the trailer. The checksum is left to [`Self::check`].
    ///
    /// # Errors
    /// [`Damaged::List`] and [`Damaged::Path`].
    pub fn parse(bytes: Vec<u8>) -> Result<Option<Self>, Damaged> {
        let Some(rest) = bytes.strip_suffix(&MAGIC) else { return Ok(None) };
        let (rest, sum) = rest.split_last_chunk::<32>().ok_or(Damaged::List)?;
        let (rest, length) = rest.split_last_chunk::<8>().ok_or(Damaged::List)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| Damaged::List)?;
        let start = rest.len().checked_sub(length).ok_or(Damaged::List)?;
        let text = rest.get(start..).ok_or(Damaged::List)?;
        let list: List = serde_json::from_slice(text).map_err(|_| Damaged::List)?;
        for file in &list.files {
            let end = file.offset.checked_add(file.length).filter(|end| *end <= start);
            end.ok_or(Damaged::List)?;
        }
        let paths = list.files.iter().map(|file| &file.path).chain(list.links.iter().map(|link| &link.path));
        for path in paths {
            let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
            if !path.split('/').all(plain) {
                return Err(Damaged::Path(path.clone()));
            }
        }
        let sum = *sum;
        Ok(Some(Self { list, sum, bytes }))
    }

    /// Compares the checksum.
    ///
    /// # Errors
    /// [`Damaged::Sum`].
    pub fn check(&self) -> Result<(), Damaged> {
        let summed = self.bytes.len() - MAGIC.len() - self.sum.len();
        let sum: [u8; 32] = Sha256::digest(self.bytes.get(..summed).unwrap_or_default()).into();
        if sum == self.sum { Ok(()) } else { Err(Damaged::Sum) }
    }

    /// The files with their content.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let range = |file: &File| Range { start: file.offset, end: file.offset + file.length };
        // `parse` has compared the ranges with the length.
        self.list.files.iter().map(move |file| (&*file.path, self.bytes.get(range(file)).unwrap_or_default()))
    }

    pub fn links(&self) -> &[Link] {
        &self.list.links
    }

    /// The first 16 octets of the checksum, in hexadecimal.
    pub fn key(&self) -> String {
        self.sum.iter().take(16).map(|octet| format!("{octet:02x}")).collect()
    }

    #[allow(dead_code, reason = "the program reads only")]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

//! The key by which a broker knows that an earlier one wrote a record of a connection for a program.
//!
//! Programs keep the records of their connections and bring them to the next broker. A program of another
//! user could write records of connections that never were, so a record for it carries a code under this key,
//! which brokers alone can read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use ferroce_cm::ConnectionManager;
use ferroce_host::runtime_dir::OFlags;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use tracing::warn;

use super::owner_file;

type Key = [u8; 32];

/// The key, and whether earlier brokers had it.
#[derive(Clone, Debug)]
pub struct RecordKey {
    key: Key,
    /// No broker before this one kept a key, so its records have no code.
    is_first: bool,
}

impl RecordKey {
    /// The key of this network namespace. The first broker that serves all users makes it from four random
    /// numbers.
    pub fn of_namespace(secret: [u64; 4]) -> Self {
        let mut made = Key::default();
        for (part, number) in made.as_chunks_mut().0.iter_mut().zip(secret) {
            *part = number.to_ne_bytes();
        }
        let file = owner_file::named("records", OFlags::RDWR | OFlags::CREATE);
        file.and_then(|file| Self::load(&file, made)).unwrap_or_else(|e| {
            warn!("the key of the records of connections is not kept: {e}");
            Self { key: made, is_first: true }
        })
    }

    /// The key in the file; `made`, which is written there, if it has none.
    fn load(file: &File, made: Key) -> io::Result<Self> {
        let mut key = Key::default();
        match file.read_exact_at(&mut key, 0) {
            Ok(()) => Ok(Self { key, is_first: false }),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                ferroce_host::output::without_signals(|| file.write_all_at(&made, 0))?;
                Ok(Self { key: made, is_first: true })
            }
            Err(e) => Err(e),
        }
    }

    /// Writes the code into a record for a program of this user. A connection without a record has none.
    pub fn seal(&self, uid: u32, record: &mut [u8]) {
        if let Some(mac) = self.mac(uid, record)
            && let Some(place) = record.get_mut(ConnectionManager::SEAL)
        {
            let code = mac.finalize().into_bytes();
            place.iter_mut().zip(code).for_each(|(octet, code)| *octet = code);
        }
    }

    /// Whether a broker gave this record to a program of this user, as far as it can be known.
    pub fn knows(&self, uid: u32, record: &[u8]) -> bool {
        let sealed = self.mac(uid, record).zip(record.get(ConnectionManager::SEAL));
        self.is_first || sealed.is_some_and(|(mac, code)| mac.verify_truncated_left(code).is_ok())
    }

    fn mac(&self, uid: u32, record: &[u8]) -> Option<Hmac<Sha256>> {
        let place = ConnectionManager::SEAL;
        let (before, after) = (record.get(..place.start)?, record.get(place.end..)?);
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.key).ok()?;
        for part in [&uid.to_le_bytes()[..], before, after] {
            mac.update(part);
        }
        Some(mac)
    }

    /// A key for tests.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn fake(is_first: bool) -> Self {
        Self { key: [7; 32], is_first }
    }
}

#[cfg(test)]
mod tests {
    use ferroce_host::runtime_dir::RuntimeDir;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    use super::*;

    #[test]
    fn the_key_is_made_once_and_for_brokers_alone() {
        let folder = std::env::temp_dir().join(format!("ferroce-records-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let dir = RuntimeDir::existing(folder.clone()).unwrap();
        let load =
            |made| RecordKey::load(&dir.file("key", OFlags::RDWR | OFlags::CREATE).unwrap(), made).unwrap();
        let path = folder.join("key");
        let mut record = [3; 600];
        let first = load([1; 32]);
        assert!(first.is_first);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let second = load([2; 32]);
        assert!(!second.is_first);
        assert!(!second.knows(7, &record));
        first.seal(7, &mut record);
        assert!(second.knows(7, &record));
        assert!(!second.knows(8, &record), "it is of another user's program");
        for at in 0..record.len() {
            record[at] ^= 1;
            assert!(!second.knows(7, &record), "octet {at}");
            record[at] ^= 1;
        }
        for len in 0..record.len() {
            assert!(!second.knows(7, &record[..len]), "{len} octets");
        }
        // A broker was killed before it had written all of it.
        std::fs::write(&path, [1; 31]).unwrap();
        assert!(load([4; 32]).is_first);
        assert!(!load([5; 32]).is_first);
        std::fs::remove_dir_all(&folder).unwrap();
        first.seal(7, &mut []);
    }
}

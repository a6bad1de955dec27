//! Checksums, in hexadecimal.

use md5::Md5;
use sha2::{Digest, Sha256};

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// SHA-256 in the base 64 of URLs without padding, as a wheel's list of files has it.
pub fn sha256_base64(bytes: &[u8]) -> String {
    base64(&Sha256::digest(bytes))
}

/// MD5, which dpkg compares installed files with.
pub fn md5(bytes: &[u8]) -> String {
    format!("{:x}", Md5::digest(bytes))
}

/// RFC 4648 section 5.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |n: usize| u32::from(three.get(n).copied().unwrap_or_default());
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for n in 0..=three.len() {
            text.push(char::from(LETTERS[(bits >> (18 - 6 * n) & 63) as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_the_known_ones() {
        // RFC 4648 section 10, without padding, and both special letters.
        for (bytes, want) in [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), want);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "-_8");
        // RFC 1321 appendix A.5, FIPS 180.
        assert_eq!(md5(b"abc"), "900150983cd24fb0d6963f7d28e17f72");
        assert!(sha256(b"abc").starts_with("ba7816bf8f01cfea"));
    }
}

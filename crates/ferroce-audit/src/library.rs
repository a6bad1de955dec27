//! The rule of names.

/// The libraries that ferroce replaces, without version and suffix.
pub const FAMILIES: [&str; 3] = ["libibverbs", "librdmacm", "libibumad"];
/// The fewest digits of the hash in the name of a bundled copy: auditwheel writes eight, others more.
const HASH: usize = 8;

/// Returns whether ferroce's library is loaded in place of a file: by the last component of its path, which
/// is a family, then perhaps `-` and the hash of a bundled copy, then `.so` and perhaps a version.
pub fn is_replaced(path: &[u8]) -> bool {
    let name = path.rsplit(|octet| *octet == b'/').next().unwrap_or_default();
    let rest = FAMILIES.iter().find_map(|family| after(name, family.as_bytes()));
    let rest = match rest {
        Some([b'-', rest @ ..]) => {
            let digits = rest.iter().take_while(|octet| matches!(octet, b'0'..=b'9' | b'a'..=b'f')).count();
            rest.get(digits..).filter(|_| digits >= HASH)
        }
        rest => rest,
    };
    match rest.and_then(|rest| after(rest, b".so")) {
        None => false,
        Some([]) => true,
        Some([b'.', version @ ..]) => {
            !version.is_empty() && version.iter().all(|octet| matches!(octet, b'0'..=b'9' | b'.'))
        }
        Some(_) => false,
    }
}

/// The rest of `text` behind `start`. `slice::strip_prefix` would call `memcmp`, which is not there.
pub fn after<'a>(text: &'a [u8], start: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = text.split_at_checked(start.len())?;
    head.iter().zip(start).all(|(own, other)| own == other).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_three_libraries_are_replaced_and_no_others() {
        for name in [
            "libibverbs.so",
            "libibverbs.so.1",
            "libibverbs.so.1.14.44.0",
            "/usr/lib/x86_64-linux-gnu/librdmacm.so.1",
            "$ORIGIN/../lib/libibumad.so.3.2",
            "/site-packages/nixl.libs/libibverbs-1de1263b.so.1.14.57.0",
            "librdmacm-0123456789abcdef0123456789abcdef.so.1",
        ] {
            assert!(is_replaced(name.as_bytes()), "{name}");
        }
        for name in [
            "",
            "libibverbs",
            "libibverbs.so.",
            "libibverbs.so.1a",
            "libibverbs.so1",
            "libibverbs-1.so.1",
            "libibverbs-dev1263b.so",
            "libibverbs-1de1263.so",
            "libibverbsmock.so.1",
            "liblibibverbs.so.1",
            "libibverbs.so.1/libmlx5-rdmav34.so",
            "libmlx5.so.1",
            "librspreload.so",
            "libibverbs.a",
        ] {
            assert!(!is_replaced(name.as_bytes()), "{name}");
        }
    }
}

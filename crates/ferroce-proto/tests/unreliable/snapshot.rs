//! Text that was looked at once and is compared from then on.

use std::path::Path;

/// Compares with `tests/unreliable/snapshots/NAME`. `FERROCE_BLESS=1` writes it instead: look at the diff before committing.
pub fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unreliable/snapshots").join(name);
    if std::env::var_os("FERROCE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    for (line, (got, want)) in text.lines().zip(want.lines()).enumerate() {
        assert_eq!(got, want, "{name}, line {}; FERROCE_BLESS=1 accepts it", line + 1);
    }
    assert_eq!(text.lines().count(), want.lines().count(), "{name}: FERROCE_BLESS=1 accepts it");
}

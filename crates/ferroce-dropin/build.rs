//! Passes the linker arguments of a library with versioned symbols: the version nodes, the SONAME, and lld, the only
//! linker that accepts `.symver` beside the version script of rustc.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=abi.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={dir}/abi.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
}

//! Hands the linker what a library with versioned symbols needs: the nodes, the name, and lld, which alone accepts
//! `.symver` beside the version script of rustc.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=abi.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={dir}/abi.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
}

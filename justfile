# Short names for commands that can also be typed. `cargo xtask demo` and `cargo xtask test` are the two that matter.

# Lists the commands.
default:
    @{{just_executable()}} --list --unsorted

# Shows Debian's unmodified programs on ferroce, unprivileged.
demo:
    cargo xtask demo

# Runs every check that this machine can run; `just test --list` names the stages.
test *ARGS:
    cargo xtask test {{ARGS}}

# Runs the checks that take minutes: format, sizes, documents, lints, unit tests.
quick:
    cargo xtask test --only fmt,arrows,docs,clippy,unit

# Lints and tests one crate, such as ferroce-proto.
crate NAME *ARGS:
    cargo clippy --package {{NAME}} --all-targets -- --deny warnings
    cargo test --package {{NAME}} {{ARGS}}

# Runs unmodified C programs on the library; an argument selects some by name.
programs *ARGS:
    cargo test --package ferroce-dropin --test c_programs {{ARGS}}

# Formats all sources.
fmt:
    cargo fmt --all

# Builds what a user installs, below target/dist.
dist:
    cargo xtask dist

# Measures ferroce beside TCP and UDP; `just bench --help` lists the options.
bench *ARGS:
    cargo xtask bench {{ARGS}}

# Prints lines of code, files and unsafe blocks of each crate.
size:
    cargo xtask size

# Builds the book into target/book.
book:
    cargo xtask book

# Sends messages over simulated bad networks: --seeds N --first S --messages M --jobs J; --seed S --trace repeats one.
soak *ARGS:
    cargo run --quiet --release --package ferroce-sim --example soak -- {{ARGS}}

# Runs the fuzz targets for a minute each; `just fuzz --help` lists the options.
fuzz *ARGS:
    cargo xtask fuzz {{ARGS}}

# Runs the C programs of the tests on a library with AddressSanitizer; needs nightly.
sanitizer:
    RUSTFLAGS=-Zsanitizer=address cargo +nightly build --package ferroce-dropin --target x86_64-unknown-linux-gnu --target-dir target/sanitizer
    FERROCE_SANITIZED_LIBRARY="$PWD/target/sanitizer/x86_64-unknown-linux-gnu/debug/libibverbs.so" FERROCE_C_PROGRAMS=required \
        cargo test --workspace --test c_programs --no-fail-fast

# Builds with the oldest Rust that the manifest promises.
msrv:
    cargo +1.88 check --workspace --target-dir target/msrv
    cargo +1.88 check --package ferroce --all-features --target-dir target/msrv

# Checks licences, sources and advisories of dependencies; needs cargo-deny.
deny:
    cargo deny check

# Changes checks of the product and sees tests fail; needs cargo-mutants.
guards *ARGS:
    cargo xtask guards {{ARGS}}

# Prints the lines that the tests of the crates without sockets run; needs cargo-llvm-cov.
coverage:
    cargo llvm-cov --summary-only --package ferroce-wire --package ferroce-proto --package ferroce-cm --package ferroce-fault --package ferroce-sim --package ferroce-ipc --package ferroce-rsocket

# A plan of some rules takes Miri half a minute to read, so fault's parser is not among them. The aliasing model visits each word of a
# mapping whenever a slice of it is made; ipc's words are atomics, which may be aliased, so it does without. Verbs name registered
# memory by numbers, and tests of direct copies start processes.
# Runs unit tests of the lower crates in Miri; needs nightly with `miri` and `rust-src`. A failure repeats with its seed.
miri SEED="0":
    {{just_executable()}} miri-crate {{SEED}} "" ferroce-wire aeth:: batch:: cm:: frame:: gid:: icrc:: iwarp::message iwarp::segment iwarp::terminate num:: opcode::
    {{just_executable()}} miri-crate {{SEED}} "" ferroce-fault judge::
    {{just_executable()}} miri-crate {{SEED}} "" ferroce-proto
    {{just_executable()}} miri-crate {{SEED}} "" ferroce-cm
    {{just_executable()}} miri-crate {{SEED}} -Zmiri-disable-stacked-borrows ferroce-ipc ring:: pipe:: shared:: published::
    {{just_executable()}} miri-crate {{SEED}} -Zmiri-permissive-provenance ferroce-memory --skip direct::

# Runs tests of one crate in Miri; a property tries one case, which takes seconds.
miri-crate SEED FLAGS CRATE *TESTS:
    MIRIFLAGS="-Zmiri-disable-isolation {{FLAGS}} -Zmiri-seed={{SEED}}" PROPTEST_CASES=1 cargo +nightly miri test --lib --no-fail-fast --package {{CRATE}} --target-dir target/miri -- {{TESTS}}

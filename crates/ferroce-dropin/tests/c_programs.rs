//! C programs, compiled against the system's headers and run with our library in a network namespace of their own.
//! Skipped with a message without headers, a C compiler or such a namespace.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

mod support;

/// Compiles `tests/c/NAME.c`; returns the reason if that is impossible here.
fn compile(name: &str) -> Result<PathBuf, String> {
    let sanitized = support::sanitized().is_some();
    let folder = if sanitized { "c-sanitized" } else { "c" };
    compile_into(folder, name, if sanitized { &["-fsanitize=address"] } else { &[] })
}

fn compile_into(folder: &str, name: &str, flags: &[&str]) -> Result<PathBuf, String> {
    for header in ["infiniband/verbs.h", "infiniband/umad.h", "rdma/rdma_cma.h"] {
        if !Path::new("/usr/include").join(header).exists() {
            assert!(std::env::var_os("FERROCE_C_PROGRAMS").is_none(), "there is no <{header}>");
            return Err(format!(
                "there is no <{header}> (Debian: libibverbs-dev librdmacm-dev libibumad-dev)"
            ));
        }
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).expect("target is writable");
    let program = folder.join(name);
    // Tests that run at once may use one program, and none may execute it half written.
    static BUILDS: AtomicU32 = AtomicU32::new(0);
    let fresh =
        folder.join(format!("{name}.{}.{}", std::process::id(), BUILDS.fetch_add(1, Ordering::Relaxed)));
    let output = Command::new("cc")
        .args([
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-missing-field-initializers",
            "-pthread",
        ])
        .args(flags)
        .arg("-o")
        .arg(&fresh)
        .arg(&source)
        .args(["-libverbs", "-lrdmacm", "-libumad", "-ldl"])
        .output()
        .map_err(|_| "there is no C compiler".to_owned())?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&fresh, &program).expect("target is writable");
    Ok(program)
}

fn run(program: &Path, environment: &[(&str, &str)]) -> Result<Output, String> {
    let limit = if support::sanitized().is_some() { "240" } else { "60" };
    run_within(limit, &[program], environment)
}

/// Runs a program with its arguments.
fn run_within(limit: &str, words: &[&Path], environment: &[(&str, &str)]) -> Result<Output, String> {
    let form = support::namespace()?;
    let runtime = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run");
    std::fs::create_dir_all(&runtime).expect("target is writable");
    let output = Command::new(form[0])
        .args(&form[1..])
        .args(["timeout", limit])
        .args(words)
        .env("LD_LIBRARY_PATH", support::library_dir())
        .env("FERROCE_BROKER", "embedded")
        .env("FERROCE_RUNTIME_DIR", runtime)
        .env_remove("VERBS_LOG_LEVEL")
        .env_remove("VERBS_LOG_FILE")
        .env_remove("FERROCE_LOG")
        .env("ASAN_OPTIONS", SANITIZER_OPTIONS)
        .envs(environment.iter().copied())
        .output();
    output.map_err(|error| format!("{words:?}: {error}"))
}

/// The guard of registered memory needs the fault handlers for itself. Objects of the library live until the process
/// exits, so valgrind checks leaks, with the shipped suppressions. A forked child shares its parent's pages.
const SANITIZER_OPTIONS: &str = "handle_segv=0:handle_sigbus=0:detect_leaks=0:exitcode=86";

/// The exit status of a program that skips its test.
const SKIPPED: i32 = 77;

/// Compiles and runs the program; fails with its output.
fn passes(name: &str) {
    passes_with(name, &[]);
}

/// As [`passes`]; returns what the program wrote to standard error, `None` if it was skipped.
fn passes_with(name: &str, environment: &[(&str, &str)]) -> Option<String> {
    let output = compile(name).and_then(|program| run(&program, environment));
    match output {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            if output.status.code() == Some(SKIPPED) {
                println!("skipped: {said}");
                return None;
            }
            assert!(output.status.success(), "{name}: {}\n{said}", output.status);
            Some(said.into_owned())
        }
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

/// A runtime folder whose broker makes the loopback interface an iWARP device.
fn with_an_iwarp_link(name: &str) -> String {
    let runtime = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&runtime);
    DirBuilder::new().mode(0o700).create(&runtime).expect("target is writable");
    let links = r#"{"version":1,"links":[{"name":"iw0","type":"siw","netdev":"lo","mac":null}]}"#;
    std::fs::write(runtime.join("links.json"), links).expect("target is writable");
    runtime.to_string_lossy().into_owned()
}

/// The status of a program that AddressSanitizer ended: `exitcode` of [`SANITIZER_OPTIONS`].
const OVERRUN: i32 = 86;

#[test]
fn the_sanitizer_covers_the_library() {
    if support::sanitized().is_none() {
        return println!("skipped: only with a library that was built for it");
    }
    match compile("overrun").and_then(|program| run(&program, &[])) {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(OVERRUN), "{said}");
            assert!(said.contains("heap-buffer-overflow") && said.contains("ibv_query_device"), "{said}");
        }
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[test]
fn the_thread_sanitizer_is_silent_with_the_shipped_suppressions() {
    if support::sanitized().is_some() {
        return println!("skipped: the library is built for another sanitizer");
    }
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tsan");
    let made = std::fs::write(empty.with_extension("c"), "int main(void) { return 0; }").and_then(|()| {
        Command::new("cc")
            .arg("-fsanitize=thread")
            .arg(empty.with_extension("c"))
            .arg("-o")
            .arg(&empty)
            .output()
    });
    let works = made.is_ok_and(|output| output.status.success())
        && Command::new(&empty).output().is_ok_and(|output| output.status.success());
    if !works {
        return println!("skipped: no program with ThreadSanitizer runs here");
    }
    let program = match compile_into("c-threads", "exchange", &["-fsanitize=thread"]) {
        Ok(program) => program,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let suppressions = concat!("suppressions=", env!("CARGO_MANIFEST_DIR"), "/../../docs/tsan.supp");
    match run(&program, &[("TSAN_OPTIONS", suppressions)]) {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() && !said.contains("ThreadSanitizer"),
                "{}\n{said}",
                output.status
            );
        }
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[test]
fn names_and_rates_are_those_of_the_installed_library() {
    let program = match compile("names") {
        Ok(program) => program,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let theirs = Command::new(&program).env_remove("LD_LIBRARY_PATH").output().expect("it runs");
    let ours =
        Command::new(&program).env("LD_LIBRARY_PATH", support::library_dir()).output().expect("it runs");
    assert!(theirs.stdout.len() > 5000);
    let (ours, theirs) = (String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&theirs.stdout));
    let differ: Vec<_> = ours.lines().zip(theirs.lines()).filter(|(ours, theirs)| ours != theirs).collect();
    assert!(differ.is_empty(), "ours and theirs: {differ:#?}");
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

#[test]
fn layouts_and_tables_fit_the_headers() {
    passes("traps");
}

#[test]
fn the_kernel_fills_in_address_vectors() {
    passes("neighbours");
}

#[test]
fn the_kernel_fills_in_what_connections_agree_on() {
    passes("fields");
}

#[test]
fn wrong_callers_get_errors() {
    passes("bad_input");
}

/// The log's file cannot be made, and there is no broker: both are errors, whose lines go to standard error.
#[test]
fn a_line_that_cannot_be_written_is_lost() {
    passes_with("log_lost", &[("FERROCE_BROKER", "none"), ("VERBS_LOG_FILE", "/proc/none/log")]);
}

#[test]
fn every_rc_operation_with_inline_lists() {
    passes("exchange");
}

#[test]
fn work_requests_that_are_not_aligned() {
    passes("misaligned");
}

#[test]
fn datagrams_and_their_addresses() {
    passes("datagrams");
}

#[test]
fn rsockets_are_sockets() {
    passes("rsockets");
}

#[test]
fn epoll_of_a_program_may_be_that_of_rsockets() {
    match compile_into("c-exporting", "epoll_preloaded", &["-rdynamic"]).and_then(|it| run(&it, &[])) {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "epoll_preloaded: {}\n{said}", output.status);
        }
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[test]
fn rsockets_on_link_local_addresses() {
    passes("rsocket_scopes");
}

#[test]
fn rsockets_and_bad_peers() {
    passes("rsocket_peers");
}

#[test]
fn multicast_groups() {
    for datapath in ["auto", "packet"] {
        passes_with("multicast", &[("FERROCE_DATAPATH", datapath)]);
    }
}

#[test]
fn raw_packets_and_flows() {
    passes("raw_packets");
}

#[test]
fn registrations_that_change() {
    passes("registrations");
}

#[test]
fn extended_completion_queues() {
    passes("completion");
}

#[test]
fn buffers_of_the_device() {
    passes("buffers");
}

#[test]
fn completion_counters() {
    for datapath in ["auto", "udp", "packet"] {
        passes_with("counters", &[("FERROCE_DATAPATH", datapath)]);
    }
}

#[test]
fn thread_and_parent_domains() {
    passes("domains");
}

#[test]
fn atomics_atomic_writes_and_flushes() {
    passes("words");
}

#[test]
fn memory_on_demand() {
    passes("odp");
}

#[test]
fn device_memory() {
    for datapath in ["auto", "udp", "packet"] {
        passes_with("device_memory", &[("FERROCE_DATAPATH", datapath)]);
    }
}

/// Compiles the stand-in for CUDA's driver and runs the program with its path.
fn passes_with_cuda(name: &str, environment: &[(&str, &str)]) {
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    match compile_into("c-cuda", "libcuda.so.1", &flags) {
        Ok(library) => {
            let library = library.to_string_lossy();
            let environment: Vec<_> =
                environment.iter().copied().chain([("CUDA_DRIVER", &*library)]).collect();
            passes_with(name, &environment);
        }
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[test]
fn memory_of_a_gpu() {
    passes_with_cuda("gpu", &[]);
    for datapath in ["udp", "packet"] {
        passes_with_cuda("gpu", &[("FERROCE_DATAPATH", datapath), ("SHORT", "1")]);
    }
    passes_with_cuda("gpu", &[("FERROCE_FAULT", "seed=7; drop 1% if dir=rx"), ("SHORT", "1")]);
    passes_with_cuda("gpu", &[("FERROCE_GPU", "off")]);
    passes_with_cuda("gpu_rate", &[("SHORT", "1")]);
    let runtime = with_an_iwarp_link("run-iwarp-gpu");
    passes_with_cuda("gpu", &[("FERROCE_RUNTIME_DIR", &runtime), ("IWARP", "1")]);
}

#[test]
fn programs_that_are_killed_while_they_copy_memory_of_a_gpu() {
    for datapath in ["auto", "udp"] {
        passes_with_cuda("gpu_killed", &[("FERROCE_DATAPATH", datapath)]);
    }
}

#[test]
fn memory_windows() {
    passes("windows");
}

#[test]
fn events_and_acknowledgements() {
    passes("events");
}

#[test]
fn descriptors_in_poll_and_epoll() {
    passes("descriptors");
}

#[test]
fn programs_that_wait_by_their_own_epoll() {
    passes("loops");
}

#[test]
fn shared_receive_queues() {
    passes("srq");
}

#[test]
fn xrc_domains_targets_and_queues() {
    passes("xrc");
}

#[test]
fn objects_imported_within_a_process() {
    passes("imports");
}

#[test]
fn queue_pairs_report_their_attributes() {
    passes("states");
}

#[test]
fn management_programs_see_the_devices() {
    passes("management");
}

#[test]
fn the_devices_of_a_list() {
    passes("listing");
}

#[test]
fn sysfs_is_answered_without_files() {
    passes("files");
}

#[test]
fn whoever_is_used_ends_last() {
    passes("order");
}

#[test]
fn every_opcode_on_every_type() {
    passes("opcodes");
}

#[test]
fn every_verb_refuses_unknown_arguments() {
    passes("every_verb");
}

#[test]
fn each_asynchronous_event() {
    passes("async");
}

#[test]
fn posting_and_polling_allocate_nothing() {
    if support::sanitized().is_some() {
        return println!(
            "skipped: AddressSanitizer has an allocator of its own, which the program cannot count"
        );
    }
    passes("allocation");
}

#[test]
fn signal_handlers_that_use_the_library() {
    passes("signals");
}

#[test]
fn waits_and_the_handlers_of_signals() {
    passes("waits");
}

#[test]
fn waits_for_a_device_that_is_removed() {
    passes("removed");
}

#[test]
fn waits_for_an_iwarp_device_that_is_deleted() {
    let test = std::env::current_exe().expect("this program has a file");
    let command = test.ancestors().nth(2).expect("cargo puts it two folders down").join("ferroce");
    if !command.exists() {
        return println!("skipped: ferroce is not built, which tests of the whole workspace do");
    }
    let runtime = with_an_iwarp_link("run-iwarp-removed");
    std::fs::remove_file(Path::new(&runtime).join("links.json")).expect("just written");
    let command = command.to_string_lossy();
    passes_with("removed_iwarp", &[("FERROCE_RUNTIME_DIR", &runtime), ("FERROCE", &command)]);
}

#[test]
fn each_call_that_waits_has_its_kind() {
    let rows = include_str!("c/waits.c");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ferroce-capi/src");
    let mut folders = vec![sources];
    let mut waits = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the sources are there") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(&path).expect("readable");
                let names = text.split("waiting fn ").chain(text.split("extern \"C-unwind\" fn ")).skip(1);
                let names = names.filter_map(|rest| rest.split('(').next());
                waits.extend(
                    names
                        .filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'))
                        .map(str::to_owned),
                );
            }
        }
    }
    assert!(waits.len() > 20, "{waits:?}");
    for name in &waits {
        assert!(rows.contains(&format!("{{ \"{name}\", ")), "{name} has no row in waits.c");
    }
}

#[test]
fn threads_that_are_cancelled() {
    if support::sanitized().is_some() {
        return println!("skipped: AddressSanitizer loses the stack of a thread that is cancelled");
    }
    passes("cancel");
}

#[test]
fn objects_destroyed_under_other_threads() {
    passes("threads");
}

#[test]
fn children_leave_their_parent_alone() {
    let Some(said) = passes_with("forked", &[]) else { return };
    // Each of three children is told once, although many of its calls fail.
    let sentence = "the device was opened before fork: use it in the parent, or open it in the child";
    assert_eq!(said.matches(sentence).count(), 3, "{said}");
}

/// The reasons that the library told.
fn reasons(said: &str) -> Vec<&str> {
    said.lines().filter_map(|line| line.strip_prefix("ferroce: error: ")).collect()
}

/// Every mistake costs a line, however often it is made.
#[test]
fn refused_calls_say_why() {
    let Some(said) = passes_with("reasons", &[]) else { return };
    let lines = [
        "a completion queue: 1073741824 entries: a completion queue has 1 to 1048576",
        "ibv_create_qp: max_send_wr 1073741824 is beyond the limit of 16384",
        "a send work request: a queue pair in RESET takes no send work requests",
        "ibv_modify_qp: ah_attr.grh.sgid_index 77 is empty; index 0 is 127.0.0.1 (RoCE v2)",
        "ibv_modify_qp: port 2 does not exist: the device has port 1 only",
        "ibv_modify_qp: RESET to INIT needs IBV_QP_PORT in attr_mask",
        "a work request: 2 SGEs, at most 1",
        "ibv_modify_qp: IBV_QP_MIN_RNR_TIMER is 40; it can be 0 to 31",
        "ibv_modify_qp: INIT to RTR does not take IBV_QP_SQ_PSN, the bits 0x2000000 in attr_mask",
        "ibv_modify_qp: ah_attr.is_global is 0: RoCE needs a GID",
        "a memory region: the memory is not mapped, or does not permit the access asked for",
        "a memory region: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE",
        "ibv_attach_mcast: only a queue pair of service UD can be attached to a multicast group",
    ];
    assert_eq!(reasons(&said), lines);
    for (name, value) in [("FERROCE_LOG", "off"), ("VERBS_LOG_LEVEL", "0")] {
        assert_eq!(passes_with("reasons", &[(name, value)]).as_deref(), Some(""), "{name}");
    }
}

#[test]
fn connections_that_are_not_made_say_why() {
    let Some(said) = passes_with("unconnected", &[]) else { return };
    let lines = [
        "an address: 10.9.8.7 is not an address of this host",
        "connection management: address in use: port 7471 is in use",
        "rdma_connect: 127.0.0.1:7999: refused: nobody listens there; start the server first, and compare the port",
        "an address: no route to 10.9.8.7: Network is unreachable (os error 101)",
        "rdma_connect: the id has no address; rdma_resolve_route comes before",
        "rdma_resolve_route: the id has a local address alone; rdma_resolve_addr comes before",
        "rdma_listen: the id listens",
        "rdma_accept: the id listens; RDMA_CM_EVENT_CONNECT_REQUEST comes before",
    ];
    assert_eq!(reasons(&said), lines);
}

/// Each work request that fails costs a line in front of that of its story.
#[test]
fn failed_work_requests_say_why() {
    let stories = [
        ("a wrong rkey", "RDMA_WRITE", "IBV_WC_REM_ACCESS_ERR: the peer refuses key, range or permission"),
        ("behind the region", "RDMA_READ", "check rkey and remote_addr, and IBV_ACCESS_REMOTE_*"),
        (
            "a receive that is too short",
            "SEND",
            "check that the peer's receive buffer is as long as the message",
        ),
        ("no receive", "SEND", "the peer has no receive posted, and said so 3 times"),
        ("a wrong lkey", "SEND", "an sge names memory that is not registered so"),
        (
            "a peer that is not in RTR",
            "SEND",
            "check that the peer lives and was in RTR before this end sent",
        ),
        ("a peer that was reset", "RDMA_READ", "IBV_WC_RETRY_EXC_ERR: the peer "),
        ("PSNs that do not fit", "RDMA_READ", "IBV_WC_RETRY_EXC_ERR: the peer "),
        ("a path_mtu that differs", "RDMA_WRITE", "that path_mtu is the same at both ends"),
        (
            "a deregistered rkey",
            "FETCH_ADD",
            "IBV_WC_REM_ACCESS_ERR: the peer refuses key, range or permission",
        ),
        ("a deregistered lkey", "RDMA_WRITE", "an sge names memory that is not registered so; check lkey"),
        ("a peer that was killed", "SEND", "the peer answers no more"),
        ("a full completion queue", "", "ibv_poll_cq: the completion queue overflowed"),
        ("a hundred flushes", "RDMA_READ", "IBV_WC_LOC_PROT_ERR: an sge names memory"),
        ("a flush", "", ""),
    ];
    for datapath in ["shm", "udp", "packet"] {
        let Some(said) = passes_with("failures", &[("FERROCE_DATAPATH", datapath)]) else { return };
        let (mut told, mut seen) = (Vec::new(), Vec::new());
        for line in said.lines() {
            match line.strip_prefix("story: ") {
                Some(story) => seen.push((story, std::mem::take(&mut told))),
                None => told.push(line),
            }
        }
        assert_eq!(seen.len(), stories.len(), "{datapath}: {said}");
        for ((story, opcode, words), (seen, told)) in stories.iter().zip(&seen) {
            let begin = format!("ferroce: error: {opcode} with wr_id 7 on queue pair 0x");
            let is_it = |line: &&&str| match *opcode {
                "" => line.strip_prefix("ferroce: error: ").is_some_and(|line| line.starts_with(words)),
                _ => line.starts_with(&begin) && line.contains(words) && line.contains("(`ferroce explain "),
            };
            let expected = usize::from(!words.is_empty());
            assert_eq!((seen, told.iter().filter(is_it).count()), (story, expected), "{datapath}: {told:#?}");
            assert!(told.len() <= 2, "{datapath}: {story}: {told:#?}");
        }
        assert!(said.contains("RECV with wr_id 1 on queue pair"), "{said}");
        assert!(said.contains("IBV_WC_LOC_LEN_ERR: the message is longer than the receive buffer"), "{said}");
    }
}

#[test]
fn ids_and_their_events() {
    passes("ids");
}

#[test]
fn addresses_and_routes_of_ids() {
    passes("resolve");
}

#[test]
fn queue_pairs_of_ids() {
    passes("id_queues");
}

#[test]
fn sends_that_the_peer_has_are_not_flushed() {
    passes("last_words");
}

#[test]
fn a_program_that_is_stopped_keeps_its_connections() {
    passes("stopped");
}

#[test]
fn a_copy_of_an_old_connection_reaches_no_memory() {
    passes("reconnected");
}

#[test]
fn what_gathers_leaves_before_the_queue_pair_ends() {
    passes("gathered");
}

#[test]
fn connections_of_ids() {
    passes("connect");
}

#[test]
fn clients_that_are_lost_at_each_step() {
    passes("lost_clients");
}

#[test]
fn clients_of_streams_that_are_lost_at_each_step() {
    let runtime = with_an_iwarp_link("run-iwarp");
    passes_with("lost_clients", &[("FERROCE_RUNTIME_DIR", &runtime), ("IWARP", "1")]);
}

#[test]
fn each_call_fits_on_the_smallest_stack() {
    if support::sanitized().is_some() {
        return println!("skipped: the sanitizer makes all frames larger");
    }
    passes("small_stack");
    passes_with("small_stack", &[("FERROCE_DATAPATH", "udp")]);
    passes_with("small_stack", &[("FERROCE_DATAPATH", "udp"), ("FERROCE_GSO", "off")]);
    passes_with("small_stack", &[("FERROCE_FAULT", "delay=1us if op=send")]);
    let runtime = with_an_iwarp_link("run-iwarp-stack");
    passes_with("small_stack", &[("FERROCE_RUNTIME_DIR", &runtime), ("IWARP", "1")]);
}

#[test]
fn valgrind_knows_the_stacks_of_the_library() {
    if support::sanitized().is_some() {
        return println!("skipped: the library is built for another sanitizer");
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return println!("skipped: valgrind is not installed");
    }
    let program = match compile("small_stack") {
        Ok(program) => program,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let suppressions = concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/../../docs/valgrind.supp");
    let words = ["valgrind", "--quiet", suppressions].map(Path::new);
    let words: Vec<_> = words.into_iter().chain([&*program]).collect();
    match run_within("300", &words, &[("PLAIN", "1")]) {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !said.contains("Invalid "), "{}\n{said}", output.status);
        }
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[test]
fn each_call_makes_the_system_calls_that_are_listed() {
    let page = include_str!("../../../docs/book/src/system-calls.md");
    // Strings of C that follow each other are one.
    let program: String = include_str!("c/sandboxed.c").split("\"\n\t\t\"").collect();
    let (_, rows) = program.split_once("} rows[] = {").expect("the program has rows");
    let (rows, _) = rows.split_once("};").expect("they end");
    let rows: Vec<_> = rows.split("\t{\n").skip(1).collect();
    assert!(rows.len() > 5, "{rows:?}");
    for row in rows {
        let cells: Vec<_> = row.split('"').skip(1).step_by(2).collect();
        assert!(
            page.contains(&format!("\n| {} | {} | ", cells[0], cells[1].replace("`, `", ", "))),
            "{cells:?} is no row of the page"
        );
    }
    if support::sanitized().is_some() {
        return println!("skipped: the sanitizer makes system calls of its own");
    }
    for datapath in ["auto", "udp", "packet"] {
        passes_with("sandboxed", &[("FERROCE_DATAPATH", datapath)]);
        passes_with("sandboxed", &[("FERROCE_DATAPATH", datapath), ("CROWD", "1")]);
    }
    let runtime = with_an_iwarp_link("run-iwarp-sandboxed");
    passes_with("sandboxed", &[("FERROCE_RUNTIME_DIR", &runtime), ("IWARP", "1")]);
}

#[test]
fn loopback_addresses_beside_links() {
    passes_with("connect", &[("WITH_A_LINK", "1")]);
}

#[test]
fn ids_get_address_change_events() {
    passes("addr_change");
}

#[test]
fn datagrams_of_ids() {
    passes("datagram_ids");
}

#[test]
fn groups_of_ids() {
    passes("groups");
}

#[test]
fn names_that_take_long_take_few_threads() {
    passes("lookups");
}

#[test]
fn later_functions_of_ids_and_vendor_options() {
    passes("id_extras");
}

#[test]
fn calls_that_rules_make_fail() {
    passes("faulted");
}

#[test]
fn each_call_that_is_judged_at_its_entry_fails() {
    let page = include_str!("../../../docs/book/src/faults.md");
    let (_, list) = page.split_once("Without `dev`: ").expect("the page lists them");
    let (list, _) = list.split_once(". A word is").expect("the list ends");
    let words: Vec<_> = list.split(", ").map(|word| word.trim_matches('`')).collect();
    assert!(words.len() > 60, "{words:?}");
    // The program makes its objects by the first call of these two.
    let rest: Vec<_> =
        words.iter().copied().filter(|word| !["get_device_list", "alloc_dm"].contains(word)).collect();
    let rules = format!(
        "fail=ERANGE if verb=get_device_list,nth=2..;fail=ERANGE if verb=alloc_dm,nth=2..;fail=ERANGE if verb={}",
        rest.join("|")
    );
    passes_with("failing", &[("WORDS", &words.join("|")), ("FERROCE_FAULT", &rules)]);
}

#[test]
fn unimplemented_calls_fail() {
    passes("refused");
}

/// Compiles the program and runs it with these words; the exit status and what it wrote to standard error, `None`
/// if it cannot run here.
fn told_by(name: &str, words: &[&str], environment: &[(&str, &str)]) -> Option<(Option<i32>, String)> {
    let ended = compile(name).and_then(|program| {
        let mut all = vec![program.as_path()];
        all.extend(words.iter().map(Path::new));
        run_within("60", &all, environment)
    });
    match ended {
        Ok(output) => Some((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

/// Each program has one fault, which is told with the program's frames, and nothing is told without it.
#[test]
fn checks_find_planted_faults_and_nothing_else() {
    let stories = [
        ("overrun", "has room for 64 of 65 signaled work requests"),
        ("overrun-by-two", "has room for 64 of 65 signaled work requests"),
        ("short-buffer", "longer than the 32 octets of the receive with wr_id 7"),
        ("short-shared-buffer", "longer than the 1 octets of the receive with wr_id 9"),
        ("changed-send", "memory of the SEND with wr_id 1"),
        ("changed-write", "memory of the RDMA WRITE with wr_id 1"),
        ("changed-extended", "memory of the RDMA WRITE with wr_id 5"),
        ("local-key", "post of RDMA WRITE with wr_id 1: lkey"),
        ("receive-key", "post of receive with wr_id 0: lkey"),
        ("remote-key", "post of RDMA WRITE with wr_id 1: rkey"),
        ("unsignaled", "the 16 work requests that queue pair"),
        ("fence-read", "the RDMA READ with wr_id 1 writes; set IBV_SEND_FENCE"),
        ("fence-atomic", "the atomic with wr_id 1 writes; set IBV_SEND_FENCE"),
        ("fence-inline", "the RDMA READ with wr_id 1 writes; wait for"),
        ("never-armed", "none of the 1 completion queues of the channel is armed"),
        ("armed-once", "none of the 1 completion queues of the channel is armed"),
        ("reset", "loses the completions of 1 signaled work requests"),
        ("family-of-handle", "ibv_create_ah: sgid_index 0 is an address of IPv4"),
        ("family-of-path", "ibv_modify_qp: sgid_index 0 is an address of IPv4"),
        ("card-cq", "max_cqe is 40000, and rxe has at most 32767"),
        ("card-qp", "max_send_sge is 31, and mlx5 has at most 30"),
        ("leak", "exit: 1 ibv_mr not destroyed"),
    ];
    for (story, finding) in stories {
        let environment = [("FERROCE_CHECK", "mlx5,rxe")];
        let Some((status, said)) = told_by("checked", &[story], &environment) else { return };
        assert_eq!(status, Some(0), "{story}: {said}");
        let count = if story == "leak" { "): 2\n" } else { "): 1\n" };
        assert!(said.contains(finding) && said.ends_with(count), "{story}: {said}");
        assert!(said.contains("\n    at "), "{story}: {said}");
        let right = told_by("checked", &[story, "right"], &environment).unwrap_or_default();
        assert!(right.0 == Some(0) && right.1.ends_with("): 0\n"), "{story}: {right:?}");
        assert!(!right.1.contains("\n    at "), "{story}: {right:?}");
    }
}

/// A seed under which all four races show, each time; right programs survive it.
#[test]
fn exploration_finds_planted_races_and_repeats_them() {
    let rules = ferroce_fault::exploration(0);
    for race in ["missed-event", "solicited-event", "order", "reuse"] {
        let environment = [("FERROCE_FAULT", &*rules)];
        for _ in 0..2 {
            let Some((status, said)) = told_by("races", &[race], &environment) else { return };
            assert!(status == Some(3) && said.contains("the race showed"), "{race}: {said}");
        }
        let right = told_by("races", &[race, "right"], &environment).unwrap_or_default();
        assert_eq!(right.0, Some(0), "{race}: {}", right.1);
    }
}

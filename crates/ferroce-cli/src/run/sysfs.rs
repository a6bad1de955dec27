//! The files of `ferroce run`: a mount namespace in which the program finds our devices below `/sys/class`
//! and `/dev`.
//!
//! The files are in a tmpfs that only a small process of ours, the keeper, can write to; it exits after the
//! program. It is no child of the program, because a program that waits for all its children would wait for
//! ever. The program accesses the tmpfs through read-only mounts, and has no privilege left when it starts.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Parser;
use ferroce_host::environment;
use ferroce_ipc::sysfs::{CLASSES, LIFESPAN};
use ferroce_ipc::{DeviceInfo, Listing};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid, getegid, geteuid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::private_net::{keep_identity, no_namespaces};
use super::tree;
use crate::args::{RunArgs, SysfsKeeper};
use crate::broker::{Observer, Overview};

/// The keeper's program name, by which this program recognises its role.
const KEEPER: &str = "ferroce-sysfs";
/// The tmpfs covers one of these for a moment, in our namespace only.
const SCRATCH: [&str; 4] = ["/mnt", "/tmp", "/var", "/run"];
/// The folder of the command `rdma`, which is this program, beside the devices' files.
pub const COMMANDS: &str = "/dev/ferroce";
/// The target of every device file.
const NULL: &str = "/dev/null";

/// Moves this process, which has one thread, into a namespace with our devices' files.
pub fn enter(args: &RunArgs) -> Result<()> {
    mount_all(|directory| start_keeper(directory, args))
}

/// Tries it in another process, because a mount may fail after the namespace was made: some systems permit
/// namespaces without rights (`kernel.apparmor_restrict_unprivileged_userns`). Returns the reason of a
/// failure.
pub fn probe(args: &RunArgs) -> Result<(), String> {
    // `--private-net` has made a user namespace that may mount.
    if args.private_net {
        return Ok(());
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0(KEEPER).args(["--probe", "0"]);
    let output = command.output().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.trim().trim_start_matches(KEEPER).trim_start_matches(": ");
    if output.status.success() { Ok(()) } else { Err(message.to_owned()) }
}

/// `devices` writes the files of the devices into a directory, and returns the names of their device files.
fn mount_all(devices: impl FnOnce(&Path) -> Result<Vec<PathBuf>>) -> Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    // Root, and a process in a user namespace of its own, need no other one.
    if unshare(CloneFlags::CLONE_NEWNS).is_err()
        && !(join_others(uid, gid) && unshare(CloneFlags::CLONE_NEWNS).is_ok())
    {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).with_context(no_namespaces)?;
        keep_identity(uid, gid)?;
    }
    // Later mounts of the host propagate to us; our mounts do not propagate.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .context("mounts cannot be kept from others")?;
    let scratch =
        SCRATCH.into_iter().map(Path::new).find(|path| path.is_dir()).context("no directory to mount on")?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("ferroce"), scratch, Some("tmpfs"), flags, Some("mode=755")).context("no tmpfs")?;
    let built = build(scratch, devices);
    // The mounts made from it stay, and the keeper's working directory.
    umount2(scratch, MntFlags::MNT_DETACH).context("the tmpfs cannot be taken away")?;
    built
}

/// Joins the user namespace of another `ferroce run` of this user, if one runs; whether it did. Two programs
/// in different user namespaces could not copy to and from each other's memory.
fn join_others(uid: Uid, gid: Gid) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    let line = format!("{KEEPER}\0");
    processes.flatten().map(|process| process.path()).any(|process| {
        let is_keeper =
            fs::read(process.join("cmdline")).is_ok_and(|words| words.starts_with(line.as_bytes()));
        // The identity of the program stays: a namespace made for another purpose may map it to another one.
        let keeps = |map: &str, id: u32| {
            let text = fs::read_to_string(process.join(map)).unwrap_or_default();
            text.split_whitespace().eq([&*id.to_string(), &*id.to_string(), "1"])
        };
        is_keeper
            && keeps("uid_map", uid.as_raw())
            && keeps("gid_map", gid.as_raw())
            && fs::File::open(process.join("ns/user"))
                .is_ok_and(|namespace| setns(namespace, CloneFlags::CLONE_NEWUSER).is_ok())
    })
}

fn build(scratch: &Path, devices: impl FnOnce(&Path) -> Result<Vec<PathBuf>>) -> Result<()> {
    let ours = scratch.join("class");
    for class in CLASSES {
        fs::create_dir_all(ours.join(class))?;
    }
    let devices = devices(&ours)?;
    let classes = scratch.join("sys");
    copy_by_mounts(Path::new("/sys/class"), &classes, &CLASSES).context("/sys/class")?;
    for class in CLASSES {
        let to = classes.join(class);
        fs::create_dir(&to)?;
        bind(&ours.join(class), &to)?;
        read_only(&to)?;
    }
    bind(&classes, Path::new("/sys/class"))?;
    read_only(Path::new("/sys/class"))?;
    let files = scratch.join("dev");
    copy_by_mounts(Path::new("/dev"), &files, &["infiniband"]).context("/dev")?;
    let infiniband = files.join("infiniband");
    fs::create_dir(&infiniband)?;
    for name in devices {
        let to = infiniband.join(name);
        fs::write(&to, "")?;
        bind(Path::new(NULL), &to)?;
    }
    // rdma(8) would ask the kernel, which knows nothing of these devices.
    let commands = files.join("ferroce");
    fs::create_dir(&commands)?;
    std::os::unix::fs::symlink(std::env::current_exe()?, commands.join("rdma"))?;
    bind(&files, Path::new("/dev"))?;
    if offers_gpu() { peer_memory(scratch) } else { Ok(()) }
}

/// Whether programs are to see that a GPU's memory can be registered: where NVIDIA's driver is, or with
/// `FERROCE_GPU=on`, and not with `FERROCE_GPU=off`.
fn offers_gpu() -> bool {
    match environment::text("FERROCE_GPU").as_deref() {
        Some("on") => true,
        Some("off") => false,
        _ => Path::new("/sys/module/nvidia").is_dir(),
    }
}

/// Adds the files by which NCCL, UCX and NVSHMEM recognise that a card reaches a GPU's memory: that of the
/// kernel module `nvidia_peermem`, and that of the older `nv_peer_mem`, for which NCCL before 2.23 looks.
fn peer_memory(scratch: &Path) -> Result<()> {
    for (folder, name, file) in
        [("/sys/module", "nvidia_peermem", "version"), ("/sys/kernel/mm", "memory_peers", "nv_mem/version")]
    {
        let folder = Path::new(folder);
        if folder.join(name).exists() || !folder.is_dir() {
            continue;
        }
        let copy = scratch.join(name);
        copy_by_mounts(folder, &copy, &[name]).with_context(|| folder.display().to_string())?;
        let ours = copy.join(name).join(file);
        fs::create_dir_all(ours.parent().unwrap_or(&copy))?;
        fs::write(ours, concat!("ferroce ", env!("CARGO_PKG_VERSION"), "\n"))?;
        bind(&copy, folder)?;
        read_only(folder)?;
    }
    Ok(())
}

/// Fills a directory with bind mounts of all entries of another one.
fn copy_by_mounts(from: &Path, to: &Path, without: &[&str]) -> Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if without.iter().any(|name| entry.file_name() == OsStr::new(name)) {
            continue;
        }
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source)?, &target)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&target)?;
        } else {
            fs::write(&target, "")?;
        }
        // An entry that cannot be mounted, such as a masked file, is empty here.
        if let Err(error) = bind(&source, &target)
            && kind.is_dir()
        {
            return Err(error);
        }
    }
    Ok(())
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .with_context(|| format!("{} cannot be mounted on {}", from.display(), to.display()))
}

fn read_only(at: &Path) -> Result<()> {
    let flags = MsFlags::MS_REMOUNT
        | MsFlags::MS_BIND
        | MsFlags::MS_RDONLY
        | MsFlags::MS_NOSUID
        | MsFlags::MS_NODEV
        | MsFlags::MS_NOEXEC;
    mount(None::<&str>, at, None::<&str>, flags, None::<&str>)
        .with_context(|| format!("{} cannot be made read-only", at.display()))
}

/// Starts the keeper in the directory of its files. Returns the device files' names after all files are
/// written.
fn start_keeper(directory: &Path, args: &RunArgs) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(KEEPER).arg("--detach").arg(std::process::id().to_string()).current_dir(directory);
    if let Some(netdev) = &args.netdev {
        command.env("FERROCE_NETDEV", netdev);
    }
    if args.loopback {
        command.env("FERROCE_LOOPBACK", "1");
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("/proc/self/exe")?;
    let mut names = Vec::new();
    let mut ready = false;
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines() {
            match line?.as_str() {
                "ready" => ready = true,
                name => names.push(PathBuf::from(name)),
            }
            if ready {
                break;
            }
        }
    }
    child.wait()?;
    if ready { Ok(names) } else { bail!("the files of --sysfs cannot be written") }
}

/// Returns whether this process is the keeper, or tests whether one can run.
pub fn is_sysfs_keeper() -> bool {
    std::env::args_os().next().is_some_and(|name| name == KEEPER)
}

/// Updates the files in its working directory until the program exits.
pub fn keep_sysfs() -> Result<()> {
    let SysfsKeeper { pid, detach, probe } = SysfsKeeper::parse();
    if probe {
        return mount_all(|_| Ok(Vec::new()));
    }
    if detach {
        // The keeper becomes an orphan, so the program does not wait for it.
        Command::new("/proc/self/exe").arg0(KEEPER).arg(pid.to_string()).spawn().context("/proc/self/exe")?;
        return Ok(());
    }
    // A file that may not grow is an error of the write, and does not end this process.
    ferroce_host::limits::ignore_signals();
    let program = pidfd_open(Pid::from_raw(pid).context("no process id")?, PidfdFlags::empty())?;
    // The keeper leaves the program's process group and terminal.
    rustix::process::setsid().ok();
    let mut keeper =
        Keeper { devices: Vec::new(), broker: Some(Observer::new()?), tree: tree::Writer::default() };
    keeper.refresh()?;
    let names = keeper.devices.iter().map(|device| device.dev_name.as_str());
    let lines: String = names.chain(["rdma_cm", "ready"]).flat_map(|name| [name, "\n"]).collect();
    // If `ferroce run` ended meanwhile, the write fails and this process ends with it.
    std::io::stdout().write_all(lines.as_bytes())?;
    drop(fs::OpenOptions::new().write(true).open(NULL).map(|null| {
        // A reader of the program's output must not wait for the keeper.
        rustix::stdio::dup2_stdout(&null).and_then(|()| rustix::stdio::dup2_stderr(&null))
    }));
    let lifespan =
        Timespec { tv_sec: LIFESPAN.as_secs() as i64, tv_nsec: i64::from(LIFESPAN.subsec_nanos()) };
    loop {
        match poll(&mut [PollFd::new(&program, PollFlags::IN)], Some(&lifespan)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        // While a dead broker is replaced, the files stay as they are.
        if keeper.refresh().is_err() {
            keeper.broker = None;
        }
    }
}

struct Keeper {
    devices: Vec<DeviceInfo>,
    broker: Option<Observer>,
    tree: tree::Writer,
}

impl Keeper {
    fn refresh(&mut self) -> Result<()> {
        let broker = match &mut self.broker {
            Some(broker) => broker,
            none => none.insert(Observer::of_running()?),
        };
        let names = self.devices.iter().map(|device| &*device.name);
        let Overview { devices, status, mut counters } = broker.overview(names)?;
        let devices = Listing::from_environment().of(&devices);
        if devices != self.devices {
            self.tree.devices(&devices)?;
            self.devices = devices;
        }
        for device in &self.devices {
            let counters = match counters.remove(&device.name) {
                Some(counters) => counters,
                None => broker.statistics(&device.name)?,
            };
            self.tree.counters(device, &counters, &status.cm)?;
        }
        Ok(())
    }
}

//! The process that is copied to, and others.

use std::os::unix::process::CommandExt;

use super::*;

/// The part of the process that is copied to.
pub(super) struct Target {
    table: MemoryTable,
    pub(super) publisher: Arc<Publisher>,
    life: std::thread::JoinHandle<()>,
    ends: Arc<AtomicBool>,
}

impl Target {
    pub(super) fn new() -> Self {
        let table = MemoryTable::new().unwrap();
        let publisher = Arc::new(Publisher::create(table.secret()).unwrap());
        table.set_publisher(Arc::clone(&publisher));
        let (started, has_started) = std::sync::mpsc::channel();
        let ends = Arc::new(AtomicBool::new(false));
        let life = std::thread::spawn({
            let (publisher, ends) = (Arc::clone(&publisher), Arc::clone(&ends));
            move || {
                publisher.live_with_this_thread().unwrap();
                started.send(()).unwrap();
                while !ends.load(Ordering::Relaxed) {
                    std::thread::park();
                }
            }
        });
        has_started.recv().unwrap();
        let target = Self { table, publisher, life, ends };
        target.serve(true, true);
        target
    }

    fn serve(&self, write: bool, read: bool) {
        let Flow { source, destination, link, .. } = flow(2, 1);
        self.publisher.put_queue_pair(&published::QueuePair {
            qpn: THEIRS,
            remote: OURS,
            source,
            destination,
            version: link.version,
            pd: PD.value(),
            write,
            read,
            connection: Connection::default(),
        });
    }
}

#[test]
#[ignore = "a part of other tests"]
fn other_process() {
    let role = std::env::var(ROLE).unwrap();
    let [role, parent, hazards] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let path = format!("/proc/{parent}/fd/{hazards}");
    let shared = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let (pipe, ..) = Pipe::join(&shared, Side::Second).unwrap();
    if role == "stuck" || role == "stuck-exec" {
        let hazards = Hazards::of(&pipe, Side::Second);
        let claim = hazards.claim(Rkey::new(77), THEIRS).unwrap();
        println!("ferroce 1");
        if role == "stuck-exec" {
            std::io::stdin().read_line(&mut String::new()).unwrap();
            panic!("{}", Command::new("sleep").arg("60").exec());
        }
        std::thread::sleep(Duration::from_secs(60));
        drop(claim);
        return;
    }
    let target = Target::new();
    let parent = Pid::from_raw(parent.parse().unwrap()).unwrap();
    let pidfd = pidfd_open(parent, PidfdFlags::empty()).unwrap();
    target.publisher.add_copier(Arc::new(Copier::new(pidfd, Hazards::of(&pipe, Side::First)).unwrap()));
    let memory = memory();
    let key = register(&target.table, memory);
    println!("ferroce {} {} {}", target.publisher.file().as_raw_fd(), memory.as_ptr() as u64, key.value());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        let command = words.next().unwrap();
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        let answer = match command {
            "sum" => {
                let (at, len) = (numbers[0] as usize, numbers[1] as usize);
                memory[at..at + len]
                    .iter()
                    .map(|word| word.load(Ordering::Relaxed))
                    .fold(0, u64::wrapping_add)
            }
            "set" => {
                memory[numbers[0] as usize].store(numbers[1], Ordering::Relaxed);
                0
            }
            "serve" => {
                target.serve(numbers[0] != 0, numbers[1] != 0);
                0
            }
            "end" => {
                target.publisher.end_queue_pair(THEIRS);
                0
            }
            "deregister" => {
                std::thread::sleep(Duration::from_millis(50));
                target.table.deregister(key).unwrap();
                // From here on the memory is this process's own.
                memory.iter().for_each(|word| word.store(1, Ordering::Relaxed));
                std::thread::sleep(Duration::from_millis(100));
                memory.iter().map(|word| word.load(Ordering::Relaxed)).sum()
            }
            "reregister" => move_about(&target, key, memory),
            "scribble" => {
                scribble(&target, numbers[0]);
                0
            }
            "forge" => {
                target.ends.store(true, Ordering::Relaxed);
                target.life.thread().unpark();
                // The kernel marks the word when the thread has ended.
                while target.publisher.is_held() {
                    std::thread::yield_now();
                }
                target.publisher.forge(std::process::id());
                0
            }
            "watch" => watch(memory),
            "exec" => {
                std::thread::sleep(Duration::from_millis(100));
                panic!("{}", Command::new("sleep").arg("60").exec())
            }
            _ => panic!("{line}"),
        };
        println!("ferroce {answer}");
    }
}

/// Changes the registration between two places; counts words of the place without registration that changed.
fn move_about(target: &Target, key: Key, memory: &[AtomicU64]) -> u64 {
    let other = self::memory();
    let mut changed = 0;
    for turn in 0..200 {
        let (old, new) = if turn % 2 == 0 { (memory, other) } else { (other, memory) };
        let change = Change { translation: Some((new.as_ptr() as u64, LEN)), ..Change::default() };
        target.table.reregister(key, change).unwrap();
        old[..1024].iter().for_each(|word| word.store(3, Ordering::Relaxed));
        std::thread::sleep(Duration::from_micros(200));
        changed += old[..1024].iter().filter(|word| word.load(Ordering::Relaxed) != 3).count();
    }
    changed as u64
}

/// Writes nonsense into its own publication.
fn scribble(target: &Target, count: u64) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..count {
        let key = next() as u32;
        let qpn = (next() & 1 == 0).then_some(THEIRS);
        let region = published::Region {
            key,
            pd: PD.value(),
            addr: next(),
            len: next(),
            iova: next(),
            access: next() as u32,
            qpn,
        };
        target.publisher.put_region(next() as u32, &region);
        target.serve(next() & 1 == 0, next() & 1 == 0);
    }
}

/// Watches a word that is written, and a long message that ends in one; counts torn words, and tails that
/// came first.
fn watch(memory: &[AtomicU64]) -> u64 {
    let until = Instant::now() + Duration::from_secs(2);
    let (mut wrong, mut changes, mut last) = (0, 0, 0);
    while Instant::now() < until {
        for _ in 0..100 {
            let word = memory[0].load(Ordering::Acquire);
            wrong += u64::from(word != u64::from(word as u8) * 0x0101_0101_0101_0101);
            changes += u64::from(word != last);
            last = word;
            let tail = memory[1024 + 511].load(Ordering::Acquire);
            let head = [0, 255, 510].map(|at| memory[1024 + at].load(Ordering::Acquire));
            wrong += head.iter().filter(|&&head| head < tail).count() as u64;
        }
    }
    println!("{changes} changes were seen");
    assert!(changes > 0);
    wrong
}

use std::ptr;

use super::testing::{SLOT, connected, fill};
use super::*;

fn buffer() -> Box<[u8; MAX_BATCH]> {
    vec![0; MAX_BATCH].into_boxed_slice().try_into().unwrap()
}

fn is_given(pipes: &Pipes) -> bool {
    pipes.find(SLOT).is_some_and(|pipe| pipe.is_sound())
}

fn scribble(memory: &OwnedFd) {
    let len = rustix::fs::fstat(memory).unwrap().st_size as usize;
    assert_eq!(rustix::io::pwrite(memory, &vec![1; len], 0).unwrap(), len);
}

#[test]
fn a_pipe_that_a_receiver_gave_up_is_given_to_no_queue_pair_of_either_side() {
    let ([(here, _), (there, _)], memory) = connected();
    assert!(is_given(&here) && is_given(&there));
    scribble(&memory);
    assert!(is_given(&here), "no receiver has looked yet");
    assert!(here.receive(&here.all(), &mut buffer()).is_none());
    assert!(!is_given(&here) && !is_given(&there));
    // The other side may overwrite its word later.
    scribble(&memory);
    assert!(!is_given(&here));
}

#[test]
fn a_pipe_that_a_sender_gave_up_is_given_to_no_queue_pair() {
    let ([(here, pipe), _], memory) = connected();
    fill(&pipe);
    scribble(&memory);
    assert_eq!(pipe.room(Instant::from_nanos(1)), Room::ForAll, "it loses what is sent");
    assert!(pipe.tx.lock().broken && !is_given(&here));
}

#[test]
fn of_two_pipes_the_sound_one_is_given() {
    let ([(here, first), _], memory) = connected();
    let other = Pipe::create().unwrap();
    let second = PeerPipe::join(&other, Side::First, vec![SLOT], here.bell().unwrap()).unwrap();
    second.pipe.set_joined();
    let second = here.insert([second]);
    assert!(Arc::ptr_eq(&here.find(SLOT).unwrap(), &first));
    scribble(&memory);
    assert!(here.receive(&here.all(), &mut buffer()).is_none());
    assert!(Arc::ptr_eq(&here.find(SLOT).unwrap(), &second) && second.is_sound());
}

#[test]
fn a_program_without_a_processor_has_time_to_take_its_end() {
    let memory = Pipe::create().unwrap();
    let end = |pipes: &Pipes, side| PeerPipe::join(&memory, side, vec![SLOT], pipes.bell().unwrap()).unwrap();
    let [here, there] = [Pipes::new(None).unwrap(), Pipes::new(None).unwrap()];
    let (first, second) = (end(&there, Side::First), end(&here, Side::Second));
    first.pipe.set_joined();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            second.pipe.set_joined();
        });
        assert!(first.wait_for_peer(JOIN));
    });
}

#[test]
fn queue_pairs_to_a_stopped_program_wait_together() {
    let (memory, pipes) = (Pipe::create().unwrap(), Pipes::new(None).unwrap());
    let pipe = PeerPipe::join(&memory, Side::First, vec![SLOT], pipes.bell().unwrap()).unwrap();
    pipe.pipe.set_joined();
    let limit = Duration::from_millis(200);
    assert!(!pipe.wait_for_peer(limit) && pipe.begun.elapsed() >= limit);
    let begin = std::time::Instant::now();
    assert!((0..1000).all(|_| !pipe.wait_for_peer(limit)));
    assert!(begin.elapsed() < 100 * limit, "each of these looks once");
}

#[test]
fn nobody_waits_for_a_program_that_gave_up_its_doorbell() {
    let (memory, pipes) = (Pipe::create().unwrap(), Pipes::new(None).unwrap());
    let pipe = PeerPipe::join(&memory, Side::First, vec![SLOT], pipes.bell().unwrap()).unwrap();
    drop(pipes);
    assert!(!pipe.wait_for_peer(JOIN) && pipe.begun.elapsed() < JOIN);
}

#[test]
fn pipes_have_their_turns_after_others_ended() {
    let ends = [(); 2].map(|()| {
        let memory = Pipe::create().unwrap();
        let (here, there) = (Pipes::new(None).unwrap(), Pipes::new(None).unwrap());
        let join =
            |side, pipes: &Pipes| PeerPipe::join(&memory, side, vec![SLOT], pipes.bell().unwrap()).unwrap();
        (join(Side::First, &there), join(Side::Second, &here))
    });
    let here = Pipes::new(None).unwrap();
    let (near, far): (Vec<_>, Vec<_>) =
        ends.into_iter().map(|(near, far)| (here.insert([near]), far)).unzip();
    // The way of each is known once something came by it.
    for (near, far) in near.iter().zip(&far) {
        super::testing::send(far);
        assert!(near.receive(&mut buffer()).is_some());
        (0..50).for_each(|_| _ = super::testing::send_short(far));
    }
    // As behind the last of five pipes, of which three were dropped since.
    here.turn.store(5, Ordering::Relaxed);
    let list = here.all();
    let mut octets = [0; SHORT];
    let mut turns = (0..100).map(|_| here.receive_short(&list, &mut octets).unwrap().0);
    let first: Vec<_> = turns.by_ref().take(10).map(ptr::from_ref).collect();
    assert!(near.iter().all(|pipe| first.contains(&Arc::as_ptr(pipe))), "each has its turn");
    assert_eq!(turns.count(), 90);
}

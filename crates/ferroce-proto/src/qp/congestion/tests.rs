use super::*;

const US: Duration = Duration::from_micros(1);
const RTT: Duration = Duration::from_micros(100);
const PACKET: u64 = 1500;

/// 80 MB/s before the first CNP.
fn limiter() -> Limiter {
    Limiter::new(Instant::ZERO, 8000, RTT)
}

/// Octets that leave in `time` from `now` on, where all is answered at once.
fn send_for(limiter: &mut Limiter, now: &mut Instant, time: Duration) -> u64 {
    let (end, mut sent) = (*now + time, 0);
    while *now < end {
        if limiter.admits(*now, Kind::Request, PACKET, 0) {
            sent += PACKET;
        } else {
            *now = limiter.timeout().expect("a packet waits for tokens").min(end);
            limiter.handle_timeout(*now);
        }
    }
    sent
}

#[test]
fn the_first_mark_is_answered_and_then_one_in_each_interval() {
    let mut notifier = Notifier::default();
    assert!(!notifier.is_due());
    let mut sent = 0;
    for micros in 0..200 {
        notifier.marked(Instant::ZERO + US * micros);
        if notifier.is_due() {
            notifier.sent();
            sent += 1;
        }
    }
    assert_eq!(sent, 4);
}

#[test]
fn the_first_notification_halves_the_rate_and_those_of_one_round_trip_cut_once() {
    let mut limiter = limiter();
    assert_eq!(limiter.rate, 40_000_000);
    for nanos in 0..100 {
        assert!(!limiter.notified(Instant::from_nanos(nanos * 999), RTT));
    }
    assert_eq!(limiter.rate, 40_000_000);
    assert!(limiter.notified(Instant::ZERO + RTT, RTT));
    assert!(limiter.rate < 20_100_000, "{}", limiter.rate);
}

#[test]
fn never_below_the_least_rate() {
    let mut limiter = limiter();
    for round in 1..1000 {
        limiter.notified(Instant::ZERO + RTT * round, RTT);
    }
    assert_eq!(limiter.rate, LEAST_RATE);
    let mut now = Instant::ZERO + RTT * 1000;
    assert!(send_for(&mut limiter, &mut now, Duration::from_millis(100)) >= LEAST_RATE / 10 - PACKET);
}

#[test]
fn a_part_of_what_was_sent_stays_however_many_notifications_come() {
    for (flight, rate) in [(64_000, 640_000_000), (10, USUAL_FLIGHT * 10_000)] {
        let mut limiter = limiter();
        let mut now = Instant::ZERO;
        limiter.keep(flight, RTT);
        for _ in 0..1000 {
            now += RTT;
            // Ever less is on its way, and lowers the bound no more.
            limiter.keep(flight / 10, RTT);
            assert!(limiter.notified(now, RTT));
        }
        assert_eq!(limiter.rate, rate / LEAST_FRACTION);
        limiter.advance(now + RISE_EVERY);
        assert!(limiter.rate >= rate / LEAST_FRACTION);
    }
}

#[test]
fn what_leaves_is_the_rate() {
    let mut limiter = limiter();
    let mut now = Instant::ZERO;
    let sent = send_for(&mut limiter, &mut now, Duration::from_millis(1));
    assert!(
        (38_000..=44_000).contains(&sent),
        "{sent}: 40 MB/s for a millisecond, and a burst of 4,000 octets at most"
    );
}

/// A packet waited for tokens, and time passed without its timer, because an answer came. Too much is
/// unanswered for the next one, so it waits for an answer, and not for a time that has passed.
#[test]
fn a_packet_that_waits_for_an_answer_has_no_timer_that_is_due() {
    let mut limiter = limiter();
    let mut now = Instant::ZERO;
    while limiter.admits(now, Kind::Request, PACKET, 0) {}
    now = limiter.timeout().unwrap() + US;
    let unanswered = limiter.flight_limit(PACKET);
    assert!(!limiter.admits(now, Kind::Request, PACKET, unanswered));
    assert_eq!(limiter.timeout(), None);
}

/// Both kinds always have something to send. Each round tries them in the same order.
#[test]
fn kinds_that_wait_take_turns_and_use_the_rate() {
    for sizes in [[1500, 300], [300, 1500], [1500, 1500]] {
        let mut limiter = limiter();
        let (mut now, end) = (Instant::ZERO, Instant::ZERO + Duration::from_millis(1));
        let mut packets = [0; 2];
        while now < end {
            limiter.begin_round();
            let before = packets;
            for (n, kind) in [Kind::Answer, Kind::Request].into_iter().enumerate() {
                while limiter.admits(now, kind, sizes[n], 0) {
                    packets[n] += 1;
                }
            }
            if packets == before {
                now = limiter.timeout().expect("a packet waits for tokens").min(end);
                limiter.handle_timeout(now);
            }
        }
        let octets = packets[0] * sizes[0] + packets[1] * sizes[1];
        assert!((36_000..=44_000).contains(&octets), "{packets:?} of {sizes:?}: {octets} octets");
        assert!(packets[0].abs_diff(packets[1]) <= 2, "{packets:?} of {sizes:?}");
    }
}

#[test]
fn the_rate_comes_back_in_halves_and_then_slowly() {
    let mut limiter = limiter();
    let mut now = Instant::ZERO;
    let mut rates = Vec::new();
    for _ in 0..8 {
        now += RISE_EVERY;
        limiter.advance(now);
        rates.push(limiter.rate);
    }
    assert_eq!(rates[..3], [60_000_000, 70_000_000, 75_000_000]);
    assert!(rates[4] < 80_000_000 && rates[7] > 79_000_000 && rates[7] < 83_000_000, "{rates:?}");
    assert!(!limiter.is_over(now));
    assert!(limiter.is_over(Instant::ZERO + MEMORY));
}

#[test]
fn congestion_that_persists_cuts_by_half_and_rare_congestion_by_little() {
    let mut limiter = limiter();
    let before = limiter.congestion;
    limiter.advance(Instant::ZERO + RTT * 60);
    assert!(limiter.congestion < before * 4 / 5, "{} of {before}", limiter.congestion);
    assert!(limiter.congestion > before / 2);
}

#[test]
fn after_a_pause_one_burst_leaves_at_once() {
    let mut limiter = limiter();
    let now = Instant::ZERO + Duration::from_secs(100);
    let at_once = (0..1000).take_while(|_| limiter.admits(now, Kind::Request, PACKET, 0)).count() as u64;
    assert!(at_once * PACKET <= limiter.burst(PACKET), "{at_once}");
    assert!(at_once >= 1);
}

#[test]
fn what_is_unanswered_is_bounded_and_the_first_packet_passes() {
    let mut limiter = limiter();
    let now = Instant::ZERO + Duration::from_millis(1);
    let limit = limiter.flight_limit(PACKET);
    assert!(!limiter.admits(now, Kind::Request, PACKET, limit));
    assert!(limiter.admits(now, Kind::Request, PACKET, 0));
}

#[test]
fn a_packet_that_did_not_leave_costs_nothing() {
    let mut limiter = limiter();
    let now = Instant::ZERO + Duration::from_millis(1);
    assert!(limiter.admits(now, Kind::Request, PACKET, 0));
    let tokens = limiter.tokens;
    assert!(limiter.admits(now, Kind::Request, PACKET, 0));
    limiter.give_back(PACKET);
    assert_eq!(limiter.tokens, tokens);
}

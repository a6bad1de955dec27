//! The guards, in the order of their entries.

use super::Guard;

const WIRE: &[&str] = &["-p", "ferroce-wire", "--lib", "--test", "bad_input"];
const RC: &[&str] = &["-p", "ferroce-proto", "--test", "rc"];
const PROTO: &[&str] = &["-p", "ferroce-proto", "--lib"];
const UNRELIABLE: &[&str] = &["-p", "ferroce-proto", "--test", "unreliable"];
pub(super) const ENGINE: &[&str] = &["-p", "ferroce-engine", "--lib"];
const DATAPATH: &[&str] = &["-p", "ferroce-datapath", "--lib"];
const DATAGRAMS: &[&str] = &["-p", "ferroce-engine", "--test", "datagrams"];
const MULTICAST: &[&str] = &["-p", "ferroce-engine", "--test", "multicast"];
const LIFETIME: &[&str] = &["-p", "ferroce-engine", "--test", "lifetime"];
const C_PROGRAMS: &[&str] = &["-p", "ferroce-dropin", "--test", "c_programs"];

/// Entries that cannot apply.
pub const NOT_APPLICABLE: &[(&str, &str)] = &[
    (
        "a7",
        "work requests are copied when they are posted, once, and validated as copied; no queue is memory that the \
         program writes to",
    ),
    ("a11", "there is no path beside the wire's: packets to oneself go through the same sockets"),
    (
        "b19",
        "no packet that was handled leaves a reference to memory behind; its test shows a new connection at work",
    ),
    ("e12", "VLAN devices are not built yet"),
    ("e13", "a broker and its sockets belong to one network namespace from the start; the tests run in such"),
    ("e20", "counters are not shown under rxe's names yet"),
];

/// Entries whose tests have no single place that could be removed.
pub const ELSEWHERE: &[(&str, &str)] = &[
    ("d5", "threads post, poll and destroy at once; loom looks at every order of the lanes' hand-over"),
    ("e1", "nobody looks at the M bit"),
    ("e2", "nobody looks at source port, flow label and traffic class of a connection's packets"),
    ("e9", "b20 and c3 are its guards; its test is the storm"),
    ("e10", "IPv6 groups are joined as any other"),
    ("e11", "nobody looks at the A bit of datagrams, those to queue pair 1 included"),
    ("e15", "names have no fixed length inside; removal ends in DEVICE_FATAL"),
];

/// What is removed, but for connection management.
pub const GUARDS: &[Guard] = &[
    Guard {
        entry: "a1",
        file: "crates/ferroce-wire/src/packet/parse.rs",
        find: ".info().ok_or(WireError::UnknownOpcode(raw.opcode))?;",
        replace: ".info().or(WireOpcode(4).info()).ok_or(WireError::UnknownOpcode(raw.opcode))?;",
        tests: WIRE,
    },
    Guard {
        entry: "a1",
        file: "crates/ferroce-proto/src/qp/mod.rs",
        find: "if !meant {",
        replace: "if !meant && false {",
        tests: RC,
    },
    Guard {
        entry: "a2",
        file: "crates/ferroce-wire/src/packet/parse.rs",
        find: "have.checked_sub(need).ok_or(WireError::Truncated { need, have })?;",
        replace: "have.saturating_sub(need);",
        tests: WIRE,
    },
    Guard {
        entry: "a3",
        file: "crates/ferroce-proto/src/qp/responder/checks.rs",
        find: "reth.dma_len == 8 && payload.len() == 8,",
        replace: "payload.len() == 8,",
        tests: RC,
    },
    Guard {
        entry: "a4",
        file: "crates/ferroce-proto/src/qp/responder/checks.rs",
        find: "match mem.check_remote(reth.rkey, reth.va, u64::from(reth.dma_len), access) {",
        replace: "match mem.check_remote(reth.rkey, reth.va, 1, access) {",
        tests: RC,
    },
    Guard {
        entry: "a4",
        file: "crates/ferroce-engine/src/memory/slots.rs",
        find: "if len > self.len || offset > self.len - len {",
        replace: "if offset.wrapping_add(len) > self.len {",
        tests: ENGINE,
    },
    Guard {
        entry: "a5",
        file: "crates/ferroce-proto/src/qp/responder/checks.rs",
        find: "| Request::WriteMiddle { .. } => len == full,",
        replace: "| Request::WriteMiddle { .. } => true,",
        tests: RC,
    },
    Guard {
        entry: "a6",
        file: "crates/ferroce-proto/src/qp/responder/checks.rs",
        find: "Request::WriteMiddle { .. } => len < remaining,",
        replace: "Request::WriteMiddle { .. } => true,",
        tests: RC,
    },
    Guard {
        entry: "a6",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "&& skipped + u64::from(reth.dma_len) == u64::from(length);",
        replace: ";",
        tests: RC,
    },
    Guard {
        entry: "a8",
        file: "crates/ferroce-engine/src/lane/group.rs",
        find: "for qp in members.iter() {",
        replace: "for qp in members.iter().take(1) {",
        tests: MULTICAST,
    },
    Guard {
        entry: "a9",
        file: "crates/ferroce-wire/src/packet/parse.rs",
        find: "if !have.is_multiple_of(4) {",
        replace: "if false {",
        tests: WIRE,
    },
    Guard {
        entry: "a9",
        file: "crates/ferroce-wire/src/packet/emit.rs",
        find: "pad(payload_len) as u8",
        replace: "0",
        tests: WIRE,
    },
    Guard {
        entry: "a10",
        file: "crates/ferroce-proto/src/qp/mod.rs",
        find: "if packet.icrc != IcrcStatus::Checked {",
        replace: "if false {",
        tests: UNRELIABLE,
    },
    Guard {
        entry: "a12",
        file: "crates/ferroce-proto/src/qp/responder/checks.rs",
        find: "            if reth.dma_len == 0 {
                return Ok(target);
            }
",
        replace: "",
        tests: RC,
    },
    Guard {
        entry: "b1",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "shared.counters.duplicate_request += 1;",
        replace: "self.message = None;",
        tests: RC,
    },
    Guard {
        entry: "b2",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "let end = self.resources.first_after(psn, self.expected).unwrap_or(self.expected);",
        replace: "let end = self.expected;",
        tests: RC,
    },
    Guard {
        entry: "b3",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "self.replies.acknowledge(end.add(u32::MAX), self.msn);",
        replace: "let _ = end;",
        tests: RC,
    },
    Guard {
        entry: "b4",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "if !self.nak_sent {",
        replace: "if true {",
        tests: RC,
    },
    Guard {
        entry: "b5",
        file: "crates/ferroce-proto/src/qp/responder/replies.rs",
        find: "let response = match (read.fresh, last) {",
        replace: "let response = match (read.fresh && !read.replay, last) {",
        tests: RC,
    },
    Guard {
        entry: "b6",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "&& reth.va == addr.wrapping_add(skipped)",
        replace: "&& reth.va == addr.max(1).wrapping_add(skipped)",
        tests: RC,
    },
    Guard {
        entry: "b7",
        file: "crates/ferroce-proto/src/qp/responder/checks.rs",
        find: "if self.replies.reads_pending() < self.resources.depth()",
        replace: "if self.resources.depth() > 0",
        tests: RC,
    },
    Guard {
        entry: "b8",
        file: "crates/ferroce-proto/src/qp/completer.rs",
        find: "Syndrome::RnrNak(timer) => return self.receiver_not_ready(now, timer, side),",
        replace: "Syndrome::RnrNak(timer) if side.line.reads_pending() == 0 => {
                return self.receiver_not_ready(now, timer, side);
            }
            Syndrome::RnrNak(_) => WcStatus::BadRespErr,",
        tests: RC,
    },
    Guard {
        entry: "b9",
        file: "crates/ferroce-proto/src/qp/responder/replies.rs",
        find: "Some(Reply::Read(ReadReply { psn, msn, replay, .. }))",
        replace: "Some(Reply::Read(ReadReply { request: psn, msn, replay, .. }))",
        tests: RC,
    },
    Guard {
        entry: "b10",
        file: "crates/ferroce-proto/src/qp/responder/checks.rs",
        find: "Refusal::Nak(Fault { code: NakCode::InvalidRequest, status: WcStatus::LocLenErr });",
        replace: "Refusal::Nak(Fault { code: NakCode::RemoteOperationalError, status: WcStatus::LocQpOpErr });",
        tests: RC,
    },
    Guard {
        entry: "b11",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "mem.invalidate(rkey).map_err(|_| BAD_INVALIDATE)?;",
        replace: "let _ = (mem.invalidate(rkey), BAD_INVALIDATE);",
        tests: RC,
    },
    Guard {
        entry: "b12",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "if self.bound && fault.status != WcStatus::WrFlushErr {
            self.bound = false;",
        replace: "if self.bound && fault.status != WcStatus::WrFlushErr {",
        tests: RC,
    },
    Guard {
        entry: "b12",
        file: "crates/ferroce-proto/src/qp/responder/checks.rs",
        find: "| Request::AtomicWrite { .. } => self.message.is_none(),",
        replace: "| Request::AtomicWrite { .. } => true,",
        tests: RC,
    },
    Guard {
        entry: "b13",
        file: "crates/ferroce-proto/src/qp/responder/checks.rs",
        find: "if access.contains(needs) { Ok(()) } else { Err(INVALID) }",
        replace: "if access.contains(needs) { Ok(()) } else { Err(ACCESS) }",
        tests: RC,
    },
    Guard {
        entry: "b14",
        file: "crates/ferroce-proto/src/qp/responder/checks.rs",
        find: "match mem.check_remote(reth.rkey, reth.va, u64::from(reth.dma_len), access) {",
        replace: "match mem.check_remote(reth.rkey, reth.va, 1, access) {",
        tests: RC,
    },
    Guard {
        entry: "b15",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "self.advance(count);
        self.msn = self.msn.next();",
        replace: "self.advance(count);",
        tests: RC,
    },
    Guard {
        entry: "b15",
        file: "crates/ferroce-wire/src/num.rs",
        find: "Self::new(self.0.wrapping_add(count))",
        replace: "Self(self.0.wrapping_add(count))",
        tests: PROTO,
    },
    Guard {
        entry: "b16",
        file: "crates/ferroce-proto/src/qp/responder/checks.rs",
        find: "..0 => Err(Refusal::Duplicate),",
        replace: "..0 => Ok(()),",
        tests: RC,
    },
    Guard {
        entry: "b17",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "NakCode::RemoteAccessError => shared.events.raise(AsyncEvent::QpAccessErr),",
        replace: "NakCode::RemoteAccessError => {}",
        tests: RC,
    },
    Guard {
        entry: "b18",
        file: "crates/ferroce-proto/src/qp/responder/resources.rs",
        find: "self.ring.drain(..surplus);",
        replace: "let _ = surplus;",
        tests: RC,
    },
    Guard {
        entry: "b20",
        file: "crates/ferroce-proto/src/qp/requester.rs",
        find: "if self.rnr_until.is_some() || self.parked",
        replace: "if self.parked",
        tests: RC,
    },
    Guard {
        entry: "c1",
        file: "crates/ferroce-proto/src/qp/completer.rs",
        find: "if self.retries <= allowed || now",
        replace: "if allowed == 7 || self.retries <= allowed || now",
        tests: RC,
    },
    Guard {
        entry: "c2",
        file: "crates/ferroce-proto/src/qp/completer.rs",
        find: "if allowed != RNR_FOREVER {",
        replace: "if allowed <= RNR_FOREVER {",
        tests: RC,
    },
    Guard {
        entry: "c3",
        file: "crates/ferroce-proto/src/qp/completer.rs",
        find: "self.last_progress = until;
        self.gone_back_to = None;
        self.stop();",
        replace: "self.last_progress = until;
        self.gone_back_to = None;",
        tests: RC,
    },
    Guard {
        entry: "c4",
        file: "crates/ferroce-proto/src/qp/completer.rs",
        find: "if self.gone_back_to == Some(oldest) || side.requester.waits_for_receiver() {",
        replace: "if side.requester.waits_for_receiver() {",
        tests: RC,
    },
    Guard {
        entry: "c5",
        file: "crates/ferroce-proto/src/qp/completer.rs",
        find: "if side.line.oldest() != psn {
            return self.implied_nak(now, acknowledged.packets > 0, side);",
        replace: "if side.line.oldest() != psn {
            return Err(DropReason::ResponseGap.into());",
        tests: RC,
    },
    Guard {
        entry: "c6",
        file: "crates/ferroce-wire/src/num.rs",
        find: "((self.0.wrapping_sub(earlier.0) << 8) as i32) >> 8",
        replace: "self.0 as i32 - earlier.0 as i32",
        tests: RC,
    },
    Guard {
        entry: "c7",
        file: "crates/ferroce-proto/src/qp/send_queue.rs",
        find: "if wr.op.is_answered() && attr.max_rd_atomic == 0 {",
        replace: "if false {",
        tests: RC,
    },
    Guard {
        entry: "c8",
        file: "crates/ferroce-proto/src/qp/completer.rs",
        find: "| Syndrome::Reserved(_) => WcStatus::BadRespErr,",
        replace: "| Syndrome::Reserved(_) => WcStatus::Success,",
        tests: RC,
    },
    Guard {
        entry: "c9",
        file: "crates/ferroce-proto/src/qp/completer.rs",
        find: "if ends == ends_request && payload.len() == length => payload,",
        replace: "if ends == ends_request && length > 0 => payload,",
        tests: RC,
    },
    Guard {
        entry: "c10",
        file: "crates/ferroce-proto/src/qp/roles.rs",
        find: "if !operation {",
        replace: "if !operation && !destination {",
        tests: DATAGRAMS,
    },
    Guard {
        entry: "c11",
        file: "crates/ferroce-proto/src/qp/requester.rs",
        find: "PushError::Fill(_) => WcStatus::LocProtErr,",
        replace: "PushError::Fill(_) => WcStatus::LocQpOpErr,",
        tests: RC,
    },
    Guard {
        entry: "c12",
        file: "crates/ferroce-proto/src/qp/requester.rs",
        find: "|| (wqe.fence && line.reads_pending() > 0)",
        replace: "|| (wqe.fence && !line.is_quiet())",
        tests: RC,
    },
    Guard {
        entry: "c13",
        file: "crates/ferroce-proto/src/qp/pipeline.rs",
        find: "acknowledged.data += self.retire(&wqe, count, budget);",
        replace: "acknowledged.data += self.retire(&wqe, count, budget);
            break;",
        tests: RC,
    },
    Guard {
        entry: "c14",
        file: "crates/ferroce-proto/src/qp/completer.rs",
        find: "if ahead < 0 || ahead as u32 >= line.outstanding() {",
        replace: "if line.outstanding() == u32::MAX {",
        tests: RC,
    },
    Guard {
        entry: "c15",
        file: "crates/ferroce-proto/src/qp/completer.rs",
        find: "self.last_progress = now;
            self.arm(now, side.shared);",
        replace: "self.last_progress = now;",
        tests: RC,
    },
    Guard {
        entry: "c16",
        file: "crates/ferroce-proto/src/qp/mod.rs",
        find: "if given > u64::from(max) {",
        replace: "if given > 1 << 31 {",
        tests: UNRELIABLE,
    },
    Guard {
        entry: "c17",
        file: "crates/ferroce-proto/src/qp/mod.rs",
        find: "let done = self.line.queue.done();",
        replace: "let done = self.line.queue.started();",
        tests: RC,
    },
    Guard {
        entry: "c18",
        file: "crates/ferroce-wire/src/num.rs",
        find: "32768, 49152,",
        replace: "32768, 49151,",
        tests: RC,
    },
    Guard {
        entry: "d1",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "if shared.state() == QpState::Error && self.bound {",
        replace: "if shared.state() == QpState::Reset && self.bound {",
        tests: RC,
    },
    Guard {
        entry: "d2",
        file: "crates/ferroce-proto/src/qp/mod.rs",
        find: "if matches!(self.state(), QpState::Error | QpState::Sqe)",
        replace: "if matches!(self.state(), QpState::Sqe)",
        tests: RC,
    },
    Guard {
        entry: "d3",
        file: "crates/ferroce-proto/src/qp/mod.rs",
        find: "let to = state::check(self.service, from, attr, mask)?;",
        replace: "state::apply(&mut self.shared.attr, attr, mask);
        let to = state::check(self.service, from, attr, mask)?;",
        tests: RC,
    },
    Guard {
        entry: "d4",
        file: "crates/ferroce-proto/src/qp/mod.rs",
        find: "self.shared.attr.en_sqd_async_notify &= mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY);",
        replace: "self.shared.attr.en_sqd_async_notify = true;",
        tests: RC,
    },
    Guard {
        entry: "d6",
        file: "crates/ferroce-proto/src/qp/mod.rs",
        find: "self.shared.events.raise(AsyncEvent::QpFatal);",
        replace: "",
        tests: RC,
    },
    Guard {
        entry: "d7",
        file: "crates/ferroce-proto/src/srq.rs",
        find: "if max_wr == 0 || max_wr < self.len() {",
        replace: "if max_wr == 0 {",
        tests: PROTO,
    },
    Guard {
        entry: "d8",
        file: "crates/ferroce-proto/src/qp/mod.rs",
        find: "fn drop(&mut self) {
        self.stop_sending();",
        replace: "fn drop(&mut self) {",
        tests: RC,
    },
    Guard {
        entry: "d9",
        file: "crates/ferroce-engine/src/mcast.rs",
        find: "        qp.leave(mgid);",
        replace: "",
        tests: MULTICAST,
    },
    Guard {
        entry: "d10",
        file: "crates/ferroce-engine/src/memory/window.rs",
        find: "    if window.pd != pd {
        return Err(MemoryError::WrongPd);
    }",
        replace: "",
        tests: ENGINE,
    },
    Guard {
        entry: "d10",
        file: "crates/ferroce-engine/src/memory/window.rs",
        find: "if !whole.access.contains(Access::MW_BIND)",
        replace: "if !whole.access.contains(Access::LOCAL_WRITE)",
        tests: ENGINE,
    },
    Guard {
        entry: "d11",
        file: "crates/ferroce-engine/src/memory/table.rs",
        find: "    check(&new)?;
    Ok(new)",
        replace: "    Ok(new)",
        tests: ENGINE,
    },
    Guard {
        entry: "d12",
        file: "crates/ferroce-engine/src/memory/slots.rs",
        find: "control.uses = (control.uses + 1) % USES;",
        replace: "control.uses %= USES;",
        tests: ENGINE,
    },
    Guard {
        entry: "e3",
        file: "crates/ferroce-wire/src/icrc/checker.rs",
        find: "self.solver.solve(difference, transport.len())",
        replace: "None",
        tests: WIRE,
    },
    Guard {
        entry: "e4",
        file: "crates/ferroce-datapath/src/udp/tx.rs",
        find: "if flow.hop_limit != 0 && !own {",
        replace: "if !own {",
        tests: DATAPATH,
    },
    Guard {
        entry: "e8",
        file: "crates/ferroce-wire/src/num.rs",
        find: "    65536, 1, 2, 3, 4, 6, 8,",
        replace: "    0, 1, 2, 3, 4, 6, 8,",
        tests: RC,
    },
    Guard {
        entry: "e14",
        file: "crates/ferroce-engine/src/broker/logic/leases.rs",
        find: "notices.push(self.held_sentence(*address));",
        replace: "",
        tests: ENGINE,
    },
    Guard {
        entry: "e16",
        file: "crates/ferroce-proto/src/qp/responder.rs",
        find: "Some(Message::Write { length, .. }) => length,",
        replace: "Some(Message::Write { .. }) => self.wqe.length as u32,",
        tests: RC,
    },
    Guard {
        entry: "e17",
        file: "crates/ferroce-capi/src/qp_ex.rs",
        find: "(0..num_buf).map(piece)",
        replace: "(0..num_buf).take(1).map(piece)",
        tests: C_PROGRAMS,
    },
    Guard {
        entry: "e18",
        file: "crates/ferroce-engine/src/memory/table.rs",
        find: "if (access ^ old.access).contains(Access::ON_DEMAND) {",
        replace: "if (access ^ old.access).is_all() {",
        tests: ENGINE,
    },
    Guard {
        entry: "e19",
        file: "crates/ferroce-engine/src/qp.rs",
        find: "            if asked > max {",
        replace: "            if asked / 2 > max {",
        tests: LIFETIME,
    },
];

//! Flow steering: which frames a raw packet queue pair receives.

use core::ffi::c_int;
use std::sync::Arc;

use ferroce_abi as abi;
use ferroce_engine::{FlowId, Layer, Pattern, Qp, Rule};

use crate::call;
use crate::context::{Made, object};
use crate::entry::{Object, Ptr, export};
use crate::errno::Errno;
use crate::handle::{Pool, next_number};

/// A rule, and the queue pair that it is for.
type Steered = (Arc<Qp>, FlowId);

static POOL: Pool<abi::ibv_flow, Made<Steered>> = Pool::new();

object!(abi::ibv_flow => Made<Steered>);

/// Specifications of one rule; one header is asked for once at most by those that are known.
const MAX_SPECS: u8 = 16;
/// Octets of the largest specification.
const MAX_SPEC: usize = size_of::<abi::ibv_flow_spec_ipv6>();

export! {
    /// Has a raw packet queue pair receive the frames that all specifications match. Other sockets of the
    /// system, other queue pairs and the system itself receive them as well, so priorities and `DONT_TRAP`
    /// have nothing to decide.
    ///
    /// EINVAL for what is malformed, EOPNOTSUPP for specifications and actions of hardware alone.
    pub fn create_flow(qp: Object<abi::ibv_qp>, attr: Ptr<abi::ibv_flow_attr>) -> *mut abi::ibv_flow = call::pointer |owner| {
        let (_, live) = qp.enter(owner)?;
        let head = attr.read()?;
        let mut at = attr.as_ptr().wrapping_add(1).cast::<u8>().cast_const();
        let mut patterns = Vec::new();
        if head.num_of_specs > MAX_SPECS {
            return Err(Errno::EINVAL);
        }
        for _ in 0..head.num_of_specs {
            let size_at = at.wrapping_add(core::mem::offset_of!(abi::ibv_flow_spec_eth, size));
            // SAFETY: `num_of_specs` specifications follow the head, and each begins with type and size.
            let size = usize::from(unsafe { size_at.cast::<u16>().read_unaligned() });
            if !(HEAD..=MAX_SPEC).contains(&size) {
                return Err(Errno::EINVAL);
            }
            // SAFETY: a specification is readable in the size it states. Nobody writes to it
            // during the call, as to any argument of a verb.
            let spec = unsafe { core::slice::from_raw_parts(at, size) };
            patterns.extend(parse(spec)?);
            at = at.wrapping_add(size);
        }
        let rule = rule(&head, patterns)?;
        let id = live.engine.add_flow(rule)?;
        let context = live.context;
        let flow = abi::ibv_flow { comp_mask: 0, context: context.public(), handle: next_number() };
        let engine = Arc::new((Arc::clone(&live.engine), id));
        Ok(POOL.put(flow, Made { engine, context }).c())
    }

    /// Takes back a rule.
    pub fn destroy_flow(flow: Object<abi::ibv_flow>) -> c_int = call::ending |owner| {
        let (handle, _) = flow.enter(owner)?;
        POOL.end(handle, |live| {
            let (qp, id) = &*live.engine;
            qp.remove_flow(*id);
            Ok(())
        })
    }
}

/// Builds the engine's rule from the attributes.
fn rule(head: &abi::ibv_flow_attr, patterns: Vec<Pattern>) -> Result<Rule, Errno> {
    if head.comp_mask != 0 || head.port != 1 {
        return Err(Errno::EINVAL);
    }
    let trap = match head.flags {
        0 => true,
        abi::IBV_FLOW_ATTR_FLAGS_DONT_TRAP => false,
        flags if flags & abi::IBV_FLOW_ATTR_FLAGS_EGRESS != 0 => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    };
    let bare = patterns.is_empty() && trap;
    match head.type_ {
        abi::IBV_FLOW_ATTR_NORMAL => Ok(Rule::arriving(patterns)),
        abi::IBV_FLOW_ATTR_ALL_DEFAULT if bare => Ok(Rule::all(false)),
        abi::IBV_FLOW_ATTR_MC_DEFAULT if bare => Ok(Rule::all(true)),
        abi::IBV_FLOW_ATTR_SNIFFER if bare => Ok(Rule::sniffer()),
        _ => Err(Errno::EINVAL),
    }
}

/// Type and size, and two octets that align some filters.
const HEAD: usize = 6;

/// The patterns of one specification, whose octets are in network order.
fn parse(spec: &[u8]) -> Result<Vec<Pattern>, Errno> {
    let kind = abi::ibv_flow_spec_type::from_ne_bytes(*spec.first_chunk().ok_or(Errno::EINVAL)?);
    let (start, filter, end) = match kind {
        abi::IBV_FLOW_SPEC_ETH => (6, 16, 40),
        abi::IBV_FLOW_SPEC_IPV4 => (8, 8, 24),
        abi::IBV_FLOW_SPEC_IPV4_EXT => (8, 12, 32),
        abi::IBV_FLOW_SPEC_IPV6 => (8, 40, 88),
        abi::IBV_FLOW_SPEC_TCP | abi::IBV_FLOW_SPEC_UDP => (6, 4, 16),
        abi::IBV_FLOW_SPEC_ESP
        | abi::IBV_FLOW_SPEC_VXLAN_TUNNEL
        | abi::IBV_FLOW_SPEC_GRE
        | abi::IBV_FLOW_SPEC_MPLS
        | abi::IBV_FLOW_SPEC_ACTION_TAG
        | abi::IBV_FLOW_SPEC_ACTION_DROP
        | abi::IBV_FLOW_SPEC_ACTION_HANDLE
        | abi::IBV_FLOW_SPEC_ACTION_COUNT => return Err(Errno::EOPNOTSUPP),
        kind if kind & abi::IBV_FLOW_SPEC_INNER != 0 => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    };
    if spec.len() != end {
        return Err(Errno::EINVAL);
    }
    let (value, mask) = spec[start..start + 2 * filter].split_at(filter);
    let field = |pattern: Pattern, to: usize, from: core::ops::Range<usize>| {
        pattern.at(to, &value[from.clone()], &mask[from])
    };
    Ok(match kind {
        abi::IBV_FLOW_SPEC_ETH => {
            let ethernet = field(Pattern::new(Layer::Ethernet), 0, 0..14);
            let tagged = mask[14..16] != [0; 2];
            let vlan = tagged.then(|| field(Pattern::new(Layer::Vlan), 0, 14..16));
            [Some(ethernet), vlan].into_iter().flatten().collect()
        }
        abi::IBV_FLOW_SPEC_IPV4 => vec![field(Pattern::new(Layer::Ipv4), 12, 0..8)],
        abi::IBV_FLOW_SPEC_IPV4_EXT => {
            let addresses = field(Pattern::new(Layer::Ipv4), 12, 0..8);
            let protocol = field(addresses, 9, 8..9);
            let tos = field(protocol, 1, 9..10);
            let ttl = field(tos, 8, 10..11);
            vec![ttl.at(6, &[wire_flags(value[11])], &[wire_flags(mask[11])])]
        }
        abi::IBV_FLOW_SPEC_IPV6 => {
            let addresses = field(Pattern::new(Layer::Ipv6), 8, 0..32);
            let next = field(addresses, 6, 36..37);
            let hops = field(next, 7, 38..39);
            vec![hops.at(0, &first_word(value), &first_word(mask))]
        }
        _ => {
            let layer = if kind == abi::IBV_FLOW_SPEC_TCP { Layer::Tcp } else { Layer::Udp };
            vec![field(field(Pattern::new(layer), 2, 0..2), 0, 2..4)]
        }
    })
}

/// DF and MF where the header has them; the kernel's interface has 2 and 4.
const fn wire_flags(flags: u8) -> u8 {
    (flags & 2) << 5 | (flags & 4) << 3
}

/// Traffic class and flow label where the IPv6 header has them, behind the version.
fn first_word(filter: &[u8]) -> [u8; 4] {
    let label = u32::from_be_bytes([filter[32], filter[33], filter[34], filter[35]]) & 0x000f_ffff;
    (u32::from(filter[37]) << 20 | label).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kind: abi::ibv_flow_spec_type, start: usize, value: &[u8], mask: &[u8]) -> Vec<u8> {
        let size = start + value.len() + mask.len();
        let size = size.next_multiple_of(if start == 8 || kind != abi::IBV_FLOW_SPEC_ETH { 4 } else { 2 });
        let mut spec = kind.to_ne_bytes().to_vec();
        spec.extend((size as u16).to_ne_bytes());
        spec.resize(start, 0);
        spec.extend(value);
        spec.extend(mask);
        spec.resize(if kind == abi::IBV_FLOW_SPEC_ETH { 40 } else { size }, 0);
        spec
    }

    fn matches(spec: &[u8], frame: &[u8]) -> bool {
        Rule::arriving(parse(spec).expect("a specification")).matches(frame, false)
    }

    /// 02:..:01 to 02:..:02 in VLAN 5, IPv4 with DF, TOS 0x10, TTL 9, UDP 0x1234 to 0x5678.
    fn over_ipv4() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0x60, 5, 8, 0];
        frame.extend([0x45, 0x10, 0, 28, 0, 0, 0x40, 0, 9, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x12, 0x34, 0x56, 0x78, 0, 8, 0, 0]);
        frame
    }

    /// Traffic class 0x12, flow label 0x34567, hop limit 9, TCP 0x1234 to 0x5678.
    fn over_ipv6() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
        frame.extend([0x61, 0x23, 0x45, 0x67, 0, 20, 6, 9]);
        frame.extend([[0xfd; 16], [0xfe; 16]].concat());
        frame.extend([0x12, 0x34, 0x56, 0x78]);
        frame
    }

    /// Each field of each specification finds its place in the frame: with the right value, and not with
    /// another.
    #[test]
    fn fields_of_specifications_are_those_of_headers() {
        let eth = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x60, 5];
        let v4 = [10, 0, 0, 1, 10, 0, 0, 2, 17, 0x10, 9, 2];
        let mut v6 = [[0xfd_u8; 16], [0xfe; 16]].concat();
        v6.extend([0, 3, 0x45, 0x67, 6, 0x12, 9, 0]);
        let ports = [0x56, 0x78, 0x12, 0x34];
        for (kind, start, value, frame, ignored) in [
            (abi::IBV_FLOW_SPEC_ETH, 6, &eth[..], over_ipv4(), &[][..]),
            (abi::IBV_FLOW_SPEC_IPV4, 8, &v4[..8], over_ipv4(), &[]),
            (abi::IBV_FLOW_SPEC_IPV4_EXT, 8, &v4, over_ipv4(), &[]),
            // A flow label has 20 bits; the last octet is padding.
            (abi::IBV_FLOW_SPEC_IPV6, 8, &v6, over_ipv6(), &[32, 39]),
            (abi::IBV_FLOW_SPEC_UDP, 6, &ports, over_ipv4(), &[]),
            (abi::IBV_FLOW_SPEC_TCP, 6, &ports, over_ipv6(), &[]),
        ] {
            assert!(matches(&spec(kind, start, value, &vec![0xff; value.len()]), &frame), "{kind:#x}");
            for at in (0..value.len()).filter(|at| !ignored.contains(at)) {
                let mut other = value.to_vec();
                other[at] ^= if kind == abi::IBV_FLOW_SPEC_IPV4_EXT && at == 11 { 4 } else { 1 };
                let mut mask = vec![0; value.len()];
                assert!(matches(&spec(kind, start, &other, &mask), &frame), "{kind:#x} without octet {at}");
                mask[at] = 0xff;
                assert!(matches(&spec(kind, start, value, &mask), &frame), "{kind:#x} octet {at}");
                assert!(!matches(&spec(kind, start, &other, &mask), &frame), "{kind:#x} another octet {at}");
            }
        }
        let udp = spec(abi::IBV_FLOW_SPEC_UDP, 6, &ports, &[0; 4]);
        assert!(!matches(&udp, &over_ipv6()), "a specification asks for its header");
    }

    #[test]
    fn what_is_malformed_or_for_hardware_is_told_apart() {
        for kind in [
            abi::IBV_FLOW_SPEC_ESP,
            abi::IBV_FLOW_SPEC_GRE,
            abi::IBV_FLOW_SPEC_MPLS,
            abi::IBV_FLOW_SPEC_VXLAN_TUNNEL,
            abi::IBV_FLOW_SPEC_ACTION_TAG,
            abi::IBV_FLOW_SPEC_ACTION_COUNT,
            abi::IBV_FLOW_SPEC_INNER | abi::IBV_FLOW_SPEC_IPV4,
        ] {
            assert_eq!(parse(&spec(kind, 8, &[0; 4], &[0; 4])), Err(Errno::EOPNOTSUPP), "{kind:#x}");
        }
        assert_eq!(parse(&spec(0x99, 8, &[0; 4], &[0; 4])), Err(Errno::EINVAL));
        assert_eq!(parse(&spec(abi::IBV_FLOW_SPEC_IPV4, 8, &[0; 4], &[0; 4])), Err(Errno::EINVAL));
        assert_eq!(parse(&[]), Err(Errno::EINVAL));
    }

    #[test]
    fn kinds_of_rules() {
        let head = |type_, flags, port| abi::ibv_flow_attr {
            comp_mask: 0,
            type_,
            size: 0,
            priority: 3,
            num_of_specs: 0,
            port,
            flags,
        };
        let some = || vec![Pattern::new(Layer::Udp)];
        let dont_trap = abi::IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
        for (attr, patterns, want) in [
            (head(abi::IBV_FLOW_ATTR_NORMAL, 0, 1), some(), Ok(Rule::arriving(some()))),
            (head(abi::IBV_FLOW_ATTR_NORMAL, dont_trap, 1), some(), Ok(Rule::arriving(some()))),
            (head(abi::IBV_FLOW_ATTR_NORMAL, 0, 1), vec![], Ok(Rule::all(false))),
            (head(abi::IBV_FLOW_ATTR_ALL_DEFAULT, 0, 1), vec![], Ok(Rule::all(false))),
            (head(abi::IBV_FLOW_ATTR_MC_DEFAULT, 0, 1), vec![], Ok(Rule::all(true))),
            (head(abi::IBV_FLOW_ATTR_SNIFFER, 0, 1), vec![], Ok(Rule::sniffer())),
            (head(abi::IBV_FLOW_ATTR_ALL_DEFAULT, 0, 1), some(), Err(Errno::EINVAL)),
            (head(abi::IBV_FLOW_ATTR_SNIFFER, dont_trap, 1), vec![], Err(Errno::EINVAL)),
            (head(abi::IBV_FLOW_ATTR_NORMAL, 1, 1), some(), Err(Errno::EINVAL)),
            (head(abi::IBV_FLOW_ATTR_NORMAL, 4, 1), some(), Err(Errno::EOPNOTSUPP)),
            (head(abi::IBV_FLOW_ATTR_NORMAL, 0, 2), some(), Err(Errno::EINVAL)),
            (head(9, 0, 1), vec![], Err(Errno::EINVAL)),
        ] {
            let name = (attr.type_, attr.flags, attr.port);
            assert_eq!(rule(&attr, patterns), want, "{name:?}");
        }
    }
}

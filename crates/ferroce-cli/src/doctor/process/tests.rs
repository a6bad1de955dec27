use super::*;
use crate::program::Elf;

const MAPS: &str = "\
55d0c0a00000-55d0c0a01000 r--p 00000000 fe:00 131 /opt/a b/server
55d0c0a01000-55d0c0a02000 r-xp 00001000 fe:00 131 /opt/a b/server
7f0000000000-7f0000001000 r-xp 00000000 fe:00 132 /lib/libferroce-audit.so
7f0000010000-7f0000011000 r-xp 00000000 fe:00 133 /lib/libibverbs.so.1
7f0000020000-7f0000021000 rw-p 00000000 00:00 0
7f0000030000-7f0000031000 rw-p 00000000 00:00 0 [heap]
7f0000040000-7f0000041000 r-xp 00000000 fe:00 134 /lib/librdmacm-0a1b2c3d.so.1.3.57.0 (deleted)
";

fn dynamic() -> Kind {
    Kind::Elf(Elf { loader: Some("/lib64/ld-linux-x86-64.so.2".to_owned()), dynamic: true, ..Elf::default() })
}

fn facts(libraries: &[(&str, Option<bool>)]) -> Facts {
    Facts {
        program: "/opt/server".into(),
        kind: dynamic(),
        secure: Some(false),
        musl: false,
        libraries: libraries.iter().map(|(path, ours)| (path.into(), *ours)).collect(),
        auditor: None,
        environment: Some(BTreeMap::new()),
        uid: Some(1000),
        same_network: Some(true),
    }
}

/// The findings, as the check, the state and the text.
fn judged(facts: &Facts, broker: &Broker) -> Vec<(&'static str, Severity, String)> {
    let findings = findings(7, facts, broker).into_iter().skip(1);
    findings.map(|finding| (finding.check, finding.state, finding.found)).collect()
}

#[test]
fn files_of_the_map() {
    let files = mapped(MAPS.as_bytes());
    let names: Vec<_> = files.iter().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "/opt/a b/server",
            "/lib/libferroce-audit.so",
            "/lib/libibverbs.so.1",
            "/lib/librdmacm-0a1b2c3d.so.1.3.57.0 (deleted)"
        ]
    );
    assert!(program::is_ours("librdmacm-0a1b2c3d.so.1.3.57.0 (deleted)"));
}

#[test]
fn musl_by_its_loader() {
    let wants = |loader: &str| Kind::Elf(Elf { loader: Some(loader.to_owned()), ..Elf::default() });
    assert!(has_musl(&wants("/lib/ld-musl-x86_64.so.1"), &["/usr/lib/musl/libc.so".into()]));
    assert!(has_musl(&Kind::Unknown, &["/lib/ld-musl-x86_64.so.1".into()]));
    assert!(!has_musl(&dynamic(), &["/lib/libmusl.so".into()]));
}

#[test]
fn settings_and_the_auxiliary_vector() {
    let found = variables(b"PATH=/bin\0LD_AUDIT=/a.so:/b.so\0FERROCE_NETDEV=eth0\0FERROCE_LOG=debug\0odd\0");
    let names: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(names, [("FERROCE_NETDEV", "eth0"), ("LD_AUDIT", "/a.so:/b.so")]);
    let auxv: Vec<u8> = [6u64, 4096, AT_SECURE, 1, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!(
        (entry(&auxv, AT_SECURE), entry(&auxv, 9), entry(&auxv[..20], AT_SECURE)),
        (Some(1), None, None)
    );
}

#[test]
fn libraries_of_ours_and_of_others() {
    let ours = facts(&[("/lib/libibverbs.so.1", Some(true))]);
    let found = judged(&ours, &Broker::None);
    assert_eq!(found[0], (LIBRARY, Severity::Ok, "/lib/libibverbs.so.1 is ferroce's".to_owned()));
    assert_eq!((found[1].0, found[1].1), (AUDITOR, Severity::Note));
    assert_eq!((found[2].0, found[2].1), (DEVICES, Severity::Ok));
    let theirs =
        facts(&[("/lib/libibverbs.so.1.14.44.0", Some(false)), ("/lib/librdmacm.so.1 (deleted)", None)]);
    let found = judged(&theirs, &Broker::None);
    let states: Vec<_> = found.iter().map(|(check, state, _)| (*check, *state)).collect();
    assert_eq!(states, [(LIBRARY, Severity::Error), (LIBRARY, Severity::Warning), (AUDITOR, Severity::Note)]);
    let found = judged(&facts(&[]), &Broker::None);
    assert_eq!((found[0].0, found[0].1), (LIBRARY, Severity::Note));
}

#[test]
fn the_auditor_is_the_mapped_one() {
    let with = |auditor: Option<&str>, variable: Option<&str>| {
        let environment =
            variable.map(|value| ("LD_AUDIT".to_owned(), value.to_owned())).into_iter().collect();
        let facts =
            Facts { auditor: auditor.map(PathBuf::from), environment: Some(environment), ..facts(&[]) };
        judged(&facts, &Broker::None).into_iter().find(|(check, ..)| *check == AUDITOR).unwrap()
    };
    assert_eq!(with(Some("/x/libferroce-audit.so"), None).1, Severity::Ok);
    assert!(with(None, Some("/x/libferroce-audit.so")).2.contains("did not take it"));
    assert!(with(None, None).2.starts_with("runs without"));
    // The libraries will be ferroce's, so the devices count.
    let audited = Facts { auditor: Some("/x/libferroce-audit.so".into()), ..facts(&[]) };
    assert!(judged(&audited, &Broker::None).iter().any(|(check, ..)| *check == DEVICES));
}

#[test]
fn processes_that_cannot_have_the_libraries() {
    let one = |facts: &Facts| {
        let found = judged(facts, &Broker::None);
        assert_eq!((found[0].0, found[0].1), (PROCESS, Severity::Error), "{found:?}");
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].2.clone()
    };
    assert!(one(&Facts { kind: Kind::Foreign, ..facts(&[]) }).contains("32 bits"));
    assert!(one(&Facts { kind: Kind::Elf(Elf::default()), ..facts(&[]) }).contains("static"));
    assert!(one(&Facts { musl: true, ..facts(&[]) }).contains("musl"));
    assert!(one(&Facts { secure: Some(true), ..facts(&[]) }).contains("more rights"));
    // The host's own libraries may be ferroce's.
    let switched = Facts { secure: Some(true), ..facts(&[("/lib/libibverbs.so.1", Some(true))]) };
    let found = judged(&switched, &Broker::None);
    assert_eq!((found[0].1, found[1].1), (Severity::Note, Severity::Ok));
}

#[test]
fn devices_are_those_of_the_broker_that_serves_the_process() {
    let device = |facts: Facts, broker: &Broker| judged(&facts, broker).into_iter().last().unwrap();
    let ours = || facts(&[("/lib/libibverbs.so.1", Some(true))]);
    let runs = |uid| Broker::Runs { pid: 5, uid, devices: Vec::new() };
    for (uid, state) in [(0, Severity::Ok), (1000, Severity::Ok), (1001, Severity::Error)] {
        assert_eq!(device(ours(), &runs(uid)).1, state, "{uid}");
    }
    assert_eq!(device(ours(), &Broker::Unusable("why".to_owned())).1, Severity::Warning);
    let other = Facts { same_network: Some(false), ..ours() };
    assert!(device(other, &Broker::None).2.contains("own network namespace"));
    let set = |value: &str| Some([("FERROCE_BROKER".to_owned(), value.to_owned())].into_iter().collect());
    let lonely = Facts { environment: set("none"), ..ours() };
    assert_eq!(device(lonely, &Broker::None).1, Severity::Error);
    assert!(
        device(Facts { environment: set("embedded"), ..ours() }, &Broker::None)
            .2
            .ends_with("FERROCE_BROKER=embedded")
    );
}

#[test]
fn processes_that_show_nothing() {
    for (opaque, part) in [
        (Opaque::Missing, "there is no process 7"),
        (Opaque::Forbidden(Some(33)), "of uid 33"),
        (Opaque::Ended, "has ended"),
        (Opaque::KernelThread, "thread of the kernel"),
    ] {
        let finding = of_opaque(7, &opaque);
        assert_eq!(finding.state, Severity::Error);
        assert!(finding.found.contains(part), "{}", finding.found);
    }
}

#[test]
fn this_process_is_seen() {
    let facts = Facts::gather(std::process::id()).unwrap();
    assert_eq!(facts.program, std::env::current_exe().unwrap());
    assert!(matches!(&facts.kind, Kind::Elf(elf) if elf.loader.is_some()));
    assert_eq!((facts.secure, facts.musl, facts.same_network), (Some(false), false, Some(true)));
    assert!(facts.environment.is_some());
    // Linux gives no process this number.
    assert_eq!(Facts::gather(u32::MAX).unwrap_err(), Opaque::Missing);
}

# The Debian package beside the distribution's rdma-core: installed, switched on and off, removed, purged.
files() {
    find / -xdev \( -path /proc -o -path /packages -o -path /tmp -o -path /home -o -path /var/lib/dpkg -o -path /var/log \
        -o -path /var/cache -o -path /etc/ld.so.cache \) -prune -o -print | sort
}
ours() { ldd "$(command -v ibv_devices)" | grep -c /usr/lib/ferroce/ || true; }
# Without a device of the kernel, rdma-core's answer is an error: the same words must come back.
theirs() { as_user ibv_devices 2>&1 || true; }
files >/tmp/before
theirs >/tmp/theirs
dpkg -i /packages/ferroce_*.deb
dpkg --verify ferroce || fail "dpkg --verify"
ferroce --version

has_fr0 ferroce run -- || fail "no device under ferroce run"
pingpong ferroce run --
ping ferroce run --
[ "$(ours)" = 0 ] || fail "the library is used without being switched on"
! as_user ibv_devices | grep -q fr0 || fail "a device without ferroce run"

as_user ferroce system on >/tmp/refusal 2>&1 && fail "a user switched it on"
grep -q "only root can" /tmp/refusal || fail "$(cat /tmp/refusal)"
if [ "$SWITCHES" = no ]; then
    ferroce system on >/tmp/refusal 2>&1 && fail "it is switched on with an old loader"
    grep -q "needs glibc 2.30" /tmp/refusal || fail "$(cat /tmp/refusal)"
    as_user ferroce stop --force
    dpkg -P ferroce
    files >/tmp/after
    diff /tmp/before /tmp/after || fail "files are left"
    exit 0
fi
ferroce system on
ferroce system on
as_user ferroce system status | grep -q "^libraries on " || fail "status"
[ "$(ours)" = 1 ] || fail "it is on, and not used"
has_fr0 || fail "no device after system on"
pingpong env
# librdmacm by its own name: linked, and opened later.
ping env
if command -v python3 >/dev/null; then
    as_user python3 -c 'import ctypes; ctypes.CDLL("librdmacm.so.1").rdma_create_event_channel; ctypes.CDLL("libibumad.so.3").umad_init'
    as_user python3 -c 'import ctypes; ctypes.CDLL("libibverbs.so").ibv_get_device_list; ctypes.CDLL("librdmacm.so").rdma_create_event_channel'
fi
# A program with more rights than its caller: the loader ignores LD_LIBRARY_PATH for it.
cp "$(command -v ibv_devices)" /usr/local/bin/setgid
chgrp games /usr/local/bin/setgid
chmod 2755 /usr/local/bin/setgid
setpriv --reuid 1000 --regid 1000 --clear-groups env HOME=/home/user setgid | grep -q fr0 || fail "a set-group-ID program"
rm /usr/local/bin/setgid
# An upgrade keeps the switch.
dpkg -i /packages/ferroce_*.deb
has_fr0 || fail "no device after an upgrade"

ferroce system off
ferroce system off
[ "$(ours)" = 0 ] || fail "it is off, and used"
theirs | cmp - /tmp/theirs || fail "rdma-core answers otherwise after system off"
as_user ferroce system status | grep -q "^libraries off " || fail "status"
dpkg --verify || fail "a file of another package was changed"

ferroce system on
as_user ferroce stop --force
dpkg -r ferroce
[ ! -e /etc/ld.so.conf.d/00-ferroce.conf ] || fail "the switch is left"
[ "$(ours)" = 0 ] || fail "it is removed, and used"
theirs | cmp - /tmp/theirs || fail "rdma-core answers otherwise after the removal"
mkdir -p /var/lib/ferroce
dpkg -P ferroce
files >/tmp/after
diff /tmp/before /tmp/after || fail "files are left"

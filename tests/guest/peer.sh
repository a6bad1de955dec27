#!/bin/bash
# The Linux kernel's rdma_rxe as a peer: the guest that `cargo xtask guest` built, in QEMU (TCG, no KVM needed), on a tap in a
# network namespace of its own. Needs root. The stage `peer` uses it; by hand:
#
#   peer.sh up; peer.sh exec -- ibv_devinfo -d rxe0; peer.sh net PROGRAM; peer.sh down
#
#                 the host's end         the guest's end
#   device        tap peer0              eth0, rxe0 on it (GID 1: IPv4, 2: IPv6)
#   addresses     10.77.0.1, fd77::1     10.77.0.2, fd77::2
#
# A second network card (10.78.0.0/24) carries the commands by ssh, so that the wire stays clean.
#
#   peer.sh up [--mtu N] [--nics N] [--smp N] [--mem MB] [--modules a,b] [--rxe NAME|none]
#   peer.sh exec [-i] [-t SECS] -- CMD [ARG...]     one command, status relayed
#                    (-i: with standard input; -t: ended after SECS, status 124)
#   peer.sh sh   [-i] [-t SECS] 'SHELL TEXT'        the same by the guest's bash
#   peer.sh push LOCAL REMOTE | pull REMOTE LOCAL   one file
#   peer.sh mtu N                                   both ends of the wire
#   peer.sh net CMD [ARG...]                        CMD on the host, inside the netns
#   peer.sh status | console | down
#
# PEER_NS     netns name, one guest each (default ferroce-peer)
# PEER_CACHE  where build.sh put the kernel and initramfs (default target/guest)
# PEER_RUN    folder for pid, log and control socket (default under $TMPDIR or /tmp)
# PEER_NIC_OPTS  more properties of the data NIC, e.g. ",csum=off,gso=off"
# PEER_CPU    -cpu argument (default max); PEER_ACCEL -accel argument (default TCG)
# PEER_BOOT_TIMEOUT  seconds (default 180)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ns=${PEER_NS:-ferroce-peer}
cache=${PEER_CACHE:-$here/../../target/guest}
run=${PEER_RUN:-${TMPDIR:-/tmp}/peer-run-$(id -u)/$ns}
export PATH=$PATH:/usr/sbin:/sbin
die() { echo "peer.sh: $*" >&2; exit 125; }

sshopts=(-F none -i "$cache/id_peer" -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no
         -o LogLevel=ERROR -o BatchMode=yes -o IdentitiesOnly=yes -o ConnectTimeout=20
         -o PreferredAuthentications=publickey -o Compression=no -o ControlPath="$run/ctl")
to=root@10.78.0.2
alive() { [ -s "$run/pid" ] && kill -0 "$(cat "$run/pid")" 2>/dev/null; }
master() {  # one connection carries all the commands; without it each makes its own
    ssh "${sshopts[@]}" -O check "$to" >/dev/null 2>&1 && return 0
    ip netns exec "$ns" ssh "${sshopts[@]}" -o ControlPersist=yes -MNf "$to" \
        </dev/null >>"$run/ssh.log" 2>&1
}
# guest ID-OR-EMPTY: run the already quoted text in the guest
guest() { ip netns exec "$ns" ssh "${sshopts[@]}" -o ControlMaster=no "$@"; }

cmd_up() {
    local mtu=1500 nics=1 smp=2 mem=1024 mods= rxe=rxe0 t0 t1 i
    while [ $# -gt 0 ]; do
        case $1 in
        --mtu) mtu=$2; shift 2;;
        --nics) nics=$2; shift 2;;
        --smp) smp=$2; shift 2;;
        --mem) mem=$2; shift 2;;
        --modules) mods=$2; shift 2;;
        --rxe) rxe=$2; shift 2;;
        *) die "up: what is $1?";;
        esac
    done
    alive && die "already up (pid $(cat "$run/pid")); peer.sh down first"
    [ "$(cat "$cache/STAMP" 2>/dev/null)" = "$("$here/build.sh" --stamp)" ] ||
        die "no guest of these sources is in $cache; \`cargo xtask guest\` builds it"
    mkdir -p "$run"; chmod 700 "$run"
    rm -f "$run"/{pid,ctl,console,ssh.log,qemu.log}
    [ -e "/run/netns/$ns" ] && die "netns $ns exists already: ip netns del $ns, or another PEER_NS"
    t0=$(date +%s%N)
    ip netns add "$ns"
    local n=(ip -n "$ns")
    "${n[@]}" link set lo up
    local nic=()
    for ((i = 0; i < nics; i++)); do
        "${n[@]}" tuntap add "peer$i" mode tap
        "${n[@]}" link set "peer$i" mtu "$mtu" addrgenmode none up
        nic+=(-netdev "tap,id=d$i,ifname=peer$i,script=no,downscript=no"
              -device "virtio-net-pci,netdev=d$i,romfile=,mac=52:54:00:77:0$i:02,addr=0x$((4 + i))${PEER_NIC_OPTS:-}")
    done
    "${n[@]}" tuntap add mgmt0 mode tap
    ip netns exec "$ns" sh -c 'echo 0 >/proc/sys/net/ipv6/conf/peer0/accept_dad; echo 0 >/proc/sys/net/ipv6/conf/peer0/accept_ra;
        echo 1 >/proc/sys/net/ipv6/conf/mgmt0/disable_ipv6' 2>/dev/null || true
    "${n[@]}" link set peer0 address 52:54:00:77:00:01
    "${n[@]}" link set peer0 addrgenmode eui64
    "${n[@]}" addr add 10.77.0.1/24 dev peer0
    "${n[@]}" addr add fd77::1/64 dev peer0 nodad
    "${n[@]}" addr add 10.78.0.1/24 dev mgmt0
    "${n[@]}" link set mgmt0 up
    nic+=(-netdev tap,id=m,ifname=mgmt0,script=no,downscript=no
          -device virtio-net-pci,netdev=m,romfile=,mac=52:54:00:78:00:ff,addr=0x16)
    ip netns exec "$ns" qemu-system-x86_64 -name "$ns" -nodefaults -no-user-config -display none \
        -machine q35 -accel "${PEER_ACCEL:-tcg,thread=multi,tb-size=256}" -cpu "${PEER_CPU:-max}" -smp "$smp" -m "$mem" \
        -kernel "$cache/vmlinux" -initrd "$cache/initramfs.cpio" \
        -append "console=ttyS0 ${PEER_VERBOSE:-quiet loglevel=4} rdinit=/init panic=-1 mitigations=off nokaslr audit=0 apparmor=0 nowatchdog no_timer_check cryptomgr.notests 8250.nr_uarts=1 rcupdate.rcu_expedited=1 net.ifnames=0 random.trust_cpu=on iommu=off peer.mtu=$mtu peer.rxe=$rxe peer.modules=$mods" \
        -serial "file:$run/console" -monitor none -no-reboot \
        -device virtio-rng-pci,addr=0x18 "${nic[@]}" -pidfile "$run/pid" -daemonize 2>"$run/qemu.log" </dev/null >&2 ||
        { cat "$run/qemu.log" >&2; cmd_down; die "qemu did not start"; }
    local deadline=$((SECONDS + ${PEER_BOOT_TIMEOUT:-180}))
    until grep -q 'peer: ready' "$run/console" 2>/dev/null; do
        alive || { tail -20 "$run/console" >&2; cmd_down; die "the guest ended while booting"; }
        [ $SECONDS -lt $deadline ] || { tail -20 "$run/console" >&2; cmd_down; die "the guest did not come up in time"; }
        sleep 0.1
    done
    for i in 1 2 3 4 5; do master && break; sleep 0.5; done
    guest -n "$to" "test -e /run/ready" || { cmd_down; die "the guest does not answer"; }
    t1=$(date +%s%N)
    echo "peer: up in $(((t1 - t0) / 1000000)) ms, pid $(cat "$run/pid"), netns $ns, kernel $(cut -d' ' -f1 "$cache/VERSION"), mtu $mtu" >&2
}

cmd_exec() {    # exec [-i] [-t SECS] -- CMD...
    local stdin=-n secs=0 id q rc
    while [ $# -gt 0 ]; do
        case $1 in
        -i) stdin=; shift;;
        -t) secs=$2; shift 2;;
        --) shift; break;;
        *) break;;
        esac
    done
    [ $# -gt 0 ] || die "exec: no command"
    alive || die "no guest is up (peer.sh up)"
    id=$$.$RANDOM
    q=$(printf '%q ' peer-run "$id" "$secs" "$@")
    master || true
    if [ -z "$stdin" ]; then guest "$to" "$q" <&0 & else guest -n "$to" "$q" </dev/null & fi
    local p=$!
    # shellcheck disable=SC2064
    trap "guest -n $to 'kill -TERM -- -\$(cat /run/exec/$id)' 2>/dev/null; kill $p 2>/dev/null; exit 143" TERM INT HUP
    rc=0; wait $p || rc=$?
    trap - TERM INT HUP
    return $rc
}

cmd_sh() {
    local o=()
    while [ $# -gt 1 ]; do
        case $1 in -i) o+=(-i); shift;; -t) o+=(-t "$2"); shift 2;; *) break;; esac
    done
    cmd_exec "${o[@]}" -- bash -c "$*"
}

cmd_down() {
    local p= i
    if [ -s "$run/pid" ]; then
        p=$(cat "$run/pid")
        ssh "${sshopts[@]}" -O exit "$to" >/dev/null 2>&1 || true
        # only the qemu that `up` started: its command line names this netns
        if tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null | grep -q -- "qemu-system.*-name $ns "; then
            kill "$p" 2>/dev/null || true
            for i in $(seq 50); do kill -0 "$p" 2>/dev/null || break; sleep 0.1; done
            kill -9 "$p" 2>/dev/null || true
        fi
        rm -f "$run/pid"
        ip netns del "$ns" 2>/dev/null || true
    elif [ -d "$run" ]; then
        ip netns del "$ns" 2>/dev/null || true
    fi
    rm -f "$run/ctl"
    echo "peer: down" >&2
}

verb=${1:-}; [ $# -gt 0 ] && shift
case $verb in
up) cmd_up "$@";;
exec) cmd_exec "$@";;
sh) cmd_sh "$@";;
push) [ $# = 2 ] || die "push LOCAL REMOTE"; cmd_exec -i -- sh -c 'cat >"$1"' sh "$2" <"$1";;
pull) [ $# = 2 ] || die "pull REMOTE LOCAL"; cmd_exec -- cat "$1" >"$2";;
mtu) [ $# = 1 ] || die "mtu N"; ip -n "$ns" link set peer0 mtu "$1"; cmd_exec -- ip link set eth0 mtu "$1";;
net) exec ip netns exec "$ns" "$@";;
status) if alive; then echo "up, pid $(cat "$run/pid"), netns $ns, $(cat "$cache/VERSION")"; else echo down; exit 1; fi;;
console) cat "$run/console";;
down) cmd_down;;
*) sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//'; exit 2;;
esac

#!/bin/bash
# Two network namespaces joined by a veth that drops packets at random in both directions, by XDP: every packet is real
# (segmentation offload is off while a program is attached) and no kernel module is needed. Root, clang, libbpf-dev.
#
#   lossy-veth.sh up [PPM]       makes NAME-a (10.66.0.1, v0) and NAME-b (10.66.0.2, v1), MTU 1500; drops PPM per million
#   lossy-veth.sh loss PPM       changes the loss; 0 keeps the program, so that paths stay comparable
#   lossy-veth.sh net a|b CMD …  runs CMD in that namespace
#   lossy-veth.sh down           ends what runs in the two namespaces and removes them
#
# LOSSY_NAME (default lossy) names another pair. XDP refuses MTUs above about 3,500 on a veth.
set -euo pipefail
name=${LOSSY_NAME:-lossy}; a=$name-a; b=$name-b
need() {
    local p missing=
    for p in clang llvm libbpf-dev iproute2; do dpkg -s "$p" >/dev/null 2>&1 || missing+=" $p"; done
    [ -z "$missing" ] || { echo "lossy-veth.sh: missing; please run apt-get install$missing" >&2; exit 1; }
}
loss() {
    local dir; dir=$(mktemp -d)
    cat >"$dir/drop.c" <<C
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int drop(struct xdp_md *ctx) { return bpf_get_prandom_u32() % 1000000 < $1 ? XDP_DROP : XDP_PASS; }
char _license[] SEC("license") = "GPL";
C
    clang -O2 -target bpf -I"/usr/include/$(gcc -dumpmachine 2>/dev/null || echo x86_64-linux-gnu)" -c "$dir/drop.c" -o "$dir/drop.o"
    ip -n "$a" link set dev v0 xdp off; ip -n "$b" link set dev v1 xdp off
    ip -n "$a" link set dev v0 xdp obj "$dir/drop.o" sec xdp
    ip -n "$b" link set dev v1 xdp obj "$dir/drop.o" sec xdp
    rm -rf "$dir"
}
case "${1:-}" in
up)
    need
    ip netns add "$a"; ip netns add "$b"
    ip -n "$a" link add v0 type veth peer name v1 netns "$b"
    ip -n "$a" addr add 10.66.0.1/24 dev v0; ip -n "$b" addr add 10.66.0.2/24 dev v1
    ip -n "$a" link set lo up; ip -n "$b" link set lo up
    ip -n "$a" link set v0 mtu 1500 up; ip -n "$b" link set v1 mtu 1500 up
    loss "${2:-0}" ;;
loss) loss "${2:?parts per million}" ;;
net) case "${2:?a or b}" in a) n=$a ;; b) n=$b ;; *) exit 2 ;; esac; shift 2; exec ip netns exec "$n" "$@" ;;
down) for n in "$a" "$b"; do ip netns pids "$n" 2>/dev/null | xargs -r kill 2>/dev/null || true; ip netns del "$n" 2>/dev/null || true; done ;;
*) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

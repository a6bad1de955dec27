#!/bin/bash
# The Linux kernel's siw (iWARP over TCP) for the guest. Debian's kernel does not carry the module, so it is built from Debian's own
# sources of the same version with the guest's kernel headers. Nothing is installed on the host.
#
#   siw.sh build          makes DIR/siw-VERSION.ko
#   siw.sh load [NAME [NETDEV]]   loads it into the guest that is up and adds the device (siw0 on eth0)
#
# DIR is $PEER_CACHE, where build.sh put the guest (default target/guest).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(cd "${PEER_CACHE:-$here/../../target/guest}" && pwd)
read -r kver dver <"$cache/VERSION"
module=$cache/siw-$kver.ko

build() {
    [ -s "$module" ] && return 0
    local base=${kver%%.0-*} work package; work=$(mktemp -d "$cache/siw.XXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    (cd "$work" && apt-get download -q -o APT::Sandbox::User=root {linux-headers-"$kver",linux-headers-"${kver%-*}-common",linux-kbuild-"$base",linux-source-"$base"}="$dver") >"$cache/siw.log" 2>&1 ||
        { tail -5 "$cache/siw.log" >&2; echo "siw: apt has no sources of $kver $dver: remove $cache and build the guest again" >&2; exit 1; }
    for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work"; done
    # The headers name the folder where they would be installed.
    sed -i "s#/usr/src/#$work/usr/src/#" "$work/usr/src/linux-headers-$kver/Makefile"
    xz -dc "$work"/usr/src/linux-source-*.tar.xz | tar x -C "$work" --wildcards '*/drivers/infiniband/sw/siw/*'
    local source; source=$(dirname "$(find "$work" -name siw_main.c)")
    make -C "$work/usr/src/linux-headers-$kver" M="$source" CONFIG_RDMA_SIW=m modules >>"$cache/siw.log" 2>&1 ||
        { tail -20 "$cache/siw.log" >&2; exit 1; }
    strip --strip-debug -o "$module.new" "$source/siw.ko"
    mv "$module.new" "$module"
}

case "${1:-}" in
build) build; echo "$module" ;;
load)
    build
    "$here/peer.sh" push "$module" /tmp/siw.ko
    "$here/peer.sh" sh "modprobe -a iw_cm rdma_ucm libcrc32c; grep -q '^siw ' /proc/modules || insmod /tmp/siw.ko
        rdma link show | grep -q 'link ${2:-siw0}/' || rdma link add ${2:-siw0} type siw netdev ${3:-eth0}; rdma link show | grep 'link ${2:-siw0}/'" ;;
*) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

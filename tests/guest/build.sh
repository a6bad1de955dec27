#!/bin/bash
# Builds the guest with the Linux kernel's own rdma_rxe: an uncompressed vmlinux and an initramfs, out of Debian's packages, which
# apt-get fetches. `cargo xtask guest` calls it. Nothing is installed on the host.
#
#   build.sh DIR       root, for apt-get's lists
#   build.sh --stamp   prints what DIR/STAMP must be
#
# $PEER_KERNEL_DEB   a linux-image .deb to use instead of fetching it
# $PEER_EXTRA_PKGS   more Debian packages to unpack into the guest
# Writes DIR/{vmlinux,initramfs.cpio,id_peer,id_peer.pub,config,VERSION,STAMP}, and nothing if STAMP matches these inputs.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
probe=$here/../programs/vprobe.c

stamp="$(cat "$here"/{build.sh,init,peer-run,rxe-pair} "$probe" | sha256sum | cut -c1-16) ${PEER_EXTRA_PKGS:-}"
[ "${1:?the folder for the guest}" = --stamp ] && { echo "$stamp"; exit 0; }
cache=$1
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)

exec 9>"$cache/.lock"
flock 9

if [ -s "$cache/vmlinux" ] && [ -s "$cache/initramfs.cpio" ] && [ "$(cat "$cache/STAMP" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi

log() { echo "peer: $*" >&2; }
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

PATH=$PATH:/sbin:/usr/sbin
need=
for program in apt-get dpkg-deb cpio xz cc depmod ssh-keygen; do command -v "$program" >/dev/null || need+=" $program"; done
[ -z "$need" ] || { log "missing on this machine:$need"; exit 1; }
apt-cache show rdma-core linux-image-amd64 >/dev/null 2>&1 || apt-get update -qq >&2
apt-cache show linux-image-amd64 >/dev/null 2>&1 ||
    { log "apt knows no linux-image-amd64: the guest is made of Debian's packages"; exit 1; }

# ---- packages --------------------------------------------------------------
pkgs="busybox-static bash libc-bin iproute2 ethtool tcpdump iperf3 iptables kmod strace
      dropbear-bin rdma-core libibverbs1 ibverbs-providers ibverbs-utils librdmacm1
      rdmacm-utils perftest infiniband-diags qperf nvme-cli open-iscsi ${PEER_EXTRA_PKGS:-}"
# Never unpacked, although the closure names them: package tools, perl, PAM, udev, ...
skip='^(perl|perl-base|perl-modules-.*|libperl.*|lib.*-perl|dpkg|debconf|tar|passwd|adduser|udev|init-system-helpers|usrmerge|mawk|netbase|sysvinit-utils|util-linux.*|uuid-runtime|lsb-base|libsemanage.*|libpam-.*|libdb5.3|libgdbm.*|pci.ids|coreutils|debianutils|base-files|gcc-12-base|libsystemd-shared|procps)$'

debs=$cache/debs
mkdir -p "$debs/partial" "$cache/none/partial"
: >"$cache/empty-status"
aptopt=(-o "Dir::State::status=$cache/empty-status" -o "Dir::Cache::archives=$debs"
        -o Debug::NoLocking=1 -o APT::Sandbox::User=root)
log "resolving and fetching packages"
# shellcheck disable=SC2086
apt-get install -y --no-install-recommends --print-uris "${aptopt[@]}" \
    -o "Dir::Cache::archives=$cache/none" $pkgs |   # (an empty folder: it leaves out what is there)
    sed -n "s/^'[^']*' \([^ ]*\.deb\) .*/\1/p" >"$cache/closure.txt"
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends --download-only "${aptopt[@]}" $pkgs >"$cache/apt-guest.log" 2>&1 ||
    { apt-get update -qq >&2
      apt-get install -y -qq --no-install-recommends --download-only "${aptopt[@]}" $pkgs >"$cache/apt-guest.log" 2>&1; } ||
    { tail -20 "$cache/apt-guest.log" >&2; exit 1; }

kdeb=${PEER_KERNEL_DEB:-}
if [ -z "$kdeb" ]; then
    # The newest that the metapackage names; fresh lists, since siw.sh needs the headers of the same version.
    apt-get update -qq >&2 || true
    kpkg=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*-amd64\)$/\1/p' | head -1)
    kdeb=$(ls "$debs/${kpkg}"_*.deb 2>/dev/null | head -1 || true)
    if [ -z "$kdeb" ]; then
        log "fetching $kpkg"
        (cd "$debs" && apt-get download -qq -o APT::Sandbox::User=root "$kpkg" >&2)
        kdeb=$(ls "$debs/${kpkg}"_*.deb | head -1)
    fi
fi

# ---- unpack ----------------------------------------------------------------
work=$cache/work
rm -rf "$work"
root=$work/root
mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root"/{proc,sys,dev,tmp,run,root,etc,var,mnt,peer}
for d in bin sbin lib lib64; do ln -s "usr/$d" "$root/$d"; done
while read -r f; do
    name=${f%%_*}
    [[ $name =~ $skip ]] && continue
    dpkg-deb --fsys-tarfile "$debs/$f" | tar -x -C "$root" --keep-directory-symlink \
        --exclude='./usr/share/doc*' --exclude='./usr/share/man*' --exclude='./usr/share/locale*' \
        --exclude='./usr/share/info*' --exclude='./usr/share/lintian*' --exclude='./usr/share/bug*' \
        --exclude='./usr/share/bash-completion*' --exclude='./usr/lib/systemd*' --exclude='./lib/systemd*' \
        --exclude='./usr/lib/x86_64-linux-gnu/gconv*' --exclude='./usr/lib/x86_64-linux-gnu/perl*' \
        --exclude='./usr/share/perl*' --exclude='./usr/lib/locale*' --exclude='./usr/share/zoneinfo*'
done <"$cache/closure.txt"

log "unpacking $(basename "$kdeb")"
dpkg-deb --fsys-tarfile "$kdeb" | tar -x -C "$work" ./boot ./lib
kver=$(ls "$work/lib/modules")

# ---- kernel: the uncompressed ELF boots by PVH and saves the guest's own unxz ----
vml=$(ls "$work"/boot/vmlinuz-*)
off=$(grep -obUaP '\xfd7zXZ\x00' "$vml" | head -1 | cut -d: -f1 || true)
if [ -n "$off" ]; then tail -c +$((off + 1)) "$vml" | xz -dc >"$work/vmlinux" 2>/dev/null || true; fi
if [ "$(head -c4 "$work/vmlinux" 2>/dev/null | tail -c3)" != ELF ]; then
    log "no xz payload found, keeping the bzImage"
    cp "$vml" "$work/vmlinux"
fi
cp "$work"/boot/config-* "$cache/config"

# ---- modules: chosen files and folders, closed over modules.dep ------------------
depmod -b "$work" "$kver"
choose='
drivers/infiniband/core/ drivers/infiniband/sw/ drivers/infiniband/ulp/
drivers/nvme/ drivers/target/target_core drivers/target/iscsi/ drivers/target/loopback/
drivers/scsi/libiscsi drivers/scsi/iscsi_tcp drivers/scsi/scsi_transport drivers/scsi/sd_mod drivers/scsi/sg.ko drivers/scsi/scsi_debug
drivers/block/null_blk/ drivers/block/brd drivers/block/loop drivers/block/virtio_blk
drivers/net/virtio_net drivers/net/net_failover drivers/net/veth drivers/net/dummy drivers/net/ifb
drivers/net/macvlan drivers/net/ipvlan/ drivers/net/bonding/ drivers/net/vxlan/ drivers/net/tun drivers/net/vrf drivers/net/nlmon
drivers/virtio/virtio drivers/char/hw_random/ drivers/char/virtio_console
net/8021q/ net/802/ net/llc/ net/bridge/ net/sched/ net/smc/ net/rds/ net/sunrpc/ net/9p/ net/packet/ net/netlink/ net/unix/ net/core/
net/netfilter/x_tables net/netfilter/xt_u32 net/netfilter/xt_statistic net/netfilter/xt_tcpudp net/netfilter/xt_mark net/netfilter/xt_DSCP net/netfilter/xt_dscp
net/netfilter/nf_tables net/netfilter/nft_compat net/netfilter/nft_counter
net/ipv4/netfilter/ip_tables net/ipv4/netfilter/iptable_ net/ipv6/netfilter/ip6_tables net/ipv6/netfilter/ip6table_
net/ipv4/tcp_ net/ipv4/inet_diag net/ipv4/udp_tunnel net/ipv4/ip_tunnel net/ipv6/ip6_udp_tunnel net/ipv6/ip6_tunnel
fs/9p/ fs/ext4/ fs/nfs/ fs/nfsd/ fs/lockd/ fs/nfs_common/ fs/smb fs/configfs
arch/x86/crypto/crc crypto/crc lib/libcrc32c lib/crc crypto/sha crypto/hmac crypto/cmac crypto/md crypto/ctr crypto/gcm crypto/ccm crypto/aes
'
mods=$work/mods.txt
(cd "$work/lib/modules/$kver"
 pat=$(echo $choose | sed 's/ /|/g')
 { grep -E "^kernel/($pat)" modules.dep || true; } | tr -d ':' | tr ' ' '\n' | sort -u >"$mods"
 tar -c -f - modules.builtin modules.builtin.modinfo modules.order -T "$mods") |
    { mkdir -p "$root/usr/lib/modules/$kver"; tar -x -f - -C "$root/usr/lib/modules/$kver"; }
depmod -b "$root" "$kver" 2>/dev/null

# ---- busybox applets fill the gaps ---------------------------------------------
bb=$root/usr/bin/busybox
"$bb" --list | while read -r a; do
    [ -e "$root/usr/bin/$a" ] || [ -L "$root/usr/bin/$a" ] || [ -e "$root/usr/sbin/$a" ] ||
        [ -L "$root/usr/sbin/$a" ] || ln -s busybox "$root/usr/bin/$a"
done
# iptables goes by alternatives on a real system
for a in iptables ip6tables iptables-save iptables-restore; do
    [ -e "$root/usr/sbin/$a" ] || ln -sf xtables-legacy-multi "$root/usr/sbin/$a"
done

# ---- files of our own -------------------------------------------------------------
install -m755 "$here/init" "$root/init"
install -m755 "$here/peer-run" "$root/usr/sbin/peer-run"
install -m755 "$here/rxe-pair" "$root/usr/bin/rxe-pair"
cat >"$root/etc/passwd" <<E
root:x:0:0:root:/root:/bin/bash
nobody:x:65534:65534:nobody:/:/bin/false
tcpdump:x:100:100::/:/bin/false
E
printf 'root:x:0:\nnogroup:x:65534:\ntcpdump:x:100:\n' >"$root/etc/group"
printf '/bin/sh\n/bin/bash\n' >"$root/etc/shells"
printf 'passwd: files\ngroup: files\nhosts: files\nservices: files\n' >"$root/etc/nsswitch.conf"
printf '127.0.0.1 localhost\n::1 localhost\n10.77.0.1 host\n10.77.0.2 peer\nfd77::1 host6\nfd77::2 peer6\n' >"$root/etc/hosts"
ln -sf /proc/mounts "$root/etc/mtab"
mkdir -p "$root/etc/dropbear" "$root/root/.ssh" "$root/var/tmp" "$root/var/run" "$root/etc/nvme"

# the probe, against the guest's own libibverbs
(cd "$debs" && ls libibverbs-dev_*.deb librdmacm-dev_*.deb >/dev/null 2>&1 ||
    { cd "$debs" && apt-get download -qq -o APT::Sandbox::User=root libibverbs-dev librdmacm-dev >&2; })
for d in "$debs"/libibverbs-dev_*.deb "$debs"/librdmacm-dev_*.deb; do dpkg-deb -x "$d" "$work/dev"; done
cc -O2 -Wall -I"$work/dev/usr/include" -o "$root/usr/bin/vprobe" "$probe" \
    -L"$root/usr/lib/x86_64-linux-gnu" -l:libibverbs.so.1 -l:librdmacm.so.1 -Wl,--as-needed \
    -Wl,-rpath-link,"$root/usr/lib/x86_64-linux-gnu" -Wl,--allow-shlib-undefined

# throw-away keys: the guest is reached only inside its own network namespace
rm -f "$cache/id_peer" "$cache/id_peer.pub"
ssh-keygen -q -t ed25519 -N '' -C peer -f "$cache/id_peer"
install -m600 "$cache/id_peer.pub" "$root/root/.ssh/authorized_keys"
chmod 700 "$root/root" "$root/root/.ssh"
"$root"/lib64/ld-linux-x86-64.so.2 --library-path "$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu" \
    "$root/usr/bin/dropbearkey" -t ed25519 -f "$root/etc/dropbear/host_ed25519" >/dev/null 2>&1
"$root"/lib64/ld-linux-x86-64.so.2 --library-path "$root/usr/lib/x86_64-linux-gnu" \
    "$root/sbin/ldconfig" -r "$root" 2>/dev/null || /sbin/ldconfig -r "$root" 2>/dev/null || true

# every program must find its libraries in the guest
libs=$root/usr/lib/x86_64-linux-gnu
for f in "$root"/usr/bin/* "$root"/usr/sbin/*; do
    [ -f "$f" ] && [ ! -L "$f" ] && grep -q 'ld-linux-x86-64' "$f" || continue
    case ${f##*/} in ldconfig|ldd|busybox) continue;; esac
    m=$("$root/lib64/ld-linux-x86-64.so.2" --library-path "$libs:$libs/libibverbs" --list "$f" 2>&1 |
        grep -E 'not found|error while loading' || true)
    [ -z "$m" ] || log "warning: ${f##*/}: $m"
done

# ---- pack -------------------------------------------------------------------------
(cd "$root" && find . -print0 | LC_ALL=C sort -z | cpio --null --create --format=newc --owner=0:0 --quiet) >"$work/initramfs.cpio"
mv "$work/vmlinux" "$cache/vmlinux"
mv "$work/initramfs.cpio" "$cache/initramfs.cpio"
echo "$kver $(basename "$kdeb" | cut -d_ -f2)" >"$cache/VERSION"
echo "$stamp" >"$cache/STAMP"
[ -n "${PEER_KEEP_WORK:-}" ] || rm -rf "$work"
log "built $(cat "$cache/VERSION") in $cache: vmlinux $(stat -c %s "$cache/vmlinux"), initramfs $(stat -c %s "$cache/initramfs.cpio") bytes"

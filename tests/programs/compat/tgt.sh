#!/bin/sh
# tgt.sh DRIVER HOST PORT FOLDER: tgt's daemon with one disk, until SIGTERM. DRIVER is iser or iscsi. The daemon listens before it
# has the target, so a file `ready` in the folder says when clients may come.
set -e
driver=$1 host=$2 port=$3 folder=$4
export TGT_IPC_SOCKET="$folder/tgt"
truncate -s 64M "$folder/disk"
case $driver in
    iser) set -- --iser "port=$port,pool_sz_mb=64" ;;
    *) set -- ;;
esac
tgtd -f --iscsi "portal=$host:$port" "$@" &
daemon=$!
# tgtd ignores SIGTERM while it has targets.
trap 'kill -KILL $daemon' TERM
target="--lld $driver --mode target --tid 1"
until tgtadm $target --op new -T "iqn.2001-04.test:$driver"; do
    kill -0 $daemon
    sleep 0.1
done
tgtadm --lld "$driver" --mode logicalunit --op new --tid 1 --lun 1 -b "$folder/disk"
tgtadm $target --op bind -I ALL
tgtadm $target --op bind --initiator-name iqn.2001-04.test:initiator
touch "$folder/ready"
wait $daemon || true

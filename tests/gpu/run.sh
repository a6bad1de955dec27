#!/bin/bash
# ferroce on a machine with a GPU of NVIDIA's: a row for each program. Minutes; a row ends after two.
#   tests/gpu/run.sh [DIST]    DIST is a release, target/dist unless given (`cargo xtask dist` makes it).
# Needs CUDA's driver and gcc with libibverbs' and librdmacm's headers. What else a row needs, its line names. The output of every
# program stays in target/gpu. Exit status: 0 if all that could run passed, 1 if a row failed, 77 without a GPU.
#   NCCL_FOLDERS="DIR ..."     folders with further copies of libnccl.so.2, each of which gets rows of its own
set -u
dist=${1:+$(readlink -f "$1")}
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
dist=${dist:-$PWD/target/dist} c=crates/ferroce-dropin/tests/c out=$PWD/target/gpu failed=0
ferroce=$dist/bin/ferroce
[ -x "$ferroce" ] || { echo "$ferroce is not there: run \`cargo xtask dist\`" >&2; exit 1; }
python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL("libcuda.so.1").cuInit(0) != 0)' 2>/dev/null || { echo "no GPU: libcuda.so.1 cannot be used here" >&2; exit 77; }
rm -rf "$out"; mkdir -p "$out"
export FERROCE_RUNTIME_DIR; FERROCE_RUNTIME_DIR=$(mktemp -d); chmod 700 "$FERROCE_RUNTIME_DIR"
trap '"$ferroce" stop >/dev/null 2>&1; rm -rf "$FERROCE_RUNTIME_DIR"' EXIT
ip link set lo up 2>/dev/null

# row NAME FUNCTION ...: exit status 77 says that it cannot run here, by its last line. Programs have two minutes.
limit=(timeout 120)
row() {
    local name=$1 status; shift
    "$@" >"$out/$name" 2>&1; status=$?
    case $status in
        0) echo "passes   $name"; grep -hE 'GB/s|usec|^checked|NET/IB : Using|MB/s' "$out/$name" | sort -u | sed 's/^/         /' | head -30 ;;
        77) echo "not here $name: $(tail -n 1 "$out/$name")" ;;
        *) echo "FAILS    $name (exit status $status): $out/$name"; tail -n 5 "$out/$name" | sed 's/^/         /'; failed=1 ;;
    esac
}
lacks() { echo "$1"; return 77; }

# Our own tests of GPU memory, on the real driver.
own() {
    gcc -O2 -I "$c" "$c/$1.c" -o "$out/$1.program" -libverbs -lrdmacm -ldl -lpthread || return 1
    LD_LIBRARY_PATH=$dist/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "${limit[@]}" "$out/$1.program"
}
row memory own gpu
FERROCE_DATAPATH=udp SHORT=1 row memory_udp own gpu
FERROCE_GPU=off row memory_off own gpu
row killed own gpu_killed
row rate own gpu_rate
FERROCE_DATAPATH=udp row rate_udp own gpu_rate

# pair PORT PROGRAM ...: a server of it on ferroce, and a client, whose status counts.
pair() {
    local hex server status; hex=$(printf ':%04X 00000000' "$1"); shift
    "${limit[@]}" "$ferroce" run -- "$@" & server=$!
    while kill -0 "$server" && ! cat /proc/net/tcp /proc/net/tcp6 | grep -q "$hex"; do sleep 0.1; done
    "${limit[@]}" "$ferroce" run -- "$@" 127.0.0.1; status=$?
    kill "$server" 2>/dev/null; wait "$server" 2>/dev/null
    return "$status"
}

# ranks VARIABLE=VALUE ...: two ranks on one GPU, which NCCL takes for two hosts.
ranks() {
    python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || { lacks "PyTorch with CUDA is not installed"; return; }
    local pids=() status=0 rank run=("$ferroce" run --)
    [ "${1:-}" = NCCL_NET=Socket ] && run=(env)
    export PORT=$((20000 + RANDOM % 10000))
    for rank in 0 1; do
        env RANK=$rank NCCL_HOSTID=host$rank NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_SHM_DISABLE=1 NCCL_P2P_DISABLE=1 NCCL_SOCKET_IFNAME=lo \
            NCCL_DEBUG=INFO "$@" "${limit[@]}" "${run[@]}" python3 tests/gpu/collectives.py &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do wait "$rank" || status=1; done
    return $status
}
# Whether NCCL used our device, and the GPU's memory without a copy of its own.
over_ib() { ranks "$@" | tee "$out/ranks"; local status=${PIPESTATUS[0]}; [ "$status" -eq 0 ] || return "$status"; grep -q 'NET/IB : Using' "$out/ranks"; }
direct() { over_ib "$@" || return; grep -q GDRDMA "$out/ranks"; }
for folder in "" ${NCCL_FOLDERS:-}; do
    name=nccl${folder:+_$(basename "$folder")}
    preload=(${folder:+"LD_PRELOAD=$folder/libnccl.so.2"})
    row "$name" direct NCCL_NET_GDR_LEVEL=SYS "${preload[@]}"
    row "${name}_staged" over_ib NCCL_NET_GDR_LEVEL=LOC "${preload[@]}"
    row "${name}_udp" over_ib FERROCE_DATAPATH=udp "${preload[@]}"
    row "${name}_sockets" ranks NCCL_NET=Socket "${preload[@]}"
done

perftest() {
    ib_write_bw --help 2>&1 | grep -q use_cuda || { lacks "ib_write_bw is not installed, or built without CUDA"; return; }
    pair 18515 ib_write_bw -d fr0 -x 0 -F --use_cuda=0 -s 1048576 -n 2000
}
row perftest perftest

ucx() {
    ucx_info -d 2>/dev/null | grep -q 'memory domain: cuda' || { lacks "ucx_perftest is not installed, or built without CUDA"; return; }
    export UCX_TLS=rc_verbs,cuda_copy UCX_NET_DEVICES=fr0:1
    pair 13337 ucx_perftest -t tag_bw -m cuda -s 1048576 -n 1000
}
row ucx ucx

nixl() {
    python3 -c 'import torch, nixl_cu12; assert torch.cuda.is_available()' 2>/dev/null || { lacks "PyTorch with CUDA and nixl_cu12 are not installed"; return; }
    export UCX_TLS=rc_verbs,cuda_copy UCX_NET_DEVICES=fr0:1
    pair 18516 python3 tests/gpu/nixl.py 18516
}
row nixl nixl

# NCCL's own kernels that put by themselves, through the proxy thread that does so with any card (NCCL_GIN_TYPE=2).
gin() {
    local test=${NCCL_TESTS_HOME:-/usr/local/nccl-tests}/build/alltoall_perf
    [ -x "$test" ] && command -v mpirun >/dev/null || { lacks "alltoall_perf of nccl-tests, built with MPI=1 (NCCL_TESTS_HOME), and mpirun are not installed"; return; }
    local one=(-n 1 -x NCCL_GIN_TYPE=2 -x NCCL_MULTI_RANK_GPU_ENABLE=1 -x NCCL_SHM_DISABLE=1 -x NCCL_P2P_DISABLE=1 -x NCCL_DEBUG=INFO)
    local each=("$test" -D 3 -R 2 -b 8 -e 64M -f 8 -g 1 -c 1)
    "${limit[@]}" "$ferroce" run -- mpirun --allow-run-as-root "${one[@]}" -x NCCL_HOSTID=host0 "${each[@]}" : "${one[@]}" -x NCCL_HOSTID=host1 "${each[@]}"
}
row gin gin

nvshmem() {
    local put; put=$(find "${NVSHMEM_HOME:-/usr/local/nvshmem}" -name shmem_put_bw -type f 2>/dev/null | head -n 1)
    [ -n "$put" ] && command -v mpirun >/dev/null || { lacks "NVSHMEM's performance tests (NVSHMEM_HOME) and mpirun are not installed"; return; }
    env NVSHMEM_REMOTE_TRANSPORT=ibrc NVSHMEM_DISABLE_P2P=1 "${limit[@]}" "$ferroce" run -- mpirun --allow-run-as-root -n 2 "$put"
}
row nvshmem nvshmem
exit $failed

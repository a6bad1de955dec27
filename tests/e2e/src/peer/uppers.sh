# In the guest: a network namespace with ferroce on a bond of two links, which a bridge joins with the kernel's rxe outside.
# $1: what to try. $2: where ferroce lies.
set -eu
cd "$2"
export FERROCE_RUNTIME_DIR="$2/run"
space=ferroce-a
# Whatever happens, nothing of it stays.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

until_true() {
    tries=0
    until eval "$1"; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || { echo "in vain: $1"; exit 1; }
        sleep 0.1
    done
}
inside() { ip netns exec $space "$@"; }
ours="ip netns exec $space bin/ferroce run --"
slave() { inside sed -n 's/Currently Active Slave: //p' /proc/net/bonding/bond0; }
sent() { inside awk -v name="$1:" '$1 == name { print $11 }' /proc/net/dev; }
octets() { inside awk -v name="$1:" '$1 == name { print $10 }' /proc/net/dev; }
grows() { until_true "[ \$(sent $1) -gt $(($(sent "$1") + 20)) ]"; }
gids() { inside bin/ferroce gid show fr1; }
alive() { kill -0 "$1" || { echo "it ended: $2"; cat "$2"; exit 1; }; }

# An rping that verifies $1 times; one that loses its connection says nothing of it by its status.
pings() {
    count=$1
    log=$2
    shift 2
    "$@" -V -v -S 3000 -C "$count" >"$log" 2>&1 && [ "$(grep -c '^ping data' "$log")" = "$count" ]
}

# An rping that verifies what comes back, again and again; its log is $1.
endless() {
    log=$1
    shift
    $ours rping -c -V -C 1000000 -S 3000 "$@" >"$log" 2>&1 &
}

server() {
    address=$1
    shift
    rping -s -P -S 3000 -a "$address" "$@" >/dev/null 2>&1 &
}

set_up() {
    modprobe bonding max_bonds=0
    modprobe bridge
    modprobe 8021q
    ip netns add $space
    ip -n $space link set lo up
    ip link add br0 type bridge
    for n in 0 1; do
        ip link add a$n netns $space type veth peer name b$n
        ip link set b$n master br0
        ip link set b$n up
    done
    ip link set br0 type bridge forward_delay 0
    ip link set br0 up
    ip addr add 10.90.0.2/24 dev br0
    ip addr add fd90::2/64 dev br0 nodad
    rdma link add rxbr type rxe netdev br0
    bond active-backup
}

bond() {
    ip -n $space link add bond0 type bond mode "$@" miimon 50
    for n in 0 1; do
        ip -n $space link set a$n down
        ip -n $space link set a$n master bond0
    done
    ip -n $space link set bond0 up
    ip -n $space addr add 10.90.0.1/24 dev bond0
    ip -n $space addr add fd90::1/64 dev bond0 nodad
    inside bin/ferroce link add fr1 type roce netdev bond0
    until_true "gids | grep -q fd90::1"
    until_true "inside ping -c 1 -W 1 10.90.0.2 >/dev/null"
}

# The link that carries the traffic is pulled, and later the other one.
failover() {
    server 10.90.0.2 -p 7601
    listening=$!
    ib_write_bw -d rxbr -x 1 -F -D 12 -s 4096 -p 18601 >write.server 2>&1 &
    writing=$!
    until_true "grep -q :48A9 /proc/net/tcp"
    endless rping.log -a 10.90.0.2 -p 7601
    ping=$!
    $ours ib_write_bw -d fr1 -x 1 -F -D 12 -s 4096 -p 18601 10.90.0.2 >write.client 2>&1 &
    client=$!
    first=$(slave)
    grows "$first"
    ip link set "b${first#a}" down
    until_true '[ "$(slave)" != "$first" ]'
    second=$(slave)
    grows "$second"
    ip link set "b${first#a}" up
    until_true "inside sed -n '/Slave Interface: $first/,/MII/p' /proc/net/bonding/bond0 | grep -q 'MII Status: up'"
    ip link set "b${second#a}" down
    until_true '[ "$(slave)" = "$first" ]'
    grows "$first"
    ip link set "b${second#a}" up
    alive $ping rping.log
    wait $client || { cat write.client; exit 1; }
    wait $writing || { cat write.server; exit 1; }
    grows "$first"
    alive $ping rping.log
    kill $ping $listening
}

# Both links are pulled: programs hear of the port.
events() {
    $ours ibv_asyncwatch -d fr1 >watch.log 2>&1 &
    watch=$!
    until_true "inside bin/ferroce status | grep -q asyncwatch"
    ip link set b0 down
    ip link set b1 down
    until_true "inside bin/ferroce link show fr1 | grep -q 'state DOWN'"
    ip link set b0 up
    ip link set b1 up
    until_true "inside bin/ferroce link show fr1 | grep -q 'state ACTIVE'"
    alive $watch watch.log
    kill $watch
}

# Devices on the members: the bond's GIDs are the active one's, and follow it.
members() {
    of() { inside bin/ferroce gid show "$1" | grep -c 'netdev bond0' || true; }
    is() { [ "$(of "f$1")" -ge 2 ] && [ "$(of "f$2")" = 0 ]; }
    for n in 0 1; do inside bin/ferroce link add fa$n type roce netdev a$n; done
    for turn in 1 2; do
        first=$(slave)
        other=$([ "$first" = a0 ] && echo a1 || echo a0)
        until_true "is $first $other"
        ip link set "b${first#a}" down
        until_true '[ "$(slave)" = "$other" ]'
        until_true "is $other $first"
        ip link set "b${first#a}" up
        until_true "inside sed -n '/Slave Interface: $first/,/MII/p' /proc/net/bonding/bond0 | grep -q 'MII Status: up'"
    done
    for n in 0 1; do inside bin/ferroce link del fa$n; done
}

# Both ends on VLAN 5; what is sent there comes there.
vlan() {
    ip link add link br0 name br0.5 type vlan id 5
    ip addr add 10.91.0.2/24 dev br0.5
    ip addr add fd91::2/64 dev br0.5 nodad
    ip link set br0.5 up
    ip -n $space link add link bond0 name bond0.5 type vlan id 5
    ip -n $space addr add 10.91.0.1/24 dev bond0.5
    ip -n $space addr add fd91::1/64 dev bond0.5 nodad
    ip -n $space link set bond0.5 up
    until_true "gids | grep -q 'fd91::1 .*netdev bond0.5'"
    until_true "inside ping -c 1 -W 1 10.91.0.2 >/dev/null"
    for address in 10.91.0.2 fd91::2; do
        server $address -p 7602
        listening=$!
        before=$(sent bond0.5)
        until_true "pings 50 vlan.log $ours rping -c -a $address -p 7602"
        [ "$(sent bond0.5)" -gt $((before + 100)) ] || { echo "not by the VLAN: $before"; exit 1; }
        kill $listening
        # And from the kernel's end.
        $ours rping -s -C 20 -S 3000 -a ${address%2}1 -p 7603 >vlan.server 2>&1 &
        listening=$!
        until_true "pings 20 vlan.log rping -c -a ${address%2}1 -p 7603"
        wait $listening
    done
    ip link del br0.5
    ip -n $space link del bond0.5
    until_true "! gids | grep -q bond0.5"
}

# IPv6 addresses come and go at both ends under a connection that uses another one.
addresses() {
    server fd90::2 -p 7604
    listening=$!
    endless address.log -a fd90::2 -p 7604
    ping=$!
    grows "$(slave)"
    pairs=$(rdma resource show qp link rxbr | wc -l)
    for n in 1 2 3 4 5; do
        ip -n $space addr add fd90::7$n/64 dev bond0 nodad
        ip addr add fd90::8$n/64 dev br0 nodad
        until_true "gids | grep -q fd90::7$n"
        server fd90::8$n -p 7605
        another=$!
        until_true "pings 5 address.$n.log $ours rping -c -I fd90::7$n -a fd90::8$n -p 7605"
        kill $another
        # A queue pair of rxe that still sends to an address which is gone keeps rxe's others waiting.
        until_true '[ "$(rdma resource show qp link rxbr | wc -l)" -le "$pairs" ]'
        ip -n $space addr del fd90::7$n/64 dev bond0
        ip addr del fd90::8$n/64 dev br0
        until_true "! gids | grep -q fd90::7$n"
        grows "$(slave)"
        alive $ping address.log
    done
    alive $ping address.log
    kill $ping $listening
}

# A bond that spreads flows sends by both links.
spread() {
    inside bin/ferroce link del fr1
    ip -n $space link del bond0
    bond balance-xor xmit_hash_policy layer3+4
    ib_write_bw -d rxbr -x 1 -F -q 32 -n 20 -s 1024 -p 18606 >spread.server 2>&1 &
    listening=$!
    until_true "grep -q :48AE /proc/net/tcp"
    a0=$(octets a0)
    a1=$(octets a1)
    $ours ib_write_bw -d fr1 -x 1 -F -q 32 -n 20 -s 1024 -p 18606 10.90.0.2 >spread.client 2>&1
    wait $listening
    a0=$(($(octets a0) - a0))
    a1=$(($(octets a1) - a1))
    # One of eight ports carries 80 KiB, if it is used at all, and there are four for each link. The interface counts packets that
    # leave with one system call as one, so it is octets that tell; those of perftest's own TCP connection are 20 KiB at most.
    [ $a0 -gt 60000 ] && [ $a1 -gt 60000 ] || { echo "$a0 octets by one link, $a1 by the other"; exit 1; }
}

tear_down() {
    inside bin/ferroce link del fr1 || true
    for broker in $(ip netns pids $space); do kill "$broker" || true; done
    rdma link del rxbr
    until_true '[ -z "$(ip netns pids $space)" ]'
    ip netns del $space
    ip link del br0
}

"$1"

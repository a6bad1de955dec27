# An administrator's session in two fresh network namespaces of the guest's kernel, which has what a host may lack:
# VLAN, macvlan, bond. Prints a line "== NAME" before the output of each step; ends with "== done".
set -u
F=/tmp/ferroce/bin
export FERROCE_RUNTIME_DIR=/tmp/ferroce/run
mkdir -p $FERROCE_RUNTIME_DIR && chmod 700 $FERROCE_RUNTIME_DIR && rm -f $FERROCE_RUNTIME_DIR/links.json
fail() { echo "== failed: $*"; exit 1; }
a() { ip netns exec fa "$@"; }
b() { ip netns exec fb "$@"; }
# Waits until the command's output has the words.
wants() { words=$1; shift; n=0; while ! "$@" 2>&1 | grep -q -- "$words"; do n=$((n + 1)); [ $n -lt 150 ] || { "$@"; fail "no '$words' from $*"; }; sleep 0.2; done; }
lacks() { words=$1; shift; n=0; while "$@" 2>&1 | grep -q -- "$words"; do n=$((n + 1)); [ $n -lt 150 ] || fail "'$words' still from $*"; sleep 0.2; done; }
modprobe -a veth 8021q macvlan bonding dummy || fail modprobe
for n in fa fb; do ip netns add $n; ip netns exec $n ip link set lo up; done
ip link add a0 netns fa type veth peer name b0 netns fb || fail veth
a ip link set a0 up; b ip link set b0 up
a ip addr add 10.85.0.1/24 dev a0; b ip addr add 10.85.0.2/24 dev b0
a ip link add link a0 name a0.5 type vlan id 5 || fail vlan
b ip link add link b0 name b0.5 type vlan id 5
a ip addr add 10.85.5.1/24 dev a0.5; b ip addr add 10.85.5.2/24 dev b0.5
a ip link set a0.5 up; b ip link set b0.5 up
echo "== add"
a $F/ferroce link add rxe0 type rxe netdev a0 && b $F/ferroce link add rxe0 type rxe netdev b0 || fail add
wants '10.85.5.1 type' a $F/ferroce gid show
echo "== link show"
a $F/ferroce link show rxe0
echo "== watch"
a $F/ferroce run -- env LD_PRELOAD=/tmp/ferroce/libstdbuf.so _STDBUF_O=L ibv_asyncwatch -d rxe0 >/tmp/ferroce/watch 2>&1 &
watch=$!
wants 'async event FD' cat /tmp/ferroce/watch
a ip link add link a0 name m0 type macvlan mode bridge || fail macvlan
a ip addr add 10.85.6.1/24 dev m0; a ip link set m0 up
wants '10.85.6.1 type RoCE v2 netdev m0' a $F/ferroce gid show
wants IBV_EVENT_GID_CHANGE cat /tmp/ferroce/watch
echo "== gid show"
a $F/ferroce gid show rxe0 | grep -v fe80
echo "== show_gids"
a $F/show_gids rxe0 | grep -v fe80
echo "== both"
a $F/ferroce link set rxe0 roce-mode both --no-persist && a $F/ferroce gid show rxe0 | grep -v fe80
a $F/ferroce link set rxe0 roce-mode v2 --no-persist
echo "== remove"
a ip link del m0; lacks ' m0$' a $F/ferroce gid show
a ip link set a0.5 down; lacks ' a0.5$' a $F/ferroce gid show
a ip link set a0.5 up; wants ' a0.5$' a $F/ferroce gid show
a $F/ferroce gid show rxe0 | grep -v fe80
b ip link set b0 down; wants IBV_EVENT_PORT_ERR cat /tmp/ferroce/watch
echo "== down"
a $F/ferroce link show rxe0
b ip link set b0 up; wants IBV_EVENT_PORT_ACTIVE cat /tmp/ferroce/watch
echo "== egress"
for n in a0.5; do a cat /proc/net/vlan/$n | grep -i egress; done
echo "== frames"
a $F/ferroce link set rxe0 ttl 7
a $F/ferroce link tc rxe0 add tclass=96 dst=10.85.5.0/24
# Both ends' frames are tagged; which service level, class and hop limit they have is the sender's to say.
a tcpdump -l -i a0 -n -e -v -c 400 'vlan and udp port 4791' >/tmp/ferroce/frames 2>/tmp/ferroce/tcpdump &
dump=$!
wants listening cat /tmp/ferroce/tcpdump
gid() { ip netns exec $1 $F/ferroce gid show rxe0 | sed -n "s/.*index \([0-9]*\) gid .*$2 .*/\1/p"; }
ga=$(gid fa 10.85.5.1); gb=$(gid fb 10.85.5.2)
b $F/ferroce run -- ibv_rc_pingpong -d rxe0 -g $gb -l 2 -n 20 -s 100 >/tmp/ferroce/server 2>&1 &
server=$!
n=0; until b cat /proc/net/tcp6 /proc/net/tcp | grep -q ':4853 .* 0A '; do n=$((n + 1)); [ $n -lt 150 ] || fail "no server"; sleep 0.2; done
a $F/ferroce run -- ibv_rc_pingpong -d rxe0 -g $ga -l 3 -n 20 -s 100 10.85.5.2 >/tmp/ferroce/client 2>&1 || { cat /tmp/ferroce/client; fail pingpong; }
wait $server || { cat /tmp/ferroce/server; fail server; }
wants '10.85.5.1.*10.85.5.2' cat /tmp/ferroce/frames
kill $dump; wait $dump
grep -A1 'vlan 5' /tmp/ferroce/frames | grep -B1 '10.85.5.1.[0-9]* > 10.85.5.2' | grep -o 'vlan [0-9]*, p [0-9]\|tos 0x[0-9a-f]*\|ttl [0-9]*' | sort -u
# By frames that ferroced writes the tag is exact; both ends are of one version, and the sender's marks are looked for.
marks() {
  version=$1; filter=$2; datapath=$3
  a tcpdump -l -i a0 -n -e -v -c 400 "$filter" >/tmp/ferroce/frames 2>/tmp/ferroce/tcpdump &
  dump=$!
  wants listening cat /tmp/ferroce/tcpdump
  index() { ip netns exec $1 $F/ferroce gid show rxe0 | sed -n "s/.*index \([0-9]*\) gid .*$2 type RoCE $version .*/\1/p"; }
  ga=$(index fa 10.85.5.1); gb=$(index fb 10.85.5.2)
  FERROCE_DATAPATH=$datapath b $F/ferroce run -- ibv_rc_pingpong -d rxe0 -g $gb -l 2 -n 20 -s 100 -e >/tmp/ferroce/server 2>&1 &
  server=$!
  n=0; until b cat /proc/net/tcp6 /proc/net/tcp | grep -q ':4853 .* 0A '; do n=$((n + 1)); [ $n -lt 150 ] || fail "no server"; sleep 0.2; done
  FERROCE_DATAPATH=$datapath a $F/ferroce run -- ibv_rc_pingpong -d rxe0 -g $ga -l 3 -n 20 -s 100 -e 10.85.5.2 >/tmp/ferroce/client 2>&1 || { cat /tmp/ferroce/client; fail pingpong; }
  wait $server || { cat /tmp/ferroce/server; fail server; }
  wants 'vlan 5, p 2' cat /tmp/ferroce/frames; wants 'vlan 5, p 3' cat /tmp/ferroce/frames
  kill $dump; wait $dump
}
for n in fa fb; do ip netns exec $n $F/ferroce link set rxe0 roce-mode both --no-persist; done
# The socket's priority is not what decides here.
a ip link set a0.5 type vlan egress 3:0 2:0
echo "== frames packet"
marks v2 'vlan and udp port 4791' packet
grep -A1 'vlan 5' /tmp/ferroce/frames | grep -B1 '10.85.5.1.[0-9]* > 10.85.5.2' | grep -o 'vlan [0-9]*, p [0-9]\|tos 0x[0-9a-f]*\|ttl [0-9]*' | sort -u
echo "== frames v1"
marks v1 'vlan and ether proto 0x8915' udp
grep -o 'vlan [0-9]*, p [0-9], ethertype [^,]*' /tmp/ferroce/frames | grep -o 'vlan [0-9]*, p [0-9]\|0x[0-9a-f]*' | sort -u
for n in fa fb; do ip netns exec $n $F/ferroce link set rxe0 roce-mode v2 --no-persist; done
echo "== bond"
a ip link add bo0 type bond mode active-backup || fail bond
a ip link add d1 type dummy; a ip link set d1 master bo0; a ip link set bo0 up
a ip addr add 10.85.7.1/24 dev bo0
a $F/ferroce link add fr1 type roce netdev bo0 --no-persist || fail 'link add on a bond'
wants '10.85.7.1 type RoCE v2 netdev bo0' a $F/ferroce gid show fr1
a $F/ferroce link show fr1
echo "== delete"
a $F/ferroce link delete rxe0
wants IBV_EVENT_DEVICE_FATAL cat /tmp/ferroce/watch
# As on Linux, ibv_asyncwatch ends by itself once its device is gone.
kill $watch 2>/dev/null; wait $watch
a $F/ferroce link show
echo "== done"

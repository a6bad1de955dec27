# From an empty root to the first figure of ib_write_bw, in seconds of each step. $1: the tarball below /packages.
now() { date +%s.%N; }
step() { printf '%-44s %6.1f s\n' "$1" "$(awk "BEGIN { print $(now) - $2 }")"; }
begin=$(now)
tar -C /opt -xf "/packages/$1"
ferroce=$(echo /opt/ferroce-*/bin/ferroce)
step "unpack the tarball" "$begin"
last=$(now)
apt-get update -qq >/tmp/apt.log 2>&1 && apt-get install -qq -y --no-install-recommends perftest >>/tmp/apt.log 2>&1 ||
    { cat /tmp/apt.log; exit 1; }
step "apt-get update, apt-get install perftest" "$last"
last=$(now)
"$ferroce" run --private-net -- sh -c '
    ib_write_bw -F -d fr0 >/tmp/server.log 2>&1 &
    n=0
    until ib_write_bw -F -d fr0 127.0.0.1 >/tmp/client.log 2>&1; do n=$((n + 1)); [ $n -lt 50 ] || exit 1; sleep 0.1; done' ||
    { cat /tmp/server.log /tmp/client.log; exit 1; }
step "ferroce run -- ib_write_bw, both ends" "$last"
step "in all" "$begin"
grep '^ 65536' /tmp/client.log

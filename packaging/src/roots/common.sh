# Functions of the scripts that run inside a root.
as_user() { setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs env HOME=/home/user "$@"; }
fail() { echo "FAILED: $*"; exit 1; }
has_fr0() { as_user "$@" ibv_devices | grep -q fr0; }
# A pair of ibv_rc_pingpong, each end after the words of "$@".
pingpong() {
    as_user "$@" ibv_rc_pingpong -d fr0 -g 0 >/tmp/server.log 2>&1 & server=$!
    n=0
    until as_user "$@" ibv_rc_pingpong -d fr0 -g 0 127.0.0.1 >/tmp/client.log 2>&1; do
        n=$((n + 1)); [ $n -lt 50 ] || { cat /tmp/server.log /tmp/client.log; fail "no pingpong: $*"; }; sleep 0.2
    done
    wait $server || fail "the server of pingpong: $*"
    grep -q usec/iter /tmp/client.log || fail "pingpong prints no time: $*"
}
# Connection management, each end after the words of "$@".
ping() {
    as_user "$@" rping -s -a 127.0.0.1 -C 3 >/dev/null 2>&1 & server=$!
    sleep 1
    as_user "$@" rping -c -a 127.0.0.1 -C 3 -v | grep -q "ping data" || fail "rping: $*"
    wait $server || true
}
# Whether the loader is new enough for `ferroce system on`.
SWITCHES=yes
[ "$(ldconfig --version | sed -n '1s/.*[. ]//p')" -ge 30 ] || SWITCHES=no
useradd --create-home --uid 1000 user

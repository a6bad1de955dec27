# Two pods, as a cluster would run them: each has a network of its own, an empty volume that the init container fills, and
# the files of an image, which here are this machine's. $1: an empty folder for the roots; $2: ferroce's folder.
# Process numbers are those of a PID namespace of its own, with its own /proc: nsenter reaches nothing else.
# INIT and SERVER are commands of the manifest, VARIABLES are the container's, RUN_AS is the user.
[ "$(readlink /proc/1/ns/pid)" = "$(readlink /proc/self/ns/pid)" ] || { echo "/proc is another PID namespace's"; exit 1; }
mount -t tmpfs none "$1"
for pod in one two; do
    root=$1/$pod
    mkdir -p "$root/opt/ferroce/bin" "$root/opt/ferroce/lib" "$root/ferroce" "$root/tmp" "$root/proc"
    for folder in usr bin sbin lib lib64 etc; do
        [ ! -L /$folder ] || { cp -P /$folder "$root/$folder"; continue; }
        [ ! -d /$folder ] || { mkdir "$root/$folder"; mount --rbind /$folder "$root/$folder"; }
    done
    mkdir "$root/dev"
    mount --rbind /dev "$root/dev"
    mount -t proc proc "$root/proc"
    mount --bind -o ro "$2/bin" "$root/opt/ferroce/bin"
    mount --bind -o ro "$2/lib" "$root/opt/ferroce/lib"
    chmod 1777 "$root/tmp" "$root/ferroce"
    # The image of the init container is gone when the program runs.
    chroot "$root" setpriv --no-new-privs --reuid="$RUN_AS" --regid="$RUN_AS" --clear-groups -- $INIT
    umount "$root/opt/ferroce/bin" "$root/opt/ferroce/lib"
done

unshare -n sleep 50 & one=$!
unshare -n sleep 50 & two=$!
mine=$(readlink /proc/self/ns/net)
for pod in $one $two; do
    until [ "$(readlink /proc/$pod/ns/net)" != "$mine" ]; do sleep 0.05; done
done
ip link set pod0 netns $one name eth0
ip link set pod1 netns $two name eth0
number=1
for pod in $one $two; do
    nsenter -t $pod -n -- sh -euc "ip link set lo up; ip addr add 10.84.0.$number/24 dev eth0; ip link set eth0 up"
    number=2
done

# container PID NAME COMMAND...
container() {
    pid=$1 root=$2
    shift 2
    nsenter -t "$pid" -n -- chroot "$root" setpriv --no-new-privs --reuid="$RUN_AS" --regid="$RUN_AS" --clear-groups -- \
        env -i PATH=/usr/bin:/bin $VARIABLES "$@"
}
container $one "$1/one" $SERVER & server=$!
tries=0
until container $two "$1/two" rping -c -a 10.84.0.1 -p 7471 -C 5 -v; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || exit 1
    sleep 0.1
done
kill $server 2>/dev/null || true

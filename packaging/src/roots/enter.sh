# Enters a copy of a distribution's root that vanishes at the end.
# $1: the root, $2: a folder to mount at, $3: the folder of packages, $4: the script to run inside, then its arguments.
root=$1 place=$2 packages=$3 script=$4
shift 4
mount --make-rprivate /
mount -t tmpfs none "$place"
mkdir "$place/upper" "$place/work" "$place/root"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$place/upper,workdir=$place/work" "$place/root"
mount -t proc proc "$place/root/proc"
mkdir "$place/root/packages"
mount --bind "$packages" "$place/root/packages"
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C DEBIAN_FRONTEND=noninteractive
unset HOME XDG_RUNTIME_DIR XDG_CACHE_HOME XDG_STATE_HOME LD_LIBRARY_PATH FERROCE_RUNTIME_DIR
exec chroot "$place/root" /bin/sh -euc "$script" sh "$@"

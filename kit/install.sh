#!/bin/sh
# Unpacks ferroce and prints the folder: install.sh ARCHIVE [FOLDER]
#
# ARCHIVE is the path or the URL (https, http, file) of a tarball; FOLDER is `ferroce` below the current folder unless it is
# given, and must not exist. If SHA256 is set and not empty, the tarball must have that checksum; for http it must be set.
# Needs tar and gzip, for URLs curl or wget, and for a checksum sha256sum. Nothing needs root.
set -eu

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

[ $# -ge 1 ] && [ $# -le 2 ] && [ -n "$1" ] || fail "usage: install.sh ARCHIVE [FOLDER]"
archive=$1
folder=${2:-ferroce}
[ ! -e "$folder" ] || fail "$folder exists already"

case $archive in
    [Hh][Tt][Tt][Pp]://*)
        [ -n "${SHA256:-}" ] || fail "anybody on the way can change $archive: set SHA256 to the tarball's checksum, or use https"
        ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $archive in
    *://*)
        if command -v curl >/dev/null; then
            # An answer by https may name a place that is not protected.
            [ -n "${SHA256:-}" ] && redirects=https,http || redirects=https
            curl --fail --silent --show-error --location --proto-redir "=$redirects" --output "$work/archive" "$archive" || fail "cannot fetch $archive"
        elif command -v wget >/dev/null; then
            wget --quiet --output-document="$work/archive" "$archive" || fail "cannot fetch $archive"
        else
            fail "curl or wget is needed for $archive"
        fi
        archive=$work/archive
        ;;
    *) [ -f "$archive" ] || fail "$archive is no file" ;;
esac

if [ -n "${SHA256:-}" ]; then
    sum=$(sha256sum <"$archive")
    [ "${sum%% *}" = "$SHA256" ] || fail "the checksum of $1 is ${sum%% *}, not $SHA256"
fi

mkdir "$work/unpacked"
tar -xzf "$archive" -C "$work/unpacked" --strip-components=1 --no-same-owner || fail "$1 cannot be unpacked"
version=$("$work/unpacked/bin/ferroce" --version) || fail "bin/ferroce of $1 does not run here"
mkdir -p "$(dirname "$folder")"
cp -a "$work/unpacked" "$folder"
echo "$version is in $folder" >&2
cd "$folder" && pwd

#!/bin/sh
# Stand-in for `chroot ROOT PROGRAM ARGUMENTS…`, without a change of the root: the simulated programs find theirs by
# their own path.
root=${1%/} program=$2
shift 2
case $program in
    /*) exec "$root$program" "$@" ;;
    *) exec "$root/usr/bin/$program" "$@" ;;
esac

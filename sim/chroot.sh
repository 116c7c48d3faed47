#!/bin/sh
# Stand-in for `chroot [OPTION…] ROOT PROGRAM ARGUMENTS…`, without a change of root or user: the simulated programs find
# theirs by their own path. Like chroot, it ends with 127 for a program that does not exist.
while [ "${1#--}" != "$1" ]; do shift; done
root=${1%/} program=$2
shift 2
case $program in
    /*) exec "$root$program" "$@" ;;
    *) exec "$root/usr/bin/$program" "$@" ;;
esac

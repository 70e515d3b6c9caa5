#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nodes.sh - up N | down N | exec NODE COMMAND... | agent NODE COMMAND...: pseudo-nodes for tests, as root. Each of lksn1 to
# lksnN has a network of its own (veth on a bridge), a name, /etc/hosts, /dev/shm and /tmp; files are shared. `agent` is
# what mpirun calls instead of ssh.
set -u
bridge=lksbr net=10.231.8
me=$(realpath "$0")
case ${1:-} in
up)
    ip link add $bridge type bridge && ip addr add $net.254/24 dev $bridge && ip link set $bridge up || exit 1
    for i in $(seq "$2"); do
        ip netns add lksn$i && ip link add lksv$i type veth peer name eth0 netns lksn$i &&
            ip link set lksv$i master $bridge up && ip -n lksn$i addr add $net.$i/24 dev eth0 &&
            ip -n lksn$i link set eth0 up && ip -n lksn$i link set lo up || exit 1
        mkdir -p /etc/netns/lksn$i
        { echo "127.0.0.1 localhost"; for k in $(seq "$2"); do echo "$net.$k lksn$k"; done; } >/etc/netns/lksn$i/hosts
    done
    ;;
down)
    for i in $(seq "$2"); do
        ip netns del lksn$i
        rm -rf /etc/netns/lksn$i
    done
    ip link del $bridge
    ;;
exec)
    node=$2
    shift 2
    # nsenter, not ip netns exec: that mounts /sys anew.
    exec nsenter --net=/run/netns/"$node" unshare --uts --mount bash -c 'node=$1; shift
hostname $node
mount --bind /etc/netns/$node/hosts /etc/hosts
mkdir -p /run/lksn/$node
mount -t tmpfs -o size=1g tmpfs /dev/shm
mount -t tmpfs -o size=1g tmpfs /run/lksn/$node
export TMPDIR=/run/lksn/$node
exec "$@"' sh "$node" "$@"
    ;;
*) # mpirun's agent: [options] NODE COMMAND
    while [[ ${1:-} == -* ]]; do shift; done
    node=$1
    shift
    exec "$me" exec "$node" bash -c "$*"
    ;;
esac

#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# cluster.sh - start DIR | stop DIR: a Slurm of one node for tests, as root, without systemd, /etc/slurm or a munge service.
# Configuration, key, sockets, state and logs are in DIR; SLURM_CONF=DIR/slurm.conf reaches it.
set -u
test $# -eq 2 || { sed -n '4,5s/^# //p' "$0"; exit 2; }
action=$1 dir=$(realpath -m "$2")
export SLURM_CONF=$dir/slurm.conf
host=$(uname -n)
port=${SLURMCTLD_PORT:-36817}

configure()
{
    mkdir -p "$dir"/{state,spool/"$host",log,run}
    chmod 755 "$dir" "$dir/run"
    chmod 700 "$dir/state"
    test -f "$dir/munge.key" || (umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")
    # Short holds and intervals, so that a requeued job starts within seconds.
    cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/run/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=3
MinJobAge=600
MessageTimeout=30
SlurmdTimeout=300
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
NodeName=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
    echo CgroupPlugin=cgroup/v1 >"$dir/cgroup.conf" # slurmd ends where no cgroup file system is mounted, else
}

end_process() # PIDFILE
{
    local pid i
    test -f "$1" || return 0
    pid=$(cat "$1")
    kill "$pid" 2>/dev/null
    for i in $(seq 50); do
        kill -0 "$pid" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null || break
        sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null
    rm -f "$1"
}

case $action in
start)
    configure
    munged --key-file="$dir/munge.key" --socket="$dir/run/munge.sock" --pid-file="$dir/run/munged.pid" \
        --log-file="$dir/log/munged.log" --seed-file="$dir/run/munged.seed" --force || exit 1
    slurmctld -c && slurmd -c || exit 1
    for i in $(seq 300); do
        test -z "$(sinfo -h -N -t idle -o %N 2>/dev/null)" || exit 0
        sleep 0.1
    done
    echo "cluster.sh: the node does not become idle" >&2
    tail -n 5 "$dir"/log/* >&2
    exit 1
    ;;
stop) # the controller first: it would wait for a slurmd that has gone
    for name in slurmctld slurmd munged; do end_process "$dir/run/$name.pid"; done
    ;;
*) exit 2 ;;
esac

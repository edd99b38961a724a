#!/bin/sh
# PID 1 of the guest. Its root is the machine's, read-only; the folder of the laboratory is all that it may write to.
# $OUT is that folder, from the command line of the kernel; `settings` in it has the rest, quoted.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. "$OUT/settings"

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/shm /dev/pts /run/out
ln -sf /proc/self/fd /dev/fd
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts pts /dev/pts
mount -t hostfs none /run/out -o "$OUT"

ip link set lo up
ulimit -n 8000
# Folders of the machine's own cannot be written to.
export TMPDIR=/dev/shm HOME=/dev/shm PYTHONDONTWRITEBYTECODE=1
cd "$PROJECT" && "$PYTHON" -m netem.uml.guest /run/out >/run/out/log 2>&1
echo $? >/run/out/code
# At once: nobody needs what still runs.
echo o >/proc/sysrq-trigger
sleep 10

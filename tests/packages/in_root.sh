#!/bin/sh
# Run inside a clean Debian 12 root, /packages in it: install, use, remove. Prints TAP.
set -u
n=0 bad=0
ok() { n=$((n + 1)); echo "ok $n - $*"; }
not_ok() { n=$((n + 1)); bad=1; echo "not ok $n - $*"; }
check() { # check WHAT COMMAND...: its output is shown when it fails
	what=$1
	shift
	if out=$("$@" 2>&1); then ok "$what"; else not_ok "$what"; echo "$out" | sed 's/^/# /'; fi
}
files() { find / -xdev \( -path /proc -o -path /sys -o -path /packages -o -path /tmp -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache \
	-o -path /var/lib/apt -o -path /root \) -prune -o -print | LC_ALL=C sort; }
export DEBIAN_FRONTEND=noninteractive

apt-get update -qq >/dev/null 2>&1
# What the packages need is there before: what is left of them is to be seen, not what is left of systemd.
apt-get install -y -qq --no-install-recommends $(dpkg -I /packages/rvd_*.deb | sed -n 's/^ Depends: //p' | tr ',' '\n' | sed 's/ *([^)]*)//; s/|.*//') \
	libncursesw6 libjson-c5 >/dev/null 2>&1
files >/tmp/before
cp /etc/passwd /etc/group /tmp/

check "the packages install" apt-get install -y -qq --no-install-recommends /packages/librv1_*.deb /packages/librv-dev_*.deb /packages/rvd_*.deb \
	/packages/rvd-tools_*.deb
check "there is a user of its own, and its directories" sh -c 'id rvd && [ "$(stat -c %U:%a /var/lib/rvd)" = rvd:750 ] && [ "$(stat -c %U /run/rvd)" = rvd ]'
check "the packaged configuration is sound" sh -c '[ -z "$(runuser -u rvd -- rvd -c /etc/rvd/rvd.conf --check-config 2>&1)" ]'
check "it brings its own UCX" sh -c 'ldd /usr/bin/rvd | grep -q "libucp.so.0 => /usr/lib/rvd/libucp.so.0" && ! ldd /usr/bin/rvd | grep "not found"'
useradd -G rvd alice
useradd bob

served() {
	for _ in $(seq 100); do
		[ -S /run/rvd/rvd.sock ] && grep -q "serves as worker" /tmp/log && break
		sleep 0.2
	done
}
# As rvd(8) says, for a machine without systemd; after a boot /run is empty.
rm -rf /run/rvd
install -d -o rvd -g rvd /run/rvd
setpriv --reuid rvd --regid rvd --init-groups rvd -c /etc/rvd/rvd.conf 2>/tmp/log &
pid=$!
served
check "the daemon starts with the packaged configuration" grep -q "serves as worker" /tmp/log
RVD_SOCKET=/run/rvd/rvd.sock
export RVD_SOCKET
head -c 3000000 /dev/urandom >/tmp/data
chmod 644 /tmp/data
check "a member of the group puts and gets" runuser -u alice -- sh -c \
	'ref=$(rvctl put /tmp/data) && echo "$ref" && rvctl get "$ref" -o /tmp/alice.out && cmp /tmp/data /tmp/alice.out'
check "somebody else does not" runuser -u bob -- sh -c 'rvctl status; [ $? = 7 ]'
check "rvtop shows it" sh -c 'runuser -u alice -- rvtop -b -n 1 | grep -q "core 0"'

check "manual pages and completion are there" sh -c 'for f in man8/rvd.8 man5/rvd.conf.5 man1/rvctl.1 man1/rvtop.1 man1/rv_get_bw.1 man1/rv_get_lat.1; do
	[ -s /usr/share/man/$f.gz ] || exit 1; done; [ -s /usr/share/bash-completion/completions/rvctl ]'
check "the library is found by who looks for it" sh -c 'ls /usr/lib/*/librv.so /usr/include/rv/rv.h /usr/lib/*/pkgconfig/rv.pc && [ -x /packages/linked ] && /packages/linked'
(sleep 90; kill -9 $pid) 2>/dev/null &
kill -TERM $pid
wait $pid
check "it stops clean" [ $? = 0 ]
rm -f /tmp/log
rvd -c /etc/rvd/rvd.conf 2>/tmp/log &
pid=$!
served
check "a member of the group may use it when root started it" runuser -u alice -- rvctl status
kill -TERM $pid
wait $pid
rm -f /tmp/alice.out
userdel -r alice 2>/dev/null
userdel -r bob 2>/dev/null

check "the packages go" apt-get purge -y -qq librv1 librv-dev rvd rvd-tools
files >/tmp/after
check "and leave no file" sh -c 'diff /tmp/before /tmp/after | grep -v "^[<>] /etc/\(passwd\|group\|shadow\|gshadow\|subuid\|subgid\)-\{0,1\}$" | grep "^[<>]"; [ $? = 1 ]'
check "nor a user" sh -c '! getent passwd rvd && ! getent group rvd'
echo "1..$n"
exit $bad

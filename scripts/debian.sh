#!/bin/sh
# Installs what the tests need from Debian, when we are root and apt exists; otherwise says what is missing.
# One line of `needs` per package: command:package
set -eu
needs="c++:g++ cc:gcc ip:iproute2"   # torch.compile and the lab's switch (link.c) are compiled; the lab makes namespaces
needs="$needs chromium:chromium prometheus:prometheus"   # open the page of `shoal watch`, and scrape it
# machines of tests/launch/engines: a Slurm of two nodes, sshd on ports of loopback, Open MPI; no service is started
needs="$needs slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client munged:munge sshd:openssh-server ssh:openssh-client"
needs="$needs mpirun:openmpi-bin unshare:util-linux"
needs="$needs initdb:postgresql"   # the index of a registry; a server is started in a folder of the test, none by Debian
PATH="$PATH:/usr/sbin:/sbin:$(echo /usr/lib/postgresql/*/bin)"
missing=""
for need in $needs; do
    command -v "${need%%:*}" >/dev/null 2>&1 || missing="$missing ${need##*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    policy=/usr/sbin/policy-rc.d  # what is installed here is started by the tests that need it, and by nobody else
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
else
    echo "scripts/debian.sh: missing$missing; install them (as root: apt-get install$missing) or the tests that need them will skip" >&2
fi

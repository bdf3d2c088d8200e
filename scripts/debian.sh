#!/bin/sh
# Installs what the tests need from Debian, when we are root and apt exists; otherwise says what is missing.
# One line of `needs` per package: command:package
set -eu
needs="c++:g++ cc:gcc ip:iproute2 chromium:chromium"   # torch.compile and the lab's switch (link.c) are compiled; the lab makes namespaces; chromium opens the page of shoal watch
missing=""
for need in $needs; do
    command -v "${need%%:*}" >/dev/null 2>&1 || missing="$missing ${need##*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
else
    echo "scripts/debian.sh: missing$missing; install them (as root: apt-get install$missing) or the tests that need them will skip" >&2
fi

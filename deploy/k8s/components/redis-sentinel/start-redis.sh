#!/bin/sh
# Starts a Redis beside others: SELF (host:port) is one of REDISES, of which the first begins as master.
set -eu
. "$(dirname "$0")/common.sh"

# Protected mode would refuse all but the loopback; the network policy says who may connect.
set -- --port "$(port "$SELF")" --protected-mode no --dir "$DIRECTORY" --save "" --appendonly no --maxmemory 256mb \
    --maxmemory-policy allkeys-lru --replica-announce-ip "$(host "$SELF")" --replica-announce-port "$(port "$SELF")"
master=$(find_master)
[ -n "$master" ] || master=${REDISES%% *}
if [ "$master" != "$SELF" ]; then
    set -- "$@" --replicaof "$(host "$master")" "$(port "$master")"
fi
exec redis-server "$@"

#!/bin/sh
# Starts a Sentinel beside others: SELF (host:port) is one of SENTINELS. It asks its way to the master anew at each start.
set -eu
. "$(dirname "$0")/common.sh"

master=$(find_master)
[ -n "$master" ] || master=${REDISES%% *}
# A master whose name is not known yet would end it.
tries=0
until timeout 2 redis-cli -h "$(host "$master")" -p "$(port "$master")" ping >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ "$tries" -gt 30 ]; then echo "no Redis at $master" >&2; exit 1; fi
    sleep 1
done
cat >"$DIRECTORY/sentinel.conf" <<EOF
port $(port "$SELF")
dir $DIRECTORY
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $(host "$SELF")
sentinel announce-port $(port "$SELF")
sentinel monitor $SERVICE $(host "$master") $(port "$master") 2
sentinel down-after-milliseconds $SERVICE ${DOWN_AFTER_MS:-5000}
sentinel failover-timeout $SERVICE ${FAILOVER_TIMEOUT_MS:-15000}
EOF
exec redis-server "$DIRECTORY/sentinel.conf" --sentinel

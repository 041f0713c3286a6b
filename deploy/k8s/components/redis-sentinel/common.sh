# What both scripts know: REDISES and SENTINELS are host:port with spaces, SERVICE is the master's name.

host() { echo "${1%:*}"; }
port() { echo "${1##*:}"; }

# Prints host:port of the master that the Sentinels agree upon, or else of a Redis that is one; nothing without either.
find_master() {
    for one in $SENTINELS; do
        found=$(timeout 2 redis-cli -h "$(host "$one")" -p "$(port "$one")" --raw \
            sentinel get-master-addr-by-name "$SERVICE" 2>/dev/null | paste -sd : -) || continue
        case $found in *?:[0-9]*) echo "$found"; return ;; esac
    done
    for one in $REDISES; do
        [ "$one" != "$SELF" ] || continue
        role=$(timeout 2 redis-cli -h "$(host "$one")" -p "$(port "$one")" --raw role 2>/dev/null | head -n 1) || continue
        if [ "$role" = master ]; then echo "$one"; return; fi
    done
}

#!/bin/sh
# Ray on this machine, as a worker of the head that head.sh has started.
#   sh worker.sh HEAD[:PORT] [OPTIONS of ray start]
# The head's token is fetched by ssh unless it is here already. The same ablate, the data (ABLATE_DATA) and, unless
# ABLATE_STORE names a bucket, the folder of all studies must be here under the same path as on the head.
set -eu
umask 077
fail() {
    echo "worker.sh: $1" >&2
    exit 2
}

[ $# -ge 1 ] || fail "say where the head is: sh worker.sh HEAD[:PORT]"
host=${1%:*}
port=6379
case $1 in *:*) port=${1##*:} ;; esac
shift
token=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}
for name in ray ablate; do
    command -v $name >/dev/null || fail "$name is not found: activate the environment that ablate is installed in"
done
theirs=$(ssh "$host" 'python -c "import ablate; print(ablate.__version__)"' 2>/dev/null) || theirs=
mine=$(ablate --version)
[ -z "$theirs" ] || [ "ablate $theirs" = "$mine" ] || fail "$host has ablate $theirs, this machine $mine"
if [ ! -s "$token" ]; then
    mkdir -p "$(dirname "$token")"
    ssh "$host" 'cat "${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}"' >"$token.part" || {
        rm -f "$token.part"
        fail "$host: the token cannot be fetched by ssh; copy ~/.ray/auth_token yourself"
    }
    mv "$token.part" "$token"
fi
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$token" RAY_USAGE_STATS_ENABLED=0
exec ray start --address="$host:$port" --object-store-memory=1000000000 "$@"

#!/bin/sh
# Ray's head on this machine, for machines without a scheduler. It runs the driver and no trial.
#   sh head.sh [OPTIONS of ray start]
# Then on each other machine: sh worker.sh HEAD; and a study, here: ablate search STUDY.yaml --address HEAD:6379 --gpus 8
# Ray runs whatever code it is sent. A token keeps others out, and it does not keep anything secret on the way: use
# machines whose network is yours. It is made once, in ~/.ray/auth_token, where `ray` and `ablate` look for it.
set -eu
umask 077
port=${PORT:-6379}
token=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}

for name in ray ablate; do
    command -v $name >/dev/null || {
        echo "head.sh: $name is not found: activate the environment that ablate is installed in" >&2
        exit 2
    }
done
if [ ! -s "$token" ]; then
    mkdir -p "$(dirname "$token")"
    head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$token"
fi
name=$(hostname)
echo "On each other machine:  sh worker.sh $name:$port"
echo "Then here:              ablate search STUDY.yaml --address $name:$port --gpus NUMBER"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$token" RAY_USAGE_STATS_ENABLED=0
exec ray start --head --port="$port" --num-cpus=0 --num-gpus=0 --object-store-memory=1000000000 "$@"

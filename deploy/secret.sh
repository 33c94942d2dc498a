#!/bin/sh
# Make the Secret `ablate`, once: what studies, MLflow and deploy/ui must know and no manifest may hold. One that exists is left
# alone, and the exit code is 2: the database and MLflow keep the passwords that it holds.
#   sh deploy/secret.sh local    PostgreSQL in the cluster: every password is made here
#   sh deploy/secret.sh gpu      managed PostgreSQL and a bucket, from the environment:
#     STORAGE_URL             the ledger             postgresql+psycopg://USER:PASSWORD@HOST/ablate?sslmode=require
#     MLFLOW_BACKEND_URL      MLflow's own database  postgresql+psycopg://USER:PASSWORD@HOST/mlflow?sslmode=require
#     AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY       of the bucket; none where the cluster's identity opens it
# NAMESPACE chooses another namespace than `ablate`. Nothing secret stands on a command line or on the screen.
set -eu
umask 077

fail() {
    echo "secret.sh: $1" >&2
    exit 2
}

random() {
    head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n'
}

command -v kubectl >/dev/null || fail "kubectl is not installed"
namespace=${NAMESPACE:-ablate}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT INT TERM

put() { # one file per key, without a newline at its end
    printf %s "$2" >"$folder/$1"
}

case "${1:-}" in
local)
    password=$(random)
    put postgres-password "$password"
    STORAGE_URL="postgresql+psycopg://ablate:$password@postgres/ablate"
    MLFLOW_BACKEND_URL="postgresql+psycopg://ablate:$password@postgres/mlflow"
    ;;
gpu)
    for name in STORAGE_URL MLFLOW_BACKEND_URL; do
        case "$(printenv "$name" || true)" in
        postgresql://* | postgresql+psycopg://*) ;;
        '') fail "$name is not set: postgresql+psycopg://USER:PASSWORD@HOST/DATABASE" ;;
        *) fail "$name is no address of a PostgreSQL database: postgresql+psycopg://USER:PASSWORD@HOST/DATABASE" ;;
        esac
    done
    [ "$STORAGE_URL" != "$MLFLOW_BACKEND_URL" ] || fail "STORAGE_URL and MLFLOW_BACKEND_URL must name two databases"
    if [ -n "${AWS_ACCESS_KEY_ID:-}" ]; then
        put aws-access-key-id "$AWS_ACCESS_KEY_ID"
        put aws-secret-access-key "${AWS_SECRET_ACCESS_KEY:?secret.sh: AWS_SECRET_ACCESS_KEY is not set}"
    fi
    ;;
*)
    fail "say which: sh deploy/secret.sh local, or sh deploy/secret.sh gpu"
    ;;
esac

if [ -n "$(kubectl get secret ablate --namespace "$namespace" --ignore-not-found -o name)" ]; then
    fail "the Secret ablate is in namespace $namespace already, and was left as it is. To change it: deploy/README.md, New passwords"
fi

put storage-url "$STORAGE_URL"
put mlflow-backend-url "$MLFLOW_BACKEND_URL"
put ui-token "$(random)"
put mlflow-username ablate
put mlflow-password "$(random)"
put mlflow-secret-key "$(random)"
# MLflow reads its users' database from a file of this form, in which a % is written twice.
put mlflow-auth.ini "[mlflow]
default_permission = READ
database_uri = $(printf %s "$MLFLOW_BACKEND_URL" | sed 's/%/%%/g')
"
kubectl create secret generic ablate --namespace "$namespace" --from-file="$folder"

#!/usr/bin/env bash
# The GPU check in one command: bash benchmarks/gpu.sh OUT (see benchmarks/gpu.py). PYTHON names the interpreter.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$root/benchmarks/gpu.py" "$@"

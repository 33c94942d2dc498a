#!/usr/bin/env bash
# The GPU check: CUDA tests, trials per hour over pack sizes, baselines, one row of paper A's Table 2. Writes CSVs to OUT.
#   bash benchmarks/gpu.sh OUT                      # at most 8 minutes
#   bash benchmarks/gpu.sh OUT --device cpu --small # the same in miniature, to test the script
# Needs torch, NumPy, pydantic and safetensors; neither Ray, Optuna nor MLflow. GPU_PACKAGES may name a folder with
# packages that this machine lacks (pip install --target). MNIST is read from $ABLATE_DATA, else its shape is made up.
set -u
out=${1:?usage: bash benchmarks/gpu.sh OUT [--device cpu --small]}
shift
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
export PYTHONPATH="$root${GPU_PACKAGES:+:$GPU_PACKAGES}" PYTHONDONTWRITEBYTECODE=1
python=${PYTHON:-python3}
failed=0
part() {  # NAME SECONDS [OPTIONS]: a part that fails or takes too long says so, and the others still run
    local name=$1 seconds=$2
    shift 2
    timeout "$seconds" "$python" "$root/benchmarks/gpu.py" "$name" "$out" "$@" 2> "$out/$name.err"
    local code=$?
    if [ $code -ne 0 ]; then
        failed=1
        echo "$name: failed with exit code $code: $(tail -n 1 "$out/$name.err")" | tee -a "$out/failed.txt"
    else
        rm -f "$out/$name.err"
    fi
}
part device 60 "$@" || true
if [ $failed -ne 0 ]; then exit 1; fi
part packs 150 "$@"
part plain 60 "$@"
part processes 90 "$@"
part table2 100 "$@"
if "$python" -c "import pytest" 2> /dev/null; then
    (cd "$root" && PYTHONPATH="$PYTHONPATH:$root/tests" timeout 60 "$python" -m pytest -q -m cuda tests/training/test_cuda.py --noconftest -o addopts= -p no:cacheprovider) | tee "$out/tests.txt"
else
    echo "tests: not run: pytest is not installed" | tee "$out/tests.txt"
fi
exit $failed

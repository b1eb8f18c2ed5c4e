#!/usr/bin/env bash
# Everything that needs a GPU, in one unattended command of less than eight minutes:
#
#     bash benchmarks/gpu.sh [OUT]
#
# Needs an environment with CUDA's torch and this package ("pip install -e .[zoo,mujoco,test]"); PYTHON names its interpreter.
# Writes JSON, tables and pictures to OUT (default benchmarks/results/throughput/<card>).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
CARD="$("$PYTHON" -c 'import torch; print(torch.cuda.get_device_name().replace(" ", "_"))')"
OUT="${1:-benchmarks/results/throughput/$CARD}"
mkdir -p "$OUT"

# captured equals plain, on the card
"$PYTHON" -m pytest -q tests/test_acceleration.py -k "captured or compiled" | tee "$OUT/tests.txt"

# eager, compiled and captured updates, next to SAC; the same on one CPU thread for comparison
for how in none compile cudagraph; do
    "$PYTHON" -W ignore benchmarks/throughput.py --device cuda --acceleration "$how" --rounds 7 --out "$OUT/$how"
done

# steps per second on HalfCheetah with 1, 8 and 32 environments, and memory over 50k updates
"$PYTHON" -W ignore benchmarks/gpu_loop.py --out "$OUT/loop.json"

# the zoo end to end: train on the card, enjoy on the CPU from that zip
LOGS="$(mktemp -d)"
"$PYTHON" -W ignore -m rl_zoo3.train --algo dual_qdm --env CartPole-v1 --device cuda -n 3000 -f "$LOGS" --seed 1 | tail -n 20 | tee "$OUT/zoo.txt"
"$PYTHON" -W ignore -m rl_zoo3.enjoy --algo dual_qdm --env CartPole-v1 --device cpu -f "$LOGS" --no-render -n 1000 | tail -n 5 | tee -a "$OUT/zoo.txt"
rm -rf "$LOGS"

#!/usr/bin/env bash
# Compile requirements/*.in into the two lock files (needs uv: `pip install uv`, or UV=/path/to/uv).
#
# Where the CPU build of torch lies on disk, name its folder in UV_FIND_LINKS.
#
# torch itself is left out of cpu.lock: its CPU build is not on PyPI and setup.sh installs it first, from
# wherever it can be had. triton is left out too: it is a GPU compiler that only xgrammar's metadata names.
set -euo pipefail
cd "$(dirname "$0")/../requirements"
UV=${UV:-uv}
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
common=(--python-version 3.11 --python-platform x86_64-manylinux_2_28 --index-strategy unsafe-best-match
        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock")

cpu=(pip compile cpu.in dev.in --override overrides.txt "${common[@]}"
     --no-emit-package torch --no-emit-package triton -o cpu.lock)
# As in setup.sh: the configured sources first, PyTorch's CPU index where they do not hold the CPU build.
"$UV" "${cpu[@]}" "$@" >/dev/null || "$UV" "${cpu[@]}" --extra-index-url "$TORCH_CPU_INDEX" "$@" >/dev/null
"$UV" pip compile gpu.in dev.in "${common[@]}" -o gpu.lock "$@" >/dev/null

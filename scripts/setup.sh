#!/usr/bin/env bash
# Make .venv from the lock files, or do nothing when it is already what they say.
#
#   STACK=cpu|gpu   which lock file; default: gpu when an NVIDIA GPU answers, else cpu
#   PYTHON=...      which interpreter makes the environment; default: the first 3.11 or 3.12 found
#   VENV=...        where; default: .venv
#
# It may be interrupted at any time and run again: a step's stamp is written after the step, and an
# environment whose packages were being written is made anew, for pip takes half a package for a whole one.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
TORCH_CPU=torch==2.13.0+cpu
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
IN_RANGE='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))'

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

choose_stack() {
  if [ -n "${STACK:-}" ]; then
    case $STACK in cpu | gpu) return ;; *) die "STACK is '$STACK': it can be cpu or gpu" ;; esac
  fi
  # -L fails, or lists nothing, where the driver is there without a usable GPU.
  if timeout 10 nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then STACK=gpu; else STACK=cpu; fi
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
    # Run it: a version manager's shim can be on the path with no interpreter behind it.
    if "$candidate" -c "$IN_RANGE" 2>/dev/null; then
      "$candidate" -c 'import venv, ensurepip' 2>/dev/null ||
        die "$candidate has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv)"
      PYTHON=$candidate
      return
    fi
  done
  die "Python 3.11 or 3.12 is needed (looked for: ${PYTHON:-python3.11 python3.12 python3}).
       Install one, or name it: make PYTHON=/path/to/python3.11"
}

make_venv() {
  if [ -e "$VENV/.setup-begun" ]; then
    say "the last set-up was interrupted, starting over"
  elif "$VENV/bin/python" -c "$IN_RANGE" 2>/dev/null && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    return
  fi
  find_python
  say "making $VENV with $("$PYTHON" --version)"
  "$PYTHON" -m venv --clear "$VENV"
}

pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }

install_torch_cpu() {
  local log="$VENV/setup-torch.log"
  if "$VENV/bin/python" -c "
from importlib.metadata import version; import sys; sys.exit('torch==' + version('torch') != '$TORCH_CPU')" 2>/dev/null; then
    return
  fi
  say "installing $TORCH_CPU (200 MB)"
  # The CPU build is not on PyPI. It may be in a folder or an index that pip is configured with, and if
  # not it is on PyTorch's own index.
  pip install --no-deps "$TORCH_CPU" 2>"$log" && return
  say "not in pip's configured sources, taking it from $TORCH_CPU_INDEX"
  pip install --no-deps --index-url "$TORCH_CPU_INDEX" "$TORCH_CPU" && return
  cat "$log" >&2
  die "$TORCH_CPU could not be installed from either place"
}

install_packages() {
  local lock="requirements/$STACK.lock" total
  total=$(grep -c == "$lock")
  say "$STACK stack: $total packages from $lock (a few minutes the first time)"
  [ "$STACK" = gpu ] || install_torch_cpu
  # The lock is complete, so nothing is resolved again.
  pip install --no-deps -r "$lock" 2>&1 | awk -v total="$total" '
    /^Requirement already satisfied/ { count += 1; next }
    /^(Collecting|Processing)/ { count += 1; sub(".*/", "", $2); name = $2
                                 printf "setup: [%d/%d] %s\n", count, total, name; fflush(); next }
    /^Installing collected/ { print "setup: unpacking them (about a minute)"; fflush(); next }
    /^(ERROR|error)|^ +(×|╰|error)/ { print; fflush() }'
}

install_project() {
  say "installing the project itself (editable)"
  # compat puts this folder on the path as it is, so packages added later are found without a new install.
  pip install --quiet --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
}

step() { # step NAME WANTED COMMAND: run COMMAND unless the stamp NAME already says WANTED
  local stamp="$VENV/.setup-$1"
  [ "$(cat "$stamp" 2>/dev/null)" = "$2" ] && return
  changed=1
  rm -f "$stamp"
  touch "$VENV/.setup-begun"
  "$3"
  printf '%s\n' "$2" >"$stamp"
  rm "$VENV/.setup-begun"
}

hash_of() { cat "$@" | sha256sum | cut -c1-16; }

up_to_date() {
  [ "$(cat "$VENV/.setup-packages" 2>/dev/null)" = "$packages" ] &&
    [ "$(cat "$VENV/.setup-project" 2>/dev/null)" = "$project" ]
}

choose_stack
packages="$STACK $(hash_of "requirements/$STACK.lock")"
project=$(hash_of pyproject.toml)
up_to_date && exit 0

mkdir -p .cache
exec 9>.cache/setup.lock
flock -n 9 || { say "another set-up is at work, waiting for it"; flock 9; }
changed=
SECONDS=0
make_venv
step packages "$packages" install_packages
step project "$project" install_project
[ -z "$changed" ] || say "$VENV is ready ($STACK stack, ${SECONDS} s)"

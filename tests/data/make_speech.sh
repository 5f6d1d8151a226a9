#!/usr/bin/env bash
# How the speech in this folder was made: espeak-ng 1.51 speaks, soundfile writes the three formats.
# Run from anywhere; needs espeak-ng on the path and the project's .venv.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

espeak-ng -v en-us -s 165 -w "$work/harbour.wav" "The harbour lights came on at seven."
espeak-ng -v en-gb -s 150 -p 65 -w "$work/numbers.wav" "Four, nineteen, and ninety two."
espeak-ng -v de -s 160 -p 40 -w "$work/zug.wav" "Der Zug nach Hamburg ist pünktlich."

../../.venv/bin/python - "$work" <<'PY'
import sys
import soundfile

for name, suffix, subtype in (
    ("harbour", "flac", "PCM_16"),
    ("numbers", "ogg", "VORBIS"),
    ("zug", "wav", "PCM_16"),
):
    samples, rate = soundfile.read(f"{sys.argv[1]}/{name}.wav", dtype="float32")
    soundfile.write(f"speech_{name}.{suffix}", samples, rate, subtype=subtype)
    print(f"speech_{name}.{suffix}: {len(samples) / rate:.2f} s at {rate} Hz")
PY

"""Make spoken.npz: every word of the trained model twice, by two voices that training never heard.

    .venv/bin/python -m tests.data.make_spoken

Needs espeak-ng. The file holds for each clip what was said, the voice, the words a minute and the pitch.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np

from training import voices

FILE = Path(__file__).with_name("spoken.npz")
SEED = 2026


def main() -> None:
    """Speak and write them. A seed whose two clips of a word have one voice raises AssertionError."""
    rng = np.random.default_rng(SEED)
    clips = voices.renditions(rng, 2, held_out=True)
    assert all(a.voice != b.voice for a, b in pairwise(clips) if a.said == b.said)
    voices.save(FILE, clips)


if __name__ == "__main__":
    main()

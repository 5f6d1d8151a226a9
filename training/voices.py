"""Words and sentences spoken by espeak-ng (Debian's package), as 16 kHz samples with who spoke them.

Voices, variants and speeds are split: what a held-out clip has was in no training clip.
"""

import io
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

RATE = 16_000
WORDS = (
    "zero one two three four five six seven eight nine ten yes no up down left right stop go on off"
).split()
"""What the model can hear."""
SENTENCES = (
    "the harbour lights were bright",
    "a cup of tea would be nice",
    "we walked along the river",
    "please open a window",
    "my brother plays the violin",
    "rain is falling over the hills",
    "have you read this book",
    "the train to London was slow",
    "children laugh in the garden",
    "nobody answered the telephone",
    "it was a cold evening in March",
    "she bought bread and butter",
    "this machine makes coffee",
    "birds sing before dawn",
    "what a beautiful morning",
    "he painted the whole fence",
    "our cat sleeps under the table",
    "music came from far away",
    "the old bridge is closed",
    "leaves turn brown and fall",
)
"""Speech that holds none of the words alone: the model is to say that it knows no word in it."""

ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbcwmd", "en-029")
HELD_OUT_ACCENT = "en-gb-x-gbclan"
VARIANTS = (
    "m1 m2 m3 m4 m6 m7 m8 f1 f2 f3 f5 klatt2 klatt4 Alex Andy Annie Denis Diogo Gene Hugo Jacky Lee Marco "
    "Michael Mike aunty belinda benjamin boris caleb david ed john marcelo max miguel norbert pablo paul "
    "quincy rob robert steph travis victor"
).split()
HELD_OUT_VARIANTS = ("m5", "f4", "klatt3", "adam", "linda", "edward", "Mario", "michel")
SPEEDS = (*range(115, 150), *range(165, 200))
HELD_OUT_SPEEDS = range(150, 165)
"""Words a minute; training has slower and faster ones."""


@dataclass(frozen=True)
class Spoken:
    """One clip: samples (n,) int16 at 16 kHz without silence around, and what was said by whom."""

    samples: np.ndarray
    said: str
    voice: str
    speed: int
    pitch: int


def speak(said: str, voice: str, speed: int, pitch: int) -> Spoken:
    """Run espeak-ng once. Raises CalledProcessError."""
    import soundfile
    import soxr  # type: ignore[import-untyped]

    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", said]
    wave = subprocess.run(command, check=True, capture_output=True).stdout
    samples, rate = soundfile.read(io.BytesIO(wave), dtype="float32")
    samples = soxr.resample(samples, rate, RATE)
    loud = np.flatnonzero(np.abs(samples) > 0.004)
    samples = samples[loud[0] : loud[-1] + 1]
    samples = samples * (0.5 / np.abs(samples).max())
    return Spoken((samples * 32767).astype(np.int16), said, voice, speed, pitch)


def renditions(
    rng: np.random.Generator, each: int, *, held_out: bool, sentences: bool = False
) -> list[Spoken]:
    """Every word (or sentence) spoken ``each`` times by random voices of one side of the split."""

    def one(said: str) -> tuple[str, str, int, int]:
        if held_out:
            accent = HELD_OUT_ACCENT if rng.random() < 0.5 else str(rng.choice(ACCENTS))
            voice = f"{accent}+{rng.choice(HELD_OUT_VARIANTS)}"
            return said, voice, int(rng.choice(HELD_OUT_SPEEDS)), int(rng.integers(30, 71))
        voice = str(rng.choice(ACCENTS))
        if rng.random() < 0.85:
            voice = f"{voice}+{rng.choice(VARIANTS)}"
        return said, voice, int(rng.choice(SPEEDS)), int(rng.integers(20, 81))

    orders = [one(said) for said in (SENTENCES if sentences else WORDS) for _ in range(each)]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda order: speak(*order), orders))


def save(path: Path, clips: list[Spoken]) -> None:
    """All clips in one compressed file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Differences of neighbours are smaller numbers than the samples, and pack tighter.
    steps = np.diff(np.concatenate([clip.samples for clip in clips]), prepend=np.int16(0))
    np.savez_compressed(
        path,
        steps=steps.view(np.uint8).reshape(-1, 2).T,
        lengths=np.array([len(clip.samples) for clip in clips]),
        said=np.array([clip.said for clip in clips]),
        voice=np.array([clip.voice for clip in clips]),
        speed=np.array([clip.speed for clip in clips]),
        pitch=np.array([clip.pitch for clip in clips]),
    )


def load(path: Path) -> list[Spoken]:
    """What ``save`` wrote."""
    with np.load(path) as pack:
        steps = np.ascontiguousarray(pack["steps"].T).view(np.int16)[:, 0]
        samples = np.split(np.cumsum(steps, dtype=np.int16), np.cumsum(pack["lengths"])[:-1])
        rest = (pack[name].tolist() for name in ("said", "voice", "speed", "pitch"))
        return [Spoken(*clip) for clip in zip(samples, *rest, strict=True)]


def ensure(folder: Path, seed: int, each: int = 110) -> tuple[list[Spoken], list[Spoken]]:
    """Training and held-out clips, words and sentences, spoken first where the files are missing."""
    packs = []
    for name, held_out, count in (("train", False, each), ("held_out", True, max(each // 6, 1))):
        path = folder / f"spoken_{name}_{seed}.npz"
        if not path.exists():
            rng = np.random.default_rng([seed, held_out])
            clips = renditions(rng, count, held_out=held_out)
            clips += renditions(rng, max(count // 12, 1), held_out=held_out, sentences=True)
            save(path, clips)
        packs.append(load(path))
    return packs[0], packs[1]

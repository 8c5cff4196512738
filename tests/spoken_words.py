"""A folder as that of Speech Commands, in which every word is a tone."""

import numpy as np

from wav_files import write_wav

TONES = {"yes": 300, "no": 3000, "bird": 1000}


def spoken_words(folder, count=4, splits=("validation", "testing")):
    """Recordings of half a second for each of these splits, and 20 seconds of background noise."""
    for split in splits:
        names = [f"{word}/{split}_nohash_{number}.wav" for word in TONES for number in range(count)]
        for number, name in enumerate(names):
            word = name.partition("/")[0]
            samples = 0.02 * np.sin(2 * np.pi * (TONES[word] + 5 * number) * np.arange(8000) / 16_000)
            samples[:1600] = 0
            write_wav(folder / name, samples)
        (folder / f"{split}_list.txt").write_text("\n".join(names))
    write_wav(folder / "_background_noise_" / "hiss.wav", 20 * 16_000)
    return folder

"""Write scikit-learn's handwritten digits as files, so that there is real data to fetch.

Usage: python export_data.py FOLDER

The folder gets train/part-00.npz … part-05.npz (250 digits each) and heldout/part-00.npz (297).
The same bytes come out each time, and a file that is right already is left alone, time stamp and
all: a second fetch finds nothing new.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TRAIN_ROWS = 1500  # of 1797, which leaves 297 that the model never sees
ROWS_PER_FILE = 250
SHUFFLE_SEED = 7  # the set is ordered by writer; mixed once, for good


def main() -> int:
    """Export into the folder named on the command line."""
    if len(sys.argv) != 2:  # noqa: PLR2004 - program and folder
        print("usage: python export_data.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    written = export(folder)
    print(f"{folder}: {written} files written, the others were right already")
    return 0


def export(folder: Path) -> int:
    """Write the data set and return how many files had to be written."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(labels))
    images, labels = images[order].astype(np.uint8), labels[order].astype(np.uint8)
    starts = range(0, TRAIN_ROWS, ROWS_PER_FILE)
    parts = {
        f"train/part-{number:02d}.npz": slice(start, start + ROWS_PER_FILE)
        for number, start in enumerate(starts)
    }
    parts["heldout/part-00.npz"] = slice(TRAIN_ROWS, len(labels))
    return sum(
        write_once(folder / name, images=images[rows], labels=labels[rows])
        for name, rows in parts.items()
    )


def write_once(path: Path, **arrays: np.ndarray) -> bool:
    """Write the arrays to the path, unless it holds just these bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    content = buffer.getvalue()
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".tmp")
    part.write_bytes(content)
    os.replace(part, path)  # noqa: PTH105 - one atomic step, said plainly
    return True


if __name__ == "__main__":
    raise SystemExit(main())

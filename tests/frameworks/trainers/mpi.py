"""Softmax regression on random features of the digits; MPI's allreduce sums the slopes up."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import ffdl

WORLD = MPI.COMM_WORLD
STEPS, EVERY, BATCH, RATE = int(sys.argv[1]), int(sys.argv[2]), 128, 0.2
FEATURES = np.random.default_rng(0).normal(0, 0.5, (64, 256))


def load(part: str) -> tuple[np.ndarray, np.ndarray]:
    files = [np.load(path) for path in sorted((ffdl.data("digits") / part).glob("*.npz"))]
    images = np.concatenate([file["images"] for file in files]) / 16.0 - 0.3
    images = np.c_[np.maximum(images @ FEATURES, 0), np.ones(len(images))]
    labels = np.concatenate([file["labels"] for file in files])
    return images, labels


def main() -> None:
    images, labels = load("train")
    targets = np.eye(10)[labels]
    resume = ffdl.resume()
    weights = np.load(resume.path / "weights.npy") if resume else np.zeros((257, 10))
    for step in range(resume.step + 1 if resume else 1, STEPS + 1):
        rows = np.random.default_rng(step).permutation(len(labels))[:BATCH]
        mine = rows[WORLD.rank :: WORLD.size]
        scores = np.exp(images[mine] @ weights)
        slope = images[mine].T @ (scores / scores.sum(axis=1, keepdims=True) - targets[mine])
        weights -= RATE / BATCH * WORLD.allreduce(slope)
        if WORLD.rank == 0:
            print(f"step={step} ranks={WORLD.size}", flush=True)
            ffdl.progress(step)
            if step % EVERY == 0 or step == STEPS or ffdl.should_save():
                with ffdl.checkpoint(step) as folder:
                    np.save(folder / "weights.npy", weights)
        time.sleep(float(sys.argv[3]))
    if WORLD.rank == 0:
        images, labels = load("heldout")
        accuracy = float(((images @ weights).argmax(axis=1) == labels).mean())
        metrics = json.dumps({"accuracy": accuracy, "ranks": WORLD.size})
        Path(ffdl.output_dir(), "metrics.json").write_text(metrics)


main()

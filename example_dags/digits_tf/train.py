"""Train a small network on handwritten digits with TensorFlow's MultiWorkerMirroredStrategy.

Runs as a job's entry point, where ``TF_CONFIG`` says who takes part, and by hand as one process:
``python train.py --data FOLDER`` (../digits/export_data.py makes one).

Which rows a step sees depends on seed and step alone, and a checkpoint holds the optimiser's state
too, so a resumed job goes on as if it had never stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # warnings and errors only

import numpy as np
import tensorflow as tf

import ffdl

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
ATTEMPT = os.environ.get("FFDL_ATTEMPT", "0")
HIDDEN = 128
CLASSES = 10
PIXEL_MAX, PIXEL_MEAN = 16.0, 0.3  # scikit-learn's digits have 17 shades
MOMENTUM = 0.9
WEIGHTS_FILE = "weights.npz"

Digits = tuple[np.ndarray, np.ndarray]


def main() -> None:
    """Train, save on the way and at the end, and report how well the model does."""
    options = parse()
    if options.batch % WORLD_SIZE:
        raise SystemExit(f"--batch {options.batch} cannot be shared by {WORLD_SIZE} ranks")
    folder = Path(options.data or ffdl.data("digits"))
    train, heldout = load(folder / "train"), load(folder / "heldout")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        net = Net(options.seed)
    first, update = resume(net), build_update(strategy, net, options.lr)
    loss = float("nan")
    for step in range(first, options.steps + 1):
        rows = rows_of(step, size=len(train[1]), batch=options.batch, seed=options.seed)
        mine = rows[RANK::WORLD_SIZE]
        loss = float(update(tf.constant(train[0][mine]), tf.constant(train[1][mine])))
        print(f"step={step} loss={loss:.4f} attempt={ATTEMPT}", flush=True)
        ffdl.progress(step, loss=loss, samples=options.batch // WORLD_SIZE)
        last = step == options.steps
        if RANK == 0 and (last or step % options.every == 0 or ffdl.should_save()):
            save(step, net)
        time.sleep(options.step_delay)
    if RANK == 0:
        with ffdl.doing("evaluating"):
            report(net, heldout, loss)


class Net(tf.Module):
    """Two layers. Each variable has a velocity beside it; what is assigned is the ranks' mean."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = np.random.default_rng(seed)
        shapes = {"in": (64, HIDDEN), "in_bias": (HIDDEN,), "out": (HIDDEN, CLASSES)}
        shapes["out_bias"] = (CLASSES,)
        start = {
            name: chance.normal(0, 1 / 8, shape) if len(shape) > 1 else np.zeros(shape)
            for name, shape in shapes.items()
        }
        self.weights = {name: variable(value) for name, value in start.items()}
        self.velocity = {name: variable(np.zeros(shape)) for name, shape in shapes.items()}

    def scores(self, images: tf.Tensor) -> tf.Tensor:
        """Return for each image the ten scores before softmax."""
        hidden = tf.nn.relu(images @ self.weights["in"] + self.weights["in_bias"])
        return hidden @ self.weights["out"] + self.weights["out_bias"]

    @property
    def state(self) -> dict[str, tf.Variable]:
        """Everything that the next step needs."""
        weights = {f"w.{name}": found for name, found in self.weights.items()}
        return weights | {f"v.{name}": found for name, found in self.velocity.items()}


def variable(value: np.ndarray) -> tf.Variable:
    """Return a variable that is the same on all ranks."""
    return tf.Variable(value.astype(np.float32), aggregation=tf.VariableAggregation.MEAN)


def build_update(strategy: tf.distribute.Strategy, net: Net, rate: float):  # noqa: ANN201 - closure
    """Return the compiled step of all ranks, which gives their mean loss."""

    def on_one_rank(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        targets = tf.one_hot(labels, CLASSES) * 0.9 + 0.1 / CLASSES
        with tf.GradientTape() as tape:
            losses = tf.nn.softmax_cross_entropy_with_logits(targets, net.scores(images))
            loss = tf.reduce_mean(losses)
        for name, slope in tape.gradient(loss, net.weights).items():
            velocity = net.velocity[name]
            velocity.assign(MOMENTUM * velocity - rate * slope)
            net.weights[name].assign_add(velocity)
        return loss

    @tf.function
    def update(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(on_one_rank, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)

    return update


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with train/ and heldout/; default: the job's")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=128, help="rows of a step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to wait each step")
    return parser.parse_args()


def load(folder: Path) -> Digits:
    """Read all parts of a folder, in the order of their names."""
    parts = [np.load(path) for path in sorted(folder.glob("*.npz"))]
    if not parts:
        raise SystemExit(f"no *.npz file in {folder}")
    images = np.concatenate([part["images"] for part in parts])
    labels = np.concatenate([part["labels"] for part in parts])
    return images.astype(np.float32) / PIXEL_MAX - PIXEL_MEAN, labels.astype(np.int32)


def rows_of(step: int, *, size: int, batch: int, seed: int) -> np.ndarray:
    """Return the rows of a step (from 1): a new shuffle each epoch, known from seed and step."""
    epoch, place = divmod(step - 1, size // batch)
    order = np.random.default_rng([seed, epoch]).permutation(size)
    return order[place * batch : (place + 1) * batch]


def resume(net: Net) -> int:
    """Go on from the job's checkpoint where there is one; return the first step to do."""
    found = ffdl.resume()
    if found is None:
        return 1
    stored = np.load(found.path / WEIGHTS_FILE)
    for name, known in net.state.items():
        known.assign(stored[name])
    return found.step + 1


def save(step: int, net: Net) -> None:
    """Write a checkpoint."""
    with ffdl.checkpoint(step) as folder:
        np.savez(folder / WEIGHTS_FILE, **{name: v.numpy() for name, v in net.state.items()})


def report(net: Net, heldout: Digits, loss: float) -> None:
    """Print how many digits never seen are recognised, and write it for the registry."""
    images, labels = heldout
    guesses = net.scores(tf.constant(images)).numpy().argmax(axis=1)
    accuracy = float((guesses == labels).mean())
    print(f"heldout_accuracy={accuracy:.4f}", flush=True)
    if output := os.environ.get("FFDL_OUTPUT_DIR"):
        metrics = {"accuracy": round(accuracy, 4), "loss": round(loss, 6)}
        (Path(output) / "metrics.json").write_text(json.dumps(metrics) + "\n")


if __name__ == "__main__":
    main()

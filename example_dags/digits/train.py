"""Train a small network on handwritten digits, data-parallel over the ranks of a job.

The demo's user code: what a person brings. It uses JAX and the one-file module ``ffdl``; it runs as
well outside a job, as one process: ``python train.py --data FOLDER`` (export_data.py makes one).

Same seed and data give the same weights, bit for bit, also after a stop and a resume: which rows a
step sees depends on seed and step alone, and a checkpoint holds the optimiser's state too.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

# Before JAX wakes up: one CPU device a process, and sums that do not depend on the cores.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ffdl-digits" / "jax"),
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ffdl

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
ATTEMPT = os.environ.get("FFDL_ATTEMPT", "0")
HIDDEN = 128
CLASSES = 10
PIXEL_MAX, PIXEL_MEAN = 16.0, 0.3  # scikit-learn's digits have 17 shades
SMOOTHING = 0.1  # part of the target spread over all classes: two points more on unseen digits
MOMENTUM = 0.9
WEIGHTS_FILE = "weights.npz"

Weights = dict[str, jax.Array | np.ndarray]


class Digits(NamedTuple):
    """Images as rows of 64 numbers around 0, and the digit that each shows."""

    images: np.ndarray
    labels: np.ndarray


def main() -> None:
    """Train, save on the way and at the end, and report how well the model does."""
    options = parse()
    if options.batch % WORLD_SIZE:
        raise SystemExit(f"--batch {options.batch} cannot be shared by {WORLD_SIZE} ranks")
    folder = Path(options.data or ffdl.data("digits"))
    train, heldout = load(folder / "train"), load(folder / "heldout")
    join_ranks()
    update, share, copy = build_update(options.lr)
    weights, velocity, first = start_or_resume(options.seed)
    weights, velocity = copy(weights), copy(velocity)
    loss = float("nan")
    for step in range(first, options.steps + 1):
        rows = rows_of(step, size=len(train.labels), batch=options.batch, seed=options.seed)
        mine = rows[RANK::WORLD_SIZE]
        batch = share(train.images[mine]), share(train.labels[mine])
        weights, velocity, loss = update(weights, velocity, *batch)
        loss = float(loss)
        print(f"step={step} loss={loss:.4f} attempt={ATTEMPT}", flush=True)
        ffdl.progress(step, loss=loss, samples=options.batch)
        last = step == options.steps
        if RANK == 0 and (last or step % options.every == 0 or ffdl.should_save()):
            save(step, weights, velocity)
        time.sleep(options.step_delay)
    if RANK == 0:
        with ffdl.doing("evaluating"):
            report(weights, heldout, loss)


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
    return Digits(images.astype(np.float32) / PIXEL_MAX - PIXEL_MEAN, labels.astype(np.int32))


def join_ranks() -> None:
    """Meet the other ranks, at the address that the launcher has put into the environment."""
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if WORLD_SIZE == 1:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX would catch SIGTERM and go on, and each stop would have to end in SIGKILL.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        num_processes=WORLD_SIZE,
        process_id=RANK,
    )


def start_or_resume(seed: int) -> tuple[Weights, Weights, int]:
    """Return weights, velocity and the first step to do."""
    found = ffdl.resume()
    if found is not None:
        stored = np.load(Path(found.path) / WEIGHTS_FILE)
        weights = {name[2:]: stored[name] for name in stored.files if name.startswith("w.")}
        velocity = {name[2:]: stored[name] for name in stored.files if name.startswith("v.")}
        return weights, velocity, found.step + 1
    chance = np.random.default_rng(seed)
    weights = {
        "in": chance.normal(0, 1 / 8, (64, HIDDEN)).astype(np.float32),
        "in_bias": np.zeros(HIDDEN, np.float32),
        "out": chance.normal(0, 1 / 8, (HIDDEN, CLASSES)).astype(np.float32),
        "out_bias": np.zeros(CLASSES, np.float32),
    }
    return weights, {name: np.zeros_like(value) for name, value in weights.items()}, 1


def rows_of(step: int, *, size: int, batch: int, seed: int) -> np.ndarray:
    """Return the rows of a step (from 1): a new shuffle each epoch, known from seed and step."""
    epoch, place = divmod(step - 1, size // batch)
    order = np.random.default_rng([seed, epoch]).permutation(size)
    return order[place * batch : (place + 1) * batch]


def scores(weights: Weights, images: jax.Array) -> jax.Array:
    """Return for each image the ten scores before softmax."""
    hidden = jax.nn.relu(images @ weights["in"] + weights["in_bias"])
    return hidden @ weights["out"] + weights["out_bias"]


def loss_of(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy with smoothed targets."""
    targets = jax.nn.one_hot(labels, CLASSES) * (1 - SMOOTHING) + SMOOTHING / CLASSES
    return -(jax.nn.log_softmax(scores(weights, images)) * targets).sum(axis=1).mean()


def build_update(rate: float):  # noqa: ANN201 - closures
    """Return the compiled step, and what puts rows and weights where it wants them.

    Every rank has all weights and its own rows. The slopes travel as one vector, since a sum over
    the ranks costs a millisecond or two, however short it is.
    """
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    everywhere, spread = PartitionSpec(), PartitionSpec("ranks")

    def update(weights, velocity, images, labels):  # noqa: ANN001, ANN202 - traced by JAX
        flat, unflatten = ravel_pytree(jax.value_and_grad(loss_of)(weights, images, labels))
        loss, slope = unflatten(jax.lax.pmean(flat, "ranks"))
        velocity = jax.tree.map(lambda v, s: MOMENTUM * v - rate * s, velocity, slope)
        return jax.tree.map(jnp.add, weights, velocity), velocity, loss

    spread_update = jax.shard_map(
        update,
        mesh=mesh,
        in_specs=(everywhere, everywhere, spread, spread),
        out_specs=everywhere,
        check_vma=False,  # else JAX sums the slopes itself, one vector for each array
    )

    def place(how: PartitionSpec, array: np.ndarray) -> jax.Array:
        return jax.make_array_from_process_local_data(NamedSharding(mesh, how), array)

    return (
        jax.jit(spread_update),
        lambda rows: place(spread, rows),
        lambda tree: jax.tree.map(lambda leaf: place(everywhere, leaf), tree),
    )


def save(step: int, weights: Weights, velocity: Weights) -> None:
    """Write a checkpoint: everything that the next step needs."""
    arrays = {f"w.{name}": np.asarray(value) for name, value in weights.items()}
    arrays |= {f"v.{name}": np.asarray(value) for name, value in velocity.items()}
    with ffdl.checkpoint(step) as folder:
        np.savez(Path(folder) / WEIGHTS_FILE, **arrays)


def report(weights: Weights, heldout: Digits, loss: float) -> None:
    """Print how many digits never seen are recognised, and write it for the registry."""
    plain = {name: np.asarray(value) for name, value in weights.items()}
    hidden = np.maximum(heldout.images @ plain["in"] + plain["in_bias"], 0)
    guesses = (hidden @ plain["out"] + plain["out_bias"]).argmax(axis=1)
    accuracy = float((guesses == heldout.labels).mean())
    print(f"heldout_accuracy={accuracy:.4f}", flush=True)
    if output := os.environ.get("FFDL_OUTPUT_DIR"):
        metrics = {"accuracy": round(accuracy, 4), "loss": round(loss, 6)}
        (Path(output) / "metrics.json").write_text(json.dumps(metrics) + "\n")


if __name__ == "__main__":
    main()

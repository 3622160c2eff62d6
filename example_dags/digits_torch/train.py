"""Train a small network on handwritten digits with PyTorch's DistributedDataParallel.

Runs as a job's entry point, under torchrun, and by hand as one process: ``python train.py --data
FOLDER`` (../digits/export_data.py makes one).

Same seed and data give the same weights, bit for bit, also after a stop and a resume: which rows a
step sees depends on seed and step alone, and a checkpoint holds the optimiser's state too.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ffdl

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
ATTEMPT = os.environ.get("FFDL_ATTEMPT", "0")
HIDDEN = 128
CLASSES = 10
PIXEL_MAX, PIXEL_MEAN = 16.0, 0.3  # scikit-learn's digits have 17 shades
WEIGHTS_FILE = "weights.pt"

Digits = tuple[torch.Tensor, torch.Tensor]


def main() -> None:
    """Train, save on the way and at the end, and report how well the model does."""
    options = parse()
    if options.batch % WORLD_SIZE:
        raise SystemExit(f"--batch {options.batch} cannot be shared by {WORLD_SIZE} ranks")
    folder = Path(options.data or ffdl.data("digits"))
    train, heldout = load(folder / "train"), load(folder / "heldout")
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(mode=True)
    net = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
    first = resume(net, optimizer)
    if WORLD_SIZE > 1:
        dist.init_process_group("gloo")  # reads MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE
    model = DistributedDataParallel(net) if WORLD_SIZE > 1 else net
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    loss = float("nan")
    for step in range(first, options.steps + 1):
        rows = rows_of(step, size=len(train[1]), batch=options.batch, seed=options.seed)
        images, labels = (part[rows[RANK::WORLD_SIZE]] for part in train)
        optimizer.zero_grad()
        found = loss_of(model(images), labels)
        found.backward()
        optimizer.step()
        loss = found.item()
        print(f"step={step} loss={loss:.4f} attempt={ATTEMPT}", flush=True)
        ffdl.progress(step, loss=loss, samples=options.batch // WORLD_SIZE)
        last = step == options.steps
        if RANK == 0 and (last or step % options.every == 0 or ffdl.should_save()):
            save(step, net, optimizer)
        time.sleep(options.step_delay)
    if RANK == 0:
        with ffdl.doing("evaluating"):
            report(net, heldout, loss)
    if WORLD_SIZE > 1:
        dist.destroy_process_group()


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
    images = np.concatenate([part["images"] for part in parts]).astype(np.float32)
    labels = np.concatenate([part["labels"] for part in parts]).astype(np.int64)
    return torch.from_numpy(images / PIXEL_MAX - PIXEL_MEAN), torch.from_numpy(labels)


def rows_of(step: int, *, size: int, batch: int, seed: int) -> np.ndarray:
    """Return the rows of a step (from 1): a new shuffle each epoch, known from seed and step."""
    epoch, place = divmod(step - 1, size // batch)
    order = np.random.default_rng([seed, epoch]).permutation(size)
    return order[place * batch : (place + 1) * batch]


def resume(net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Go on from the job's checkpoint where there is one; return the first step to do."""
    found = ffdl.resume()
    if found is None:
        return 1
    stored = torch.load(found.path / WEIGHTS_FILE, weights_only=True)
    net.load_state_dict(stored["net"])
    optimizer.load_state_dict(stored["optimizer"])
    return found.step + 1


def save(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint: everything that the next step needs."""
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
    with ffdl.checkpoint(step) as folder:
        torch.save(state, folder / WEIGHTS_FILE)


def report(net: nn.Module, heldout: Digits, loss: float) -> None:
    """Print how many digits never seen are recognised, and write it for the registry."""
    images, labels = heldout
    with torch.no_grad():
        accuracy = float((net(images).argmax(dim=1) == labels).float().mean())
    print(f"heldout_accuracy={accuracy:.4f}", flush=True)
    if output := os.environ.get("FFDL_OUTPUT_DIR"):
        metrics = {"accuracy": round(accuracy, 4), "loss": round(loss, 6)}
        (Path(output) / "metrics.json").write_text(json.dumps(metrics) + "\n")


if __name__ == "__main__":
    main()

"""Softmax regression on random features of the digits with TensorFlow's parameter servers.

Chief: owns the loop. Workers: work on what it schedules. Servers: hold the weights. Only the chief
ever ends by itself.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import ffdl

STEPS, EVERY, BATCH, RATE = int(sys.argv[1]), int(sys.argv[2]), 128, 0.2
FEATURES = np.random.default_rng(0).normal(0, 0.5, (64, 256))


def load(part: str) -> tuple[np.ndarray, np.ndarray]:
    files = [np.load(path) for path in sorted((ffdl.data("digits") / part).glob("*.npz"))]
    images = np.concatenate([file["images"] for file in files]) / 16.0 - 0.3
    images = np.c_[np.maximum(images @ FEATURES, 0), np.ones(len(images))]
    labels = np.concatenate([file["labels"] for file in files])
    return images.astype(np.float32), labels.astype(np.int32)


def lead(cluster: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    resume = ffdl.resume()
    start = np.load(resume.path / "weights.npy") if resume else np.zeros((257, 10), np.float32)
    with strategy.scope():
        weights = tf.Variable(start)

    @tf.function
    def update(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ weights)
            loss = tf.reduce_mean(losses)
        weights.assign_sub(RATE * tape.gradient(loss, weights))

    images, labels = load("train")
    for step in range(resume.step + 1 if resume else 1, STEPS + 1):
        rows = np.random.default_rng(step).permutation(len(labels))[:BATCH]
        coordinator.schedule(update, args=(tf.constant(images[rows]), tf.constant(labels[rows])))
        coordinator.join()
        print(f"step={step} servers={len(cluster.cluster_spec().as_dict()['ps'])}", flush=True)
        ffdl.progress(step)
        if step % EVERY == 0 or step == STEPS:
            with ffdl.checkpoint(step) as folder:
                np.save(folder / "weights.npy", weights.numpy())
        time.sleep(float(sys.argv[3]))
    images, labels = load("heldout")
    accuracy = float(((images @ weights.numpy()).argmax(axis=1) == labels).mean())
    Path(ffdl.output_dir(), "metrics.json").write_text(json.dumps({"accuracy": accuracy}))


def main() -> None:
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type == "chief":
        lead(cluster)
    else:
        server = tf.distribute.Server(
            cluster.cluster_spec(), job_name=cluster.task_type, task_index=cluster.task_id
        )
        server.join()


main()

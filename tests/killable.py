"""Trains a small run to its end, or until it is killed: python killable.py FOLDER WORKERS."""

import sys

import torch

from fedatlas import train
from fedatlas.algorithms import fedprox
from fedatlas.parts import SGD
from fedatlas.training import Settings, saving
from tiny import Norms, blob_federation


def main(folder: str, workers: int) -> None:
    torch.set_num_threads(1)
    train(
        blob_federation(num_clients=12, held_out=2),
        fedprox(mu=0.1).with_buffers("keep"),
        Settings(evaluate_every=2),
        model=Norms,
        optimizer=SGD(lr=0.05, momentum=0.9, keep_state=True),
        rounds=60,
        cohort=4,
        batch_size=8,
        workers=workers,
        folder=folder,
        resume=True,
        progress=False,
    )


if __name__ == "__main__":
    saving.LEAST_SECONDS, saving.SHARE = 0.01, 0.5  # many saves beside the training in a run of a second
    main(sys.argv[1], int(sys.argv[2]))

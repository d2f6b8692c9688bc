"""One training step of an MLP on random rows with PyTorch: alone, or by
DistributedDataParallel on gloo where torchrun starts several processes.

The same work as bench/mlp_step.cpp. Prints the median and the least time of a step of rank 0; the
first tenth is not counted.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

INPUTS = 784
CLASSES = 10
BATCHES = 64  # of random rows, in turn: as bench/mlp_step.cpp


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64, help="rows of one step, over all ranks")
    parser.add_argument("--layers", type=int, default=2, help="linear layers")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=400)
    return parser.parse_args()


def make_model(layers, width):
    parts, inputs = [], INPUTS
    for _ in range(layers - 1):
        parts += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*parts, nn.Linear(inputs, CLASSES))


def leave():
    """gloo's threads now and then end a process that is done ("terminate called without an active
    exception"), which is no matter of the step's time: wait for the others, then end without them."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def main():
    options = parse()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    model = make_model(options.layers, options.width)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True) if ranks > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rows = options.batch // ranks
    inputs = torch.randn(BATCHES, rows, INPUTS)
    targets = torch.randint(0, CLASSES, (BATCHES, rows))
    times = []
    for step in range(options.steps):
        start = time.perf_counter()
        batch = step % BATCHES
        functional.cross_entropy(wrapped(inputs[batch]), targets[batch]).backward()
        optimizer.step()
        # Under DDP gradients are views of the buckets, which must stay.
        optimizer.zero_grad(set_to_none=ranks == 1)
        times.append(time.perf_counter() - start)
    times = sorted(times[options.steps // 10:])
    if ranks == 1 or dist.get_rank() == 0:
        print(f"step median {times[len(times) // 2] * 1e3:.3f} ms min {times[0] * 1e3:.3f} ms")
    if ranks > 1:
        leave()


if __name__ == "__main__":
    main()

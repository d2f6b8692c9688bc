"""The sum of one float tensor over all ranks by gloo, as PyTorch has it.

  python -m torch.distributed.run --standalone --nproc-per-node 2 all_reduce_gloo.py BYTES ...
Rank 0 prints the median and the least time for each size; a barrier precedes each sum.
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist


BLOCK_SUMS = 20
MOST_SUMS = 20000
SECONDS_A_SIZE = 1.0


def sum_once(values):
    """The time of one sum in microseconds."""
    values.fill_(dist.get_rank() + 1)
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(values)
    return (time.perf_counter() - start) * 1e6


def rank_0_says(answer):
    """The same on all ranks, whatever their own clocks say."""
    agreed = torch.tensor(int(answer))
    dist.broadcast(agreed, 0)
    return bool(agreed.item())


def time_size(size_bytes):
    values = torch.ones(max(1, size_bytes // 4))
    for _ in range(2):
        sum_once(values)
    end = time.perf_counter() + SECONDS_A_SIZE
    microseconds = []
    while rank_0_says(time.perf_counter() < end and len(microseconds) < MOST_SUMS):
        microseconds += [sum_once(values) for _ in range(BLOCK_SUMS)]
    ranks = dist.get_world_size()
    if values[-1].item() != ranks * (ranks + 1) / 2:
        raise SystemExit("all_reduce_gloo: wrong sum")
    if dist.get_rank() == 0:
        print(f"{size_bytes} bytes median {statistics.median(microseconds):.2f} us "
              f"min {min(microseconds):.2f} us")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for word in sys.argv[1:]:
        time_size(int(word))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""One training step of a GPT under PyTorch's DistributedDataParallel with gloo.

The model is that of src/train/gpt.cpp, the work that of gpt_step.cpp. Start it with
  python -m torch.distributed.run --standalone --nproc-per-node 2 ddp_gpt.py --batch 2
Rank 0 prints the median and the least time of a step; the first two are not counted.
"""

import argparse
import contextlib
import math
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

UNCOUNTED_STEPS = 2


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):  # (batch, length, width) -> the same
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.attention_norm(x)).split(width, -1)
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.contract(F.gelu(self.expand(self.feed_forward_norm(x))))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, context, vocabulary):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if "norm" not in name:
                adds = "projection" in name or "contract" in name
                nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * layers) if adds else 0.02)

    def forward(self, tokens, targets):  # (batch, length) each -> the mean loss
        positions = torch.arange(tokens.shape[1])
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for layer in self.layers:
            hidden = layer(hidden)
        logits = self.head(self.norm(hidden))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=2, help="sequences of one step, all ranks")
    parser.add_argument("--microbatch", type=int, default=1, help="sequences of one pass")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--context", type=int, default=256)
    return parser.parse_args()


def train_step(ddp, optimizer, tokens, microbatch):
    """tokens: (this rank's sequences, context + 1)"""
    passes = tokens.split(microbatch)
    for index, part in enumerate(passes):
        is_last = index == len(passes) - 1
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            (ddp(part[:, :-1], part[:, 1:]) / len(passes)).backward()
    optimizer.step()
    # Zeros in the buckets, which the next backward pass adds to: with None, DDP would copy every
    # gradient into its bucket.
    optimizer.zero_grad(set_to_none=False)


def main():
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = options.batch // ranks
    if own * ranks != options.batch or own % options.microbatch:
        raise SystemExit("--batch must be a multiple of ranks times --microbatch")
    vocabulary = 256
    torch.manual_seed(1)
    model = Gpt(options.layers, options.heads, options.width, options.context, vocabulary)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01, fused=True)
    torch.manual_seed(5)
    tokens = torch.randint(0, vocabulary, (options.steps, options.batch, options.context + 1))

    milliseconds = []
    for step in range(options.steps):
        start = time.perf_counter()
        train_step(ddp, optimizer, tokens[step, rank * own:(rank + 1) * own], options.microbatch)
        milliseconds.append((time.perf_counter() - start) * 1e3)
    counted = milliseconds[UNCOUNTED_STEPS:]
    if rank == 0:
        print(f"step median {statistics.median(counted):.3f} ms min {min(counted):.3f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

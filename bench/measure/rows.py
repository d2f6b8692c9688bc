"""The rows of the table: what is measured, against what, and what must be reached."""

import dataclasses
import statistics
import sys

from measure.programs import MlpWork, NotMeasured

KIB = 1024
GRADIENT_BYTES = 44_000_000  # the gradient of the GPT of 10.9M parameters, in round figures


@dataclasses.dataclass(frozen=True)
class Row:
    key: str
    work: str
    ours: tuple                # (name, function that measures once and returns Figures)
    peers: tuple               # of the same; the fastest counts
    limit: float | None        # None: only for comparison
    limit_words: str
    is_ratio: bool = True      # limit of ours / (peer x ideal factor); else of ours, in ms


def all_rows(programs):
    gpt = "GPT of 10.9M parameters, microbatch 1"
    ddp = "PyTorch DDP, gloo"

    def reduce_peers(ranks, size_bytes, cores=None):
        arguments = (ranks, size_bytes, cores)
        return (("Open MPI", lambda: programs.mpi_all_reduce("openmpi", *arguments)),
                ("MPICH", lambda: programs.mpi_all_reduce("mpich", *arguments)),
                ("gloo", lambda: programs.gloo_all_reduce(*arguments)))

    def mlp_rows(name, words, work, ddp_limit, alone_limit, plain_limit, microbatch="32"):
        """Against DDP, PyTorch in one process, and one replica against the plain loop."""
        options = ("--microbatch", microbatch)
        ours = ("lockstep", lambda: programs.mlp_step(2, work, *options))
        rows = [
            Row(f"{name}-ddp", f"{words}, 2 replicas", ours,
                ((ddp, lambda: programs.torch_mlp(2, work)),), ddp_limit,
                f"ratio at most {ddp_limit}"),
            Row(f"{name}-alone", f"{words}, 2 replicas; PyTorch in one process", ours,
                (("PyTorch", lambda: programs.torch_mlp(1, work)),), alone_limit,
                f"ratio at most {alone_limit}" if alone_limit else "for comparison"),
            Row(f"{name}-plain", f"{words}, one replica",
                ("lockstep", lambda: programs.mlp_step(1, work, *options)),
                (("plain LibTorch loop", lambda: programs.plain_mlp_step(work, *options)),),
                plain_limit, f"ratio at most {plain_limit}")]
        return rows

    return [
        *mlp_rows("mlp-small", "MLP 784-128-10, batch 64", MlpWork(2, 128, 64, 1000),
                  0.20, 0.65, 1.05),
        *mlp_rows("mlp-10m", "MLP 784-2048x3-10 (10M), batch 64", MlpWork(4, 2048, 64, 80),
                  0.70, 1.0, 1.05),
        *mlp_rows("mlp-54m-64", "MLP 784-4096x4-10 (53.6M), batch 64", MlpWork(5, 4096, 64, 30),
                  0.72, 1.0, 1.10),
        *mlp_rows("mlp-54m-16", "MLP 784-4096x4-10 (53.6M), batch 16, microbatch 8",
                  MlpWork(5, 4096, 16, 40), 0.72, None, 1.10, microbatch="8"),
        Row("mlp-oversubscribed", "MLP 784-2048x3-10, batch 128, 4 replicas on 2 cores",
            ("4 replicas", lambda: programs.mlp_step(4, MlpWork(4, 2048, 128, 40), cores=2)),
            (("2 replicas", lambda: programs.mlp_step(2, MlpWork(4, 2048, 128, 40), cores=2)),),
            1.3, "ratio at most 1.3"),
        Row("gpt-oversubscribed", f"{gpt}, batch 16, 4 replicas on 2 cores",
            ("4 replicas", lambda: programs.gpt_step(4, 16, 8, cores=2)),
            (("2 replicas", lambda: programs.gpt_step(2, 16, 8, cores=2)),), 1.3, "ratio at most 1.3"),
        Row("gpt-batch-2", f"{gpt}, batch 2, 2 replicas",
            ("lockstep", lambda: programs.gpt_step(2, 2, 40)),
            ((ddp, lambda: programs.ddp_gpt(2, 1, 40)),), 0.88, "ratio at most 0.88"),
        Row("gpt-batch-16", f"{gpt}, batch 16, 2 replicas",
            ("lockstep", lambda: programs.gpt_step(2, 16, 10)),
            ((ddp, lambda: programs.ddp_gpt(16, 1, 10)),), 1.0, "ratio at most 1.0"),
        Row("gpt-batch-16-one-pass", f"{gpt}, batch 16, 2 replicas; DDP in one pass of 8 a rank",
            ("lockstep", lambda: programs.gpt_step(2, 16, 10)),
            ((ddp, lambda: programs.ddp_gpt(16, 8, 10)),), None, "for comparison"),
        Row("gpt-one-replica", f"{gpt}, batch 2, one replica",
            ("lockstep", lambda: programs.gpt_step(1, 2, 30)),
            (("plain LibTorch loop", lambda: programs.plain_gpt_step(2, 30)),),
            1.03, "ratio at most 1.03"),
        Row("gpt-bf16", f"{gpt}, batch 4, 2 replicas, bf16",
            ("lockstep, bf16", lambda: programs.gpt_step(2, 4, 25, "--bf16")),
            (("lockstep, fp32", lambda: programs.gpt_step(2, 4, 25)),), 0.7, "ratio at most 0.7"),
        Row("all-reduce-44mb", "all-reduce of 44 MB, 2 replicas",
            ("lockstep", lambda: programs.all_reduce(2, GRADIENT_BYTES)),
            reduce_peers(2, GRADIENT_BYTES), 0.25, "ratio at most 0.25"),
        Row("all-reduce-1kib-2", "all-reduce of 1 KiB, 2 replicas",
            ("lockstep", lambda: programs.all_reduce(2, KIB)),
            reduce_peers(2, KIB), 1.5e-3, "at most 1.5 us", is_ratio=False),
        Row("all-reduce-1kib-4", "all-reduce of 1 KiB, 4 replicas on 2 cores",
            ("lockstep", lambda: programs.all_reduce(4, KIB, cores=2)),
            reduce_peers(4, KIB, cores=2), 12e-3, "at most 12 us", is_ratio=False),
        Row("stopped-replica", "32 microbatches a replica, one of 2 stopped 15 ms in every 60 ms",
            ("lockstep, one stopped", lambda: programs.stopped_gpt_step(64, 6, 0.060, 0.015)),
            (("none stopped", lambda: programs.gpt_step(2, 64, 6)),),
            1.25, "at most 1.25 of ideal sharing"),
        Row("first-step", "`lockstep train`, small model, from process start to the end of step 1",
            ("lockstep", lambda: programs.first_train_step(starts=5)),
            (), 700.0, "at most 0.7 s", is_ratio=False),
    ]


def measure(row, rounds):
    """Runs ours and the peers in turn, `rounds` times; what came out, ready to be stored."""
    sides = [{"name": name, "runs": [], "not_measured": None} for name, _ in (row.ours, *row.peers)]
    for round_number in range(1, rounds + 1):
        for side, (_, once) in zip(sides, (row.ours, *row.peers)):
            if side["not_measured"]:
                continue
            try:
                side["runs"].append(once()._asdict())
                figures = f"{side['runs'][-1]['median']:.4g} ms"
            except NotMeasured as reason:
                side["not_measured"] = str(reason)
                figures = f"not measured: {reason}"
            print(f"{row.key}, round {round_number} of {rounds}: {side['name']} {figures}",
                  file=sys.stderr, flush=True)
    return {"key": row.key, "work": row.work, "limit": row.limit, "limit_words": row.limit_words,
            "is_ratio": row.is_ratio, "rounds": rounds, "sides": sides, **evaluate(row, sides)}


def evaluate(row, sides):
    """The fastest peer, the ratios round by round, the verdict."""
    ours, *peers = sides
    peers = [peer for peer in peers if is_complete(peer)]
    result = {"best_peer": None, "ratios": [], "ratio_of_least": None, "verdict": "not measured"}
    if not is_complete(ours):
        return result
    if peers:
        best = min(peers, key=typical)
        factor = statistics.median(run["ideal_factor"] for run in ours["runs"])
        result["best_peer"] = best["name"]
        result["ratios"] = [own["median"] / (other["median"] * own["ideal_factor"])
                            for own, other in zip(ours["runs"], best["runs"])]
        result["ratio_of_least"] = least(ours) / (least(best) * factor)
    if row.limit is None:
        result["verdict"] = "no limit"
    elif not row.is_ratio or result["ratios"]:
        found = (result["ratios"] if row.is_ratio else [run["median"] for run in ours["runs"]])
        result["verdict"] = ("missed" if statistics.median(found) > row.limit else
                             "reached" if max(found) <= row.limit else
                             "reached in the median, not in every round")
    return result


def is_complete(side):
    return bool(side["runs"]) and not side["not_measured"]


def typical(side):
    """The median over the rounds of the medians of the runs, in milliseconds."""
    return statistics.median(run["median"] for run in side["runs"])


def least(side):
    return min(run["least"] for run in side["runs"])

"""The measured programs, ours and the peers: how each is started, and what it prints."""

import collections
import functools
import os
import re
import shutil
import statistics
import tempfile

from measure.processes import FirstLine, NotMeasured, Stopper, run

TO_MILLISECONDS = {"us": 1e-3, "ms": 1.0}
VERSION = re.compile(r"\d+\.\d+[\w.+]*")
FIGURES = re.compile(r"median ([\d.]+) (us|ms) min ([\d.]+) (us|ms)")
# Of an MLP on 784 inputs with 10 classes: linear layers, their width, rows of a step, steps.
MlpWork = collections.namedtuple("MlpWork", "layers width batch steps")
# Of one run, in milliseconds. `detail`: whatever else the program printed. `ideal_factor`: how much
# longer than the peer's the time would be if nothing but the described hindrance cost time.
Figures = collections.namedtuple("Figures", "median least detail ideal_factor", defaults=("", 1.0))


class Programs:
    """Runs each program once and gives its figures. `quick`: of a small model."""

    def __init__(self, checkout, build, peer_python, scratch, quick):
        self.peers = os.path.join(checkout, "bench", "peers")
        self.binaries = os.path.join(build, "bin")
        self.peer_python = peer_python
        self.scratch = scratch
        self.quick = quick

    # -- ours --

    def gpt_step(self, replicas, batch, steps, *options, cores=None):
        command = self._replicas(replicas, "gpt_step", *self._work(batch, steps), *options)
        return read_figures(run(command, cores=cores))

    def plain_gpt_step(self, batch, steps):
        return read_figures(run([self._binary("gpt_step"), "--plain", *self._work(batch, steps)]))

    def mlp_step(self, replicas, work, *options, cores=None):
        command = self._replicas(replicas, "mlp_step", *self._mlp_work(work), *options)
        return read_figures(run(command, cores=cores))

    def plain_mlp_step(self, work, *options):
        return read_figures(run([self._binary("mlp_step"), "--plain", *self._mlp_work(work),
                                 *options]))

    def all_reduce(self, replicas, size_bytes, cores=None):
        command = self._replicas(replicas, "all_reduce", str(size_bytes))
        return read_figures(run(command, cores=cores))

    def stopped_gpt_step(self, batch, steps, period_seconds, stopped_seconds):
        """Two replicas, of which the second is stopped for a part of every period."""
        stopper = Stopper(rank=1, period=period_seconds, stopped=stopped_seconds)
        output = run(self._replicas(2, "gpt_step", *self._work(batch, steps)), beside=stopper)
        share = stopper.share()
        return read_figures(output)._replace(
            detail=f"stopped {share:.1%} of the time", ideal_factor=2 / (2 - share))

    def first_train_step(self, starts):
        """`lockstep train` from process start to the line of step 1 in metrics.jsonl."""
        data = os.path.join(self.scratch, "text.txt")
        if not os.path.exists(data):
            with open(data, "w", encoding="utf-8") as file:
                file.write("The quick brown fox jumps over the lazy dog.\n" * 20000)
        times = []
        for _ in range(2 if self.quick else starts):
            out = tempfile.mkdtemp(dir=self.scratch)
            watch = FirstLine(os.path.join(out, "run", "metrics.jsonl"))
            run([self._binary("lockstep"), "train", "--data", data, "--layers", "2",
                 "--heads", "2", "--width", "32", "--context", "32", "--replicas", "2",
                 "--steps", "2", "--seed", "1", "--out", os.path.join(out, "run")], beside=watch)
            times.append(watch.seconds * 1e3)
        return Figures(statistics.median(times), min(times))

    # -- peers --

    def ddp_gpt(self, batch, microbatch, steps):
        return read_figures(run([*self._torchrun(2), os.path.join(self.peers, "ddp_gpt.py"),
                                 *self._work(batch, steps), "--microbatch", str(microbatch)]))

    def torch_mlp(self, ranks, work):
        start = self._torchrun(ranks) if ranks > 1 else [self._python_with_torch()]
        return read_figures(run([*start, os.path.join(self.peers, "ddp_mlp.py"),
                                 *self._mlp_work(work)]))

    def gloo_all_reduce(self, ranks, size_bytes, cores=None):
        program = os.path.join(self.peers, "all_reduce_gloo.py")
        return read_figures(run([*self._torchrun(ranks), program, str(size_bytes)], cores=cores))

    def mpi_all_reduce(self, flavour, ranks, size_bytes, cores=None):
        command = [self._tool(f"mpirun.{flavour}", flavour), "-n", str(ranks)]
        if flavour == "openmpi":
            command += ["--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
        command += [self._mpi_program(flavour), str(size_bytes)]
        return read_figures(run(command, cores=cores))

    @functools.lru_cache(maxsize=None)
    def versions(self):
        """{name: version, or None where it is not there}."""
        commands = {"lockstep": [os.path.join(self.binaries, "lockstep"), "version"],
                    "Open MPI": ["mpirun.openmpi", "--version"],
                    "MPICH": ["mpirun.mpich", "--version"],
                    "PyTorch": [self.peer_python, "-c", "import torch; print(torch.__version__)"]}
        found = {}
        for name, command in commands.items():
            try:
                version = VERSION.search(run(command, is_quiet=True))
            except NotMeasured:
                version = None
            found[name] = version.group() if version else None
        return found

    def _work(self, batch, steps):
        if self.quick:
            return ["--batch", str(batch), "--steps", "8", "--layers", "2", "--width", "96"]
        return ["--batch", str(batch), "--steps", str(steps)]

    def _mlp_work(self, work):
        steps = 20 if self.quick else work.steps
        return ["--layers", str(work.layers), "--width", str(work.width), "--batch",
                str(work.batch), "--steps", str(steps)]

    def _binary(self, name):
        path = os.path.join(self.binaries, name)
        if not os.path.exists(path):
            raise NotMeasured(f"{name} is not built: ./dev build")
        return path

    def _replicas(self, count, program, *arguments):
        return [self._binary("lockstep"), "run", "-n", str(count), "--no-prefix", "--",
                self._binary(program), *arguments]

    def _python_with_torch(self):
        if not self.versions()["PyTorch"]:
            name = os.path.basename(self.peer_python)
            raise NotMeasured(f"{name} has no PyTorch; --peer-python names one that has")
        return self.peer_python

    def _torchrun(self, ranks):
        return [self._python_with_torch(), "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node", str(ranks)]

    def _tool(self, name, flavour):
        package = {"openmpi": "libopenmpi-dev openmpi-bin", "mpich": "libmpich-dev mpich"}[flavour]
        path = shutil.which(name)
        if not path:
            raise NotMeasured(f"no {name} (Debian: {package})")
        return path

    @functools.lru_cache(maxsize=None)
    def _mpi_program(self, flavour):
        program = os.path.join(self.scratch, f"all_reduce_{flavour}")
        source = os.path.join(self.peers, "all_reduce_mpi.c")
        run([self._tool(f"mpicc.{flavour}", flavour), "-O2", "-std=c11", "-o", program, source])
        return program


def read_figures(text):
    found = FIGURES.search(text)
    if not found:
        raise NotMeasured(f"no figures in: {text.strip()[-200:]}")
    median, unit, least, least_unit = found.groups()
    detail = "\n".join(line for line in text.splitlines() if line.startswith("rank 0, "))
    return Figures(float(median) * TO_MILLISECONDS[unit],
                   float(least) * TO_MILLISECONDS[least_unit], detail)

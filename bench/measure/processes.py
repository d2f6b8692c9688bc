"""Starting processes, waiting for them, and hindering them."""

import os
import signal
import subprocess
import sys
import tempfile
import time

TIMEOUT_SECONDS = 900
# What would make a program run otherwise than described here.
STEERING = ("OMP_", "MKL_", "ONEDNN_", "ATEN_", "TORCH_", "LOCKSTEP_", "OMPI_", "MPICH_")


class NotMeasured(Exception):
    """Why a figure could not be had, in words for the table."""


class FirstLine:
    """Waits for the first whole line of a file that a started process writes."""

    def __init__(self, path):
        self.path = path
        self.seconds = None

    def __call__(self, process, start):
        while self.seconds is None and process.poll() is None:
            try:
                with open(self.path, encoding="utf-8") as file:
                    if file.readline().endswith("\n"):
                        self.seconds = time.perf_counter() - start
                        return
            except FileNotFoundError:
                pass
            time.sleep(0.0005)
        if process.returncode == 0:
            raise NotMeasured(f"no line in {os.path.basename(self.path)} before the end")


class Stopper:
    """Stops one replica of a started launcher again and again until the launcher ends."""

    def __init__(self, rank, period, stopped):
        self.rank = rank
        self.period = period
        self.stopped = stopped
        self.seconds_stopped = 0.0
        self.seconds = 0.0

    def share(self):
        """Of the time in which the replica was being hindered; it is measured, not assumed."""
        if self.seconds < 10 * self.period:
            raise NotMeasured("the replica that was to be stopped was not found, or ended at once")
        return self.seconds_stopped / self.seconds

    def __call__(self, process, _):
        replica = self._find_replica(process)
        begin = due = time.perf_counter()
        while replica and process.poll() is None:
            self._stop_once(replica)
            due = max(due + self.period, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
            self.seconds = time.perf_counter() - begin
            if not is_running(replica):
                break

    def _stop_once(self, replica):
        try:
            os.kill(replica, signal.SIGSTOP)
            start = time.perf_counter()
            try:
                time.sleep(self.stopped)
            finally:
                os.kill(replica, signal.SIGCONT)
            self.seconds_stopped += time.perf_counter() - start
        except ProcessLookupError:
            pass

    def _find_replica(self, process):
        mark = f"LOCKSTEP_RANK={self.rank}".encode()
        while process.poll() is None:
            for pid in children_of(process.pid):
                try:
                    with open(f"/proc/{pid}/environ", "rb") as file:
                        if mark in file.read().split(b"\0"):
                            return pid
                except OSError:
                    pass  # it has ended
            time.sleep(0.01)
        return None


def stat_fields(pid):
    """State, parent, ... of a process; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def is_running(pid):
    fields = stat_fields(pid)
    return bool(fields) and fields[0] != "Z"


def children_of(parent):
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if stat_fields(pid)[1:2] == [str(parent)]]


def environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(STEERING)}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def run(command, *, cores=None, beside=None, is_quiet=False):
    """What the command printed. Raises NotMeasured if it fails. `cores`: it may use only so many.
    `beside(process, start)` is called while it runs."""
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        start = time.perf_counter()
        try:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=environment(), start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, allowed))
        except OSError as error:
            raise NotMeasured(f"{os.path.basename(command[0])}: {error.strerror}") from error
        try:
            if beside:
                beside(process, start)
            process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise NotMeasured(f"not done after {TIMEOUT_SECONDS} s") from error
        finally:
            if process.poll() is None:
                end_group(process)
        output.seek(0)
        text = output.read()
    if process.returncode != 0:
        if not is_quiet:
            print(text, file=sys.stderr)
        last = (text.strip().splitlines() or ["printed nothing"])[-1]
        raise NotMeasured(f"{os.path.basename(command[0])} ended with {process.returncode}: {last}")
    return text


def end_group(process):
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

"""What the machine is, in words for the table."""

import os
import platform
import subprocess

# What decides how fast bf16 can be.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def describe(checkout, versions):
    cpu = fields("/proc/cpuinfo", ":")
    flags = cpu.get("flags", "").split()
    memory_kib = fields("/proc/meminfo", ":").get("MemTotal", "0 kB").split()[0]
    return {
        "cpu": cpu.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_quota": cpu_quota(),
        "instructions": [name for name in INSTRUCTIONS if name in flags],
        "is_virtual": "hypervisor" in flags,
        "memory_gib": round(int(memory_kib) / 2**20, 1),
        "system": fields("/etc/os-release", "=").get("PRETTY_NAME", "").strip('"'),
        "kernel": platform.release().split("-")[0],
        "commit": commit(checkout),
        "versions": versions,
    }


def fields(path, separator):
    """{name: value} of the lines of a file; the first of equal names."""
    found = {}
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(separator)
                found.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    return found


def cpu_quota():
    """In cores, where a control group limits it; else None."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="utf-8") as file:
            quota, period = file.read().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def commit(checkout):
    def git(*arguments):
        return subprocess.run(["git", "-C", checkout, *arguments], check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"

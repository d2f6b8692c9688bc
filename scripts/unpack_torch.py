#!/usr/bin/env python3
"""Unpacks what C++ needs of a torch wheel: unpack_torch.py VERSION WHEEL FOLDER.

FOLDER appears at the end, by one rename: it is whole or it is not there. Exit status: 0 done, 2 the
file is no whole wheel (fetch it again), 3 the wheel is not a CPU build of this version for this machine.
"""

import os
import platform
import re
import shutil
import sys
import zipfile
import zlib

WANTED_FOLDERS = ("torch/lib/", "torch/include/", "torch/share/")
# Python's binding and PyTorch's own test libraries: 33 MB that no C++ program loads.
UNWANTED_LIBRARIES = re.compile(
    r"torch/lib/(libtorch_python|libaoti_custom_ops|libbackend_with_compiler|libjitbackend_test"
    r"|libtorchbind_test)\.so|torch/lib/libshm")

WAY_OUT = """What to do: get that build and run the same command with
  LOCKSTEP_TORCH_WHEEL=/path/to/the.whl
PyTorch's page "Get started" names the place to fetch it from: choose Stable, Linux, Pip, Python, CPU.
An installed LibTorch is used instead when CMAKE_PREFIX_PATH names its folder."""


class WrongBuild(Exception):
    """The wheel is whole, but not the one to use; the text says what it is."""


def check_build(wheel, wanted_version):
    """The wheel's version. Refuses accelerator builds: GBs of libraries that lockstep does not use."""
    names = wheel.namelist()
    if "torch/version.py" not in names:
        raise WrongBuild("no torch wheel: it holds no torch/version.py")
    text = wheel.read("torch/version.py").decode()
    values = dict(re.findall(r"^(\w+)(?::[^=\n]*)?\s*=\s*(?:'([^'\n]*)'|None)", text, re.MULTILINE))
    version = values.get("__version__", "unknown")
    release, _, tag = version.partition("+")
    for field in ("cuda", "hip", "rocm", "xpu"):
        if values.get(field):
            raise WrongBuild(f"torch {version} built for {field} {values[field]}")
    if tag.startswith(("cu", "rocm", "xpu")):
        raise WrongBuild(f"torch {version}, build tag +{tag}")
    for accelerator in ("cuda", "hip", "xpu"):
        if f"torch/lib/libtorch_{accelerator}.so" in names:
            raise WrongBuild(f"torch {version} with libtorch_{accelerator}.so")
    if release != wanted_version:
        raise WrongBuild(f"torch {version}")
    for name in names:
        if re.fullmatch(r"torch-[^/]*\.dist-info/WHEEL", name):
            tags = re.findall(r"^Tag: (\S+)", wheel.read(name).decode(), re.MULTILINE)
            if not any("linux" in tag and tag.endswith(platform.machine()) for tag in tags):
                raise WrongBuild(f"torch {version} for {', '.join(tags)}")
    return version


def wanted(name):
    return (name.startswith(WANTED_FOLDERS) and not name.endswith("/")
            and not UNWANTED_LIBRARIES.match(name))


def unpack(wheel, folder):
    """Every byte is checked against the wheel's CRC on the way."""
    root = os.path.realpath(folder)
    for info in wheel.infolist():
        license_file = re.fullmatch(r"torch-[^/]*\.dist-info/(?:licenses/)?(LICENSE|NOTICE)", info.filename)
        if license_file:
            relative = license_file.group(1)
        elif wanted(info.filename):
            relative = info.filename[len("torch/"):]
        else:
            continue
        target = os.path.realpath(os.path.join(root, relative))
        if not target.startswith(root + os.sep):
            raise zipfile.BadZipFile(f"{info.filename} points outside the folder")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with wheel.open(info) as source, open(target, "wb") as output:
            shutil.copyfileobj(source, output, 1 << 20)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    wanted_version, path, folder = sys.argv[1:]
    partial = folder + ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with zipfile.ZipFile(path) as wheel:
            version = check_build(wheel, wanted_version)
            os.makedirs(partial)
            unpack(wheel, partial)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        print(f"{path} is not a whole wheel: {error}", file=sys.stderr)
        sys.exit(2)
    except WrongBuild as error:
        print(f"expected: a CPU build of torch {wanted_version} for Linux on {platform.machine()}\n"
              f"found:    {os.path.basename(path)}: {error}\n{WAY_OUT}", file=sys.stderr)
        sys.exit(3)
    with open(os.path.join(partial, "build-version"), "w", encoding="utf-8") as output:
        output.write(version + "\n")
    os.sync()
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(partial, folder)
    print(f"torch {version} in {folder}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

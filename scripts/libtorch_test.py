#!/usr/bin/env python3
"""Which LibTorch is taken and which is refused: unpack_torch.py on tiny wheels, and
cmake/LockstepTorch.cmake on tiny installations. Needs neither LibTorch nor a network.

LOCKSTEP_CMAKE names the cmake to use.
"""

import os
import pathlib
import platform
import resource
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = "2.13.0"
LIBRARY = os.urandom(300_000)  # does not get shorter in the wheel


def version_file(version=VERSION + "+cpu", **fields):
    fields = {"cuda": None, "hip": None, "rocm": None, "xpu": None, **fields}
    return f"__version__ = '{version}'\ndebug = False\n" + "".join(
        f"{name}: Optional[str] = {value!r}\n" for name, value in fields.items())


class Wheels(unittest.TestCase):

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.addCleanup(temporary.cleanup)
        self.place = pathlib.Path(temporary.name)
        self.folder = self.place / "libtorch"
        self.wheel = self.place / "torch.whl"

    def make_wheel(self, version=None, machine=platform.machine(), more=()):
        files = {
            "torch/version.py": version_file() if version is None else version,
            "torch/__init__.py": "python",
            "torch/lib/libtorch_cpu.so": LIBRARY,
            "torch/lib/libtorch_python.so": "python's binding",
            "torch/include/torch/torch.h": "#pragma once\n",
            "torch/share/cmake/Torch/TorchConfig.cmake": "# config\n",
            f"torch-{VERSION}.dist-info/licenses/LICENSE": "a licence",
            f"torch-{VERSION}.dist-info/WHEEL": f"Tag: cp311-cp311-manylinux_2_28_{machine}\n",
            **dict(more),
        }
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as wheel:
            for name, content in files.items():
                wheel.writestr(name, content)

    def unpack(self, expected_status, most_file_bytes=None):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_file_bytes, most_file_bytes))

        done = subprocess.run(
            [sys.executable, ROOT / "scripts/unpack_torch.py", VERSION, self.wheel, self.folder],
            capture_output=True, text=True, timeout=60, check=False,
            preexec_fn=None if most_file_bytes is None else limit)
        self.assertEqual(done.returncode, expected_status, done.stderr)
        return done.stderr

    def found(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*")
                      if path.is_file())

    def expect_whole(self):
        self.assertEqual(self.found(), [
            "LICENSE", "build-version", "include/torch/torch.h", "lib/libtorch_cpu.so",
            "share/cmake/Torch/TorchConfig.cmake"])
        self.assertEqual((self.folder / "lib/libtorch_cpu.so").read_bytes(), LIBRARY)
        self.assertEqual((self.folder / "build-version").read_text(), VERSION + "+cpu\n")
        self.assertFalse(self.folder.with_name("libtorch.partial").exists())

    def expect_refusal(self, *parts):
        error = self.unpack(3)
        for part in (f"expected: a CPU build of torch {VERSION}", "LOCKSTEP_TORCH_WHEEL=",
                     "CMAKE_PREFIX_PATH", *parts):
            self.assertIn(part, error)
        self.assertFalse(self.folder.exists())

    def test_of_a_cpu_wheel_what_programs_need_is_unpacked(self):
        self.make_wheel()
        self.unpack(0)
        self.expect_whole()

    def test_a_wheel_without_a_tag_is_one_for_the_cpu(self):
        self.make_wheel(version_file(VERSION))
        self.unpack(0)
        self.assertEqual((self.folder / "build-version").read_text(), VERSION + "\n")

    def test_builds_for_accelerators_are_refused_however_they_tell(self):
        for version, more, named in [
                (version_file(VERSION + "+cu126", cuda="12.6"), {}, "built for cuda 12.6"),
                (version_file(VERSION, cuda="12.6"), {}, "built for cuda 12.6"),
                (version_file(VERSION, hip="6.4"), {}, "built for hip 6.4"),
                (version_file(VERSION + "+cu126"), {}, "build tag +cu126"),
                (version_file(VERSION + "+rocm6.4"), {}, "build tag +rocm6.4"),
                (version_file(VERSION), {"torch/lib/libtorch_cuda.so": "x"}, "libtorch_cuda.so"),
                (version_file(VERSION), {"torch/lib/libtorch_xpu.so": "x"}, "libtorch_xpu.so")]:
            with self.subTest(named):
                self.make_wheel(version, more=more)
                self.expect_refusal(named)

    def test_other_versions_machines_and_packages_are_refused(self):
        self.make_wheel(version_file("2.12.1+cpu"))
        self.expect_refusal("torch 2.12.1+cpu")
        self.make_wheel(machine="riscv64")
        self.expect_refusal("manylinux_2_28_riscv64")
        with zipfile.ZipFile(self.wheel, "w") as wheel:
            wheel.writestr("numpy/__init__.py", "")
        self.expect_refusal("no torch wheel")

    def test_a_wheel_that_is_not_whole_leaves_nothing(self):
        self.make_wheel()
        whole = self.wheel.read_bytes()
        cases = [("empty", b""), ("half", whole[:len(whole) // 2]),
                 ("without its end", whole[:-10]), ("a page that says no", b"<html>404</html>")]
        with zipfile.ZipFile(self.wheel) as wheel:
            for info in wheel.infolist():
                if not info.filename.startswith(("torch/lib/libtorch_cpu", "torch/inc")):
                    continue
                for at in (0, info.compress_size // 2, info.compress_size - 1):
                    flipped = bytearray(whole)
                    flipped[info.header_offset + 30 + len(info.filename) + at] ^= 0xff
                    cases.append((f"byte {at} of {info.filename}", bytes(flipped)))
        for what, content in cases:
            with self.subTest(what):
                self.wheel.write_bytes(content)
                self.assertIn("is not a whole wheel", self.unpack(2))
                self.assertEqual(os.listdir(self.place), ["torch.whl"])

    def test_a_name_that_points_outside_the_folder_is_refused(self):
        self.make_wheel(more={"torch/lib/../../../outside": "x"})
        self.assertIn("points outside", self.unpack(2))
        self.assertEqual(os.listdir(self.place), ["torch.whl"])

    def test_what_stopped_half_way_is_not_there_and_can_be_repeated(self):
        self.make_wheel(more={"torch/lib/libc10.so": "x"})
        self.unpack(1, most_file_bytes=len(LIBRARY) // 2)  # as on a full disk
        self.assertFalse(self.folder.exists())
        partial = self.folder.with_name("libtorch.partial")
        self.assertTrue(partial.exists(), "the test shows nothing: it did not stop half-way")
        (partial / "lib/of the first try").write_text("x")
        self.make_wheel()
        self.unpack(0)
        self.expect_whole()

    def test_what_was_there_before_stays_until_the_new_is_whole(self):
        self.folder.mkdir()
        (self.folder / "old").write_text("x")
        self.make_wheel()
        self.unpack(1, most_file_bytes=len(LIBRARY) // 2)
        self.assertEqual(self.found(), ["old"])
        self.unpack(0)
        self.expect_whole()


class Installations(unittest.TestCase):
    """LibTorch in CMAKE_PREFIX_PATH, which no script of ours has unpacked."""

    def configure(self, *libraries):
        """What cmake says; it reads the project's file, without a compiler."""
        with tempfile.TemporaryDirectory(prefix="lockstep-test-") as place:
            torch = pathlib.Path(place, "torch")
            for name, content in {
                    "share/cmake/Torch/TorchConfig.cmake": "",
                    "include/torch/headeronly/version.h":
                        "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 13\n"
                        "#define TORCH_VERSION_PATCH 0\n",
                    **{f"lib/{library}": "" for library in libraries}}.items():
                (torch / name).parent.mkdir(parents=True, exist_ok=True)
                (torch / name).write_text(content)
            pathlib.Path(place, "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\nproject(fake LANGUAGES NONE)\n"
                f'include("{ROOT}/cmake/LockstepTorch.cmake")\n')
            done = subprocess.run(
                [os.environ.get("LOCKSTEP_CMAKE", "cmake"), "-S", place, "-B", place + "/build"],
                env={**os.environ, "CMAKE_PREFIX_PATH": str(torch)},
                capture_output=True, text=True, timeout=120, check=False)
            output = " ".join((done.stdout + done.stderr).split())  # cmake breaks lines
            return done.returncode, output.replace(place, "PLACE")

    def test_one_for_the_cpu_is_used(self):
        _, output = self.configure("libtorch.so", "libtorch_cpu.so", "libc10.so")
        self.assertIn("LibTorch 2.13.0 in PLACE/torch", output)

    def test_builds_for_accelerators_are_refused_with_the_way_out(self):
        for accelerator in ("cuda", "hip", "xpu"):
            with self.subTest(accelerator):
                status, output = self.configure("libtorch.so", "libtorch_cpu.so", "libc10.so",
                                                f"libtorch_{accelerator}.so")
                self.assertNotEqual(status, 0)
                self.assertIn(f"holds libtorch_{accelerator}.so", output)
                self.assertIn("Unset CMAKE_PREFIX_PATH and run ./dev build", output)
                self.assertNotIn("LibTorch 2.13.0 in", output)

    def test_one_that_is_not_whole_is_refused(self):
        status, output = self.configure("libtorch.so", "libc10.so")
        self.assertNotEqual(status, 0)
        self.assertIn("libtorch_cpu.so is missing", output)


if __name__ == "__main__":
    unittest.main()

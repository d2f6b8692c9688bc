#!/usr/bin/env python3
"""Checks the structure of the sources: who may include whom (docs: the table of folders).

  check_includes.py: checks the checkout this file stands in
  check_includes.py --self-test: plants one violation of every rule and demands that it is found

Rules, each with the name it is reported by:
  layers        src/X includes src/Y only if Y stands before X in LOCKSTEP_LAYERS (CMakeLists.txt)
  torch         folders without LibTorch, and targets that do not say TORCH, never reach a header of
                LibTorch: not directly, not through another header of ours
  public        include/ includes the standard library, <lockstep/...> and <torch/torch.h>, no more
  examples      examples/ include what a user may include: nothing of src/
  pragma-once   every header starts with #pragma once
  fmt           no header includes fmt: LibTorch brings another version of it, and one program would
                hold two definitions of the same inline function
  assert        no <cassert>: it is off in release builds; LOCKSTEP_CHECK is not
  missing       an include of ours names a file that exists
  unbuilt       every source is named in its folder's CMakeLists.txt: a test that is not built is no test
"""

import os
import re
import sys
import tempfile

TORCH_LAYERS = {"replica", "train", "cli"}
ROOTS = ("src", "include", "tests", "bench", "examples", "cmake")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:([<"])([^>"\n]+)[>"]|(\S+))', re.MULTILINE)
TORCH_HEADER = re.compile(r"(torch|ATen|c10|caffe2|torchgen)(/|$)")
STANDARD_HEADER = re.compile(r"[a-z_0-9]+")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


class Tree:
    """The files of one checkout: path from its root -> text."""

    def __init__(self, root):
        self.files = {}
        for top in ROOTS:
            for folder, folders, names in os.walk(os.path.join(root, top)):
                folders.sort()
                for name in sorted(names):
                    if name.endswith((".h", ".cpp")) or name == "CMakeLists.txt":
                        path = os.path.join(folder, name)
                        with open(path, encoding="utf-8") as file:
                            self.files[os.path.relpath(path, root)] = file.read()
        with open(os.path.join(root, "CMakeLists.txt"), encoding="utf-8") as file:
            layers = re.search(r"set\(LOCKSTEP_LAYERS([^)]*)\)", file.read())
        self.layers = layers.group(1).split()
        self.includes = {path: self.parse_includes(path) for path in self.files if is_source(path)}

    def parse_includes(self, path):
        """[(line, bracket, name)]; a macro in place of a name has the bracket ''."""
        text = self.files[path]
        return [(text.count("\n", 0, match.start()) + 1, match.group(1) or "",
                 match.group(2) or match.group(3)) for match in INCLUDE.finditer(text)]

    def resolve(self, name):
        """The file of ours that an include names, as a path from the root, or None."""
        if name.startswith("lockstep/"):
            return "include/" + name
        return name if name.split("/")[0] in ROOTS else None

    def way_to_torch(self, path, seen=None):
        """The chain of includes from a file to a header of LibTorch, or None."""
        seen = seen if seen is not None else set()
        seen.add(path)
        for _, _, name in self.includes.get(path, []):
            if TORCH_HEADER.match(name):
                return [path, name]
            target = self.resolve(name)
            if target and target not in seen:
                way = self.way_to_torch(target, seen)
                if way:
                    return [path] + way
        return None

    def calls(self, path):
        """The lockstep_add_* calls of a CMakeLists.txt: [(words, says TORCH)]."""
        text = re.sub(r"#[^\n]*", "", self.files[path])
        for match in re.finditer(r"\blockstep_add_\w+\s*\(([^)]*)\)", text):
            words = match.group(1).split()
            yield words, "TORCH" in words


def is_source(path):
    return path.endswith((".h", ".cpp"))


def layer_of(path):
    parts = path.split("/")
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def check_file(tree, path):
    layer = layer_of(path)
    top = path.split("/")[0]
    if layer and layer not in tree.layers:
        yield 1, "layers", f"src/{layer} is not in LOCKSTEP_LAYERS"
        return
    code = COMMENT.sub("", tree.files[path]).strip()
    if path.endswith(".h") and not code.startswith("#pragma once"):
        yield 1, "pragma-once", "a header starts with #pragma once"
    for line, bracket, name in tree.includes[path]:
        target = tree.resolve(name)
        if not bracket:
            yield line, "layers", f"an include by macro ({name}) cannot be checked"
        if target and target not in tree.files:
            yield line, "missing", f"there is no {target}"
        if layer and target and layer_of(target):
            other = layer_of(target)
            if other not in tree.layers or tree.layers.index(other) > tree.layers.index(layer):
                yield line, "layers", f"src/{layer} must not use src/{other}: it is not a lower layer"
        if layer and target and target.split("/")[0] not in ("src", "include"):
            yield line, "layers", f"src/ must not use {target.split('/')[0]}/"
        if top == "include" and not (
                name == "torch/torch.h" or name.startswith("lockstep/")
                or bracket == "<" and STANDARD_HEADER.fullmatch(name)):
            yield line, "public", f"a public header must not include {name}"
        if top == "examples" and target and not target.startswith(("include/", "examples/")):
            yield line, "examples", f"an example must not include {name}"
        if path.endswith(".h") and name.startswith("fmt/"):
            yield line, "fmt", f"a header must not include {name}; move its user to a .cpp"
        if name in ("cassert", "assert.h"):
            yield line, "assert", "assert is off in release builds; use LOCKSTEP_CHECK"
    if layer and layer not in TORCH_LAYERS:
        way = tree.way_to_torch(path)
        if way:
            yield 1, "torch", f"src/{layer} is without LibTorch, but: {' -> '.join(way)}"


def check_folder(tree, path):
    """Who says TORCH, and who reaches it without saying so."""
    folder = os.path.dirname(path)
    layer = layer_of(path)
    for words, with_torch in tree.calls(path):
        if with_torch and layer and layer not in TORCH_LAYERS:
            yield 1, "torch", f"src/{layer} is a folder without LibTorch, but says TORCH"
        for word in words:
            way = None if with_torch else tree.way_to_torch(os.path.join(folder, word))
            if way:
                yield 1, "torch", f"a target that does not say TORCH reaches it: {' -> '.join(way)}"


def unbuilt_sources(tree):
    """Sources that the nearest CMakeLists.txt above them does not name."""
    for source in tree.files:
        folder = os.path.dirname(source)
        if not source.endswith(".cpp") or folder == "cmake":
            continue
        while folder and os.path.join(folder, "CMakeLists.txt") not in tree.files:
            folder = os.path.dirname(folder)
        lists = re.sub(r"#[^\n]*", "", tree.files.get(os.path.join(folder, "CMakeLists.txt"), ""))
        if os.path.relpath(source, folder or ".") not in re.findall(r"[\w./-]+", lists):
            yield source, "no CMakeLists.txt names it, so nothing builds it"


def problems(root):
    """[(rule, "path:line: [rule] text")] of a checkout."""
    tree = Tree(root)
    if not tree.includes:
        return [("missing", f"{root}: [missing] no sources found")]
    found = []
    for path in sorted(tree.files):
        check = check_file if is_source(path) else check_folder
        found += [(rule, f"{path}:{line}: [{rule}] {text}") for line, rule, text in check(tree, path)]
    found += [("unbuilt", f"{path}:1: [unbuilt] {text}") for path, text in unbuilt_sources(tree)]
    return found


# ------------------------------------------------------------------------------------------ self-test

SOUND = {
    "CMakeLists.txt": "set(LOCKSTEP_LAYERS base tree replica cli)\n",
    "include/lockstep/error.h": "// Errors.\n#pragma once\n#include <string>\n",
    "include/lockstep/group.h": "#pragma once\n#include <torch/torch.h>\n#include <lockstep/error.h>\n",
    "src/base/CMakeLists.txt": "lockstep_add_folder(base SOURCES a.cpp)\n",
    "src/base/a.h": "#pragma once\n#include <lockstep/error.h>\n",
    "src/base/a.cpp": '#include "src/base/a.h"\n#include <fmt/format.h>\n',
    "src/tree/CMakeLists.txt": "lockstep_add_folder(tree SOURCES t.cpp TESTS t_test.cpp)\n",
    "src/tree/t.cpp": '#include "src/base/a.h"\n',
    "src/tree/t_test.cpp": '#include <gtest/gtest.h>\n',
    "src/replica/CMakeLists.txt": "lockstep_add_folder(replica SOURCES r.cpp TORCH)\n",
    "src/replica/r.h": "#pragma once\n#include <ATen/ATen.h>\n",
    "src/replica/r.cpp": '#include "src/replica/r.h"\n#include <lockstep/group.h>\n',
    "src/cli/CMakeLists.txt": "lockstep_add_program(lockstep SOURCES main.cpp)\n"
                              "lockstep_add_program(worker SOURCES worker.cpp TORCH)\n",
    "src/cli/main.cpp": '#include "src/base/a.h"\n',
    "src/cli/worker.cpp": '#include "src/replica/r.h"\n',
    "examples/CMakeLists.txt": "lockstep_add_program(mnist SOURCES mnist.cpp TORCH)\n",
    "examples/mnist.cpp": "#include <lockstep/group.h>\n",
}

# (rule that must report it, file, its text instead)
PLANTED = [
    ("layers", "src/base/a.cpp", '#include "src/tree/t.h"\n'),
    ("layers", "src/replica/r.cpp", '  #  include "src/cli/x.h"\n'),
    ("layers", "src/later/x.cpp", "int x;\n"),
    ("layers", "src/base/a.cpp", '#include "tests/helper.h"\n'),
    ("layers", "src/base/a.cpp", "#include HEADER\n"),
    ("torch", "src/tree/t.cpp", "#include <torch/torch.h>\n"),
    ("torch", "src/tree/t.cpp", "#include <c10/util/Exception.h>\n"),
    ("torch", "src/base/a.h", "#pragma once\n#include <lockstep/group.h>\n"),
    ("torch", "src/tree/t_test.cpp", '#include "ATen/ATen.h"\n'),
    ("torch", "src/tree/CMakeLists.txt", "lockstep_add_folder(tree SOURCES t.cpp TESTS t_test.cpp TORCH)\n"),
    ("torch", "src/cli/main.cpp", '#include "src/replica/r.h"\n'),
    ("public", "include/lockstep/error.h", "#pragma once\n#include <torch/csrc/autograd/engine.h>\n"),
    ("public", "include/lockstep/error.h", '#pragma once\n#include "src/base/a.h"\n'),
    ("public", "include/lockstep/error.h", "#pragma once\n#include <unistd.h>\n"),
    ("public", "include/lockstep/error.h", "#pragma once\n#include <nlohmann/json.hpp>\n"),
    ("examples", "examples/mnist.cpp", '#include "src/base/a.h"\n'),
    ("pragma-once", "src/base/a.h", "// #pragma once\n#include <string>\n"),
    ("fmt", "src/base/a.h", "#pragma once\n#include <fmt/format.h>\n"),
    ("assert", "src/base/a.cpp", "#include <cassert>\n"),
    ("missing", "src/base/a.cpp", '#include "src/base/b.h"\n'),
    ("unbuilt", "src/tree/forgotten_test.cpp", "int x;\n"),
    ("unbuilt", "tests/forgotten_test.cpp", "int x;\n"),
]


def self_test():
    def check(changes):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**SOUND, **changes}.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as file:
                    file.write(text)
            return problems(root)

    failures = [f"reported in sound sources: {text}" for _, text in check({})]
    for rule, path, text in PLANTED:
        found = check({path: text})
        if rule not in [found_rule for found_rule, _ in found]:
            failures.append(f"not found: [{rule}] in {path}: {text!r}; found {found}")
    untested = set(re.findall(r"^  ([a-z-]+)  ", __doc__, re.MULTILINE)) - {rule for rule, _, _ in PLANTED}
    failures += [f"no violation is planted for the rule {rule}" for rule in sorted(untested)]
    return failures


def main():
    if sys.argv[1:] == ["--self-test"]:
        failures = self_test()
    elif len(sys.argv) == 1:
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        failures = [text for _, text in problems(root)]
    else:
        sys.exit(__doc__)
    print("\n".join(failures) if failures else "includes: sound")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

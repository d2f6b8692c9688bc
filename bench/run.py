#!/usr/bin/env python3
"""Measures lockstep against its peers, in turn, on this machine. See bench/README.md.

  bench/run.py [--rows KEY,KEY] [--rounds 5] [--peer-python PATH] [--quick]
  bench/run.py --rows KEY --keep FILE       measures these again, keeps the other rows of FILE
  bench/run.py --table FILE                 prints the table of a stored result
  bench/run.py --readme FILE README.md      puts it between the markers in README.md
"""

import argparse
import datetime
import json
import os
import sys
import tempfile

from measure import machine, rows, table
from measure.programs import Programs

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", metavar="KEY,...", help="only these; --rows help lists them")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PATH",
                        help="a Python that has PyTorch; default: this one")
    parser.add_argument("--build", default=os.path.join(CHECKOUT, "build"), metavar="FOLDER")
    parser.add_argument("--keep", metavar="FILE",
                        help="an earlier result of this machine, whose other rows are kept")
    parser.add_argument("--out", metavar="FILE", help="default bench/results/DATE.json")
    parser.add_argument("--quick", action="store_true",
                        help="a small model: to see that everything works, not for figures")
    parser.add_argument("--table", metavar="FILE")
    parser.add_argument("--readme", nargs=2, metavar=("FILE", "README"))
    return parser.parse_args()


def fail(message):
    print(f"bench/run.py: {message}", file=sys.stderr)
    raise SystemExit(2)


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        table.markdown(result)
        return result
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"cannot use {path} as a result of bench/run.py: {type(error).__name__}: {error}")


def write_readme(result_path, readme_path):
    result = load(result_path)
    if result["quick"]:
        fail(f"{result_path} is of a quick run: its figures belong in no README")
    try:
        with open(readme_path, encoding="utf-8") as file:
            text = table.replace_in(file.read(), table.markdown(result))
        with open(readme_path, "w", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        fail(f"{readme_path}: {error}")


def choose(all_rows, words):
    keys = [row.key for row in all_rows]
    wanted = words.split(",") if words else keys
    unknown = [key for key in wanted if key not in keys]
    if unknown:
        fail(f"no row {', '.join(unknown)}; there are:\n  " + "\n  ".join(keys))
    return [row for row in all_rows if row.key in wanted]


def with_kept(measured, kept, all_rows):
    """Both, in the order of the table; what was measured now wins."""
    found = {row["key"]: row for row in [*kept, *measured]}
    return [found[row.key] for row in all_rows if row.key in found]


def measure(options):
    kept = load(options.keep)["rows"] if options.keep else []
    now = datetime.datetime.now().astimezone()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        programs = Programs(CHECKOUT, os.path.abspath(options.build), options.peer_python, scratch,
                            options.quick)
        all_rows = rows.all_rows(programs)
        chosen = choose(all_rows, options.rows)
        load_before = os.getloadavg()[0]
        if load_before > 0.5:
            print(f"bench/run.py: the load is {load_before:.1f}: something else is running, and "
                  "the figures will say little", file=sys.stderr)
        return {
            "format": 1,
            "date": now.strftime("%Y-%m-%d"),
            "time": now.isoformat(timespec="seconds"),
            "quick": options.quick,
            "rounds": options.rounds,
            "machine": machine.describe(CHECKOUT, programs.versions()),
            "load_before": load_before,
            "rows": with_kept([rows.measure(row, options.rounds) for row in chosen], kept,
                              all_rows),
            "load_after": os.getloadavg()[0],
        }


def main():
    options = parse()
    if options.table:
        print(table.markdown(load(options.table)))
        return
    if options.readme:
        write_readme(*options.readme)
        return
    if options.rounds < 1:
        fail("--rounds: expected 1 or more")
    result = measure(options)
    name = result["time"][:19].replace(":", "") + ".json"
    path = options.out or os.path.join(CHECKOUT, "bench", "results", name)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    print(table.markdown(result))
    print(f"\nstored as {os.path.relpath(path)}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("bench/run.py: interrupted; nothing is stored", file=sys.stderr)
        sys.exit(130)

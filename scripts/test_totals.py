#!/usr/bin/env python3
"""Sums up one run of ctest: test_totals.py NAME JUNIT_FILE.

Prints one line of totals, the slowest tests, the last lines of failed ones and what was skipped. Exit status 1 when a test failed or
was skipped without a reason of the list below: a test that silently does not run proves nothing.
"""

import sys
import xml.etree.ElementTree as xml

ALLOWED_REASONS = ("no GPU",)
FAILURE_LINES = 30  # of a failed test's output, once more at the end where they are found


def skip_reason(case):
    """The line of the test's output that says why, or ''."""
    output = case.findtext("system-out") or ""
    lines = [line.strip() for line in output.splitlines()]
    for index, line in enumerate(lines):
        if line.endswith(": Skipped") and index + 1 < len(lines):
            return lines[index + 1]
    return ""


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    name, path = sys.argv[1:]
    try:
        cases = list(xml.parse(path).getroot().iter("testcase"))
    except (OSError, xml.ParseError) as error:
        sys.exit(f"{name}: ctest left no results: {error}")
    by_status = {"run": [], "fail": [], "notrun": [], "disabled": []}
    for case in cases:
        by_status.setdefault(case.get("status"), []).append(case)
    skipped = by_status["notrun"] + by_status["disabled"]
    unexplained = [case for case in skipped if not skip_reason(case).startswith(ALLOWED_REASONS)]

    slowest = sorted(cases, key=lambda case: float(case.get("time") or 0), reverse=True)[:3]
    print(f"{name}: {len(by_status['run'])} passed, {len(by_status['fail'])} failed, "
          f"{len(skipped)} not run; slowest: "
          + ", ".join(f"{case.get('name')} {float(case.get('time') or 0):.1f} s" for case in slowest))
    for case in by_status["fail"]:
        print(f"  failed: {case.get('name')}")
        lines = (case.findtext("system-out") or "").splitlines()
        for line in lines[-FAILURE_LINES:]:
            print(f"  | {line[:300]}")
    for case in skipped:
        verdict = "not on the list of allowed reasons" if case in unexplained else "allowed"
        print(f"  not run: {case.get('name')}: {skip_reason(case) or 'no reason given'} ({verdict})")
    sys.exit(1 if by_status["fail"] or unexplained else 0)


if __name__ == "__main__":
    main()

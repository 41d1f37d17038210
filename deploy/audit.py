"""Runs pip-audit over an installation and says what came of it; an audit that could ask nobody has not passed.

pip-audit itself ends well where it finds none of the packages, as behind a mirror that knows no vulnerabilities.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

# Ours is not on PyPI by this name, and whoever installs from source knows what it is.
_OWN = "accel-platform"


def main(pip_audit: str, python: str) -> int:
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()
    command = [pip_audit, "--path", packages, "--format", "json", "--progress-spinner", "off", "--timeout", "20"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        print(f"Not audited: pip-audit could not ask PyPI, which this needs. It said: {said}", file=sys.stderr)
        return 2
    code, lines = verdict(report)
    print("\n".join(lines), file=sys.stderr if code else sys.stdout)
    return code


def verdict(report: dict[str, Any]) -> tuple[int, list[str]]:
    """An exit code (0 clean, 1 vulnerable, 2 not audited) and what to say, of pip-audit's JSON."""
    packages = [entry for entry in report["dependencies"] if entry["name"] != _OWN]
    skipped = [entry["name"] for entry in packages if "skip_reason" in entry]
    lines = []
    for entry in packages:
        for found in entry.get("vulns", []):
            mended = ", ".join(found["fix_versions"]) or "no version yet"
            lines.append(f"{entry['name']} {entry['version']}: {found['id']}, mended in {mended}")
    audited = len(packages) - len(skipped)
    if not audited:
        said = (
            f"Not audited: of {len(packages)} packages pip-audit found none at PyPI, so it asked somebody who "
            "knows of no vulnerabilities. Run it where PyPI itself can be reached."
        )
        return 2, [said]
    if skipped:
        lines.append(f"Not audited, for they are not at PyPI: {', '.join(skipped)}")
    known = sum(len(entry.get("vulns", [])) for entry in packages)
    return (1 if known else 0), [*lines, f"{audited} packages audited, {known} known vulnerabilities"]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

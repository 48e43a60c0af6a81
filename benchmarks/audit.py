"""Known flaws and licences of what the package needs: ``python benchmarks/audit.py``.

Flaws are looked up by pip-audit, which asks a database on the network; where it is not installed or the database cannot
be reached, that is said, and only the licences are checked.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib import metadata
from typing import Any

FREE = re.compile(
    r"apache|bsd|mit\b|mit license|isc|psf|python software|mpl|mozilla|unlicense|zlib|hpnd|cc0|public domain|0bsd|"
    r"freetype|lgpl|lesser general",
    re.IGNORECASE,
)
ADDRESS = re.compile(r"https?://|connection|resolve|timed? ?out|unreachable|proxy", re.IGNORECASE)


def needed(root: str = "metavrf") -> list[str]:
    """The package and all that it needs, with its extras, of what is installed."""
    found: dict[str, None] = {}
    left = [root]
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found[name] = None
        left += [re.split(r"[\s;<>=!~\[(]", line)[0] for line in requires if name == root or "extra ==" not in line]
    return sorted(found)


def licence(name: str) -> str:
    """As the package itself says."""
    said: Any = metadata.metadata(name)
    classified = [line.split("::")[-1].strip() for line in said.get_all("Classifier") or [] if "License ::" in line]
    stated = said.get("License-Expression") or ", ".join(classified) or said.get("License") or ""
    return " ".join(stated.split())[:80]


def main() -> None:
    names = needed()
    print(f"{len(names)} packages are installed that metavrf and its extras need")
    unclear = {name: licence(name) for name in names if not FREE.search(licence(name))}
    for name, text in unclear.items():
        print(f"look at the licence of {name}: {text or 'not stated'}")
    if not unclear:
        print("all of them have licences that let you use and pass them on")
    if importlib.util.find_spec("pip_audit") is None:
        print("flaws are not looked up: pip-audit is not installed (pip install pip-audit)")
        return
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--progress-spinner", "off"], capture_output=True, text=True, check=False
    )
    if (done.returncode and "Traceback" in done.stderr) or (
        done.returncode and not done.stdout and ADDRESS.search(done.stderr)
    ):
        print("flaws are not looked up: the database of pip-audit cannot be reached from here")
        return
    print(done.stdout or done.stderr)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()

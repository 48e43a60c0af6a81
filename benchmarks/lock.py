"""Write requirements.lock: every pin of constraints.txt with the SHA-256 sums of its files, for all platforms.

    python benchmarks/lock.py            # asks the package index that pip is set up to ask
    pip install torch==2.13.0            # the build for your device, from where you trust it
    pip install --no-deps --require-hashes --requirement requirements.lock

torch is left out: a build for the CPU or for one version of CUDA is another file, from another index, than the one of
the same version that the index of all packages has. No address is written down.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
LEFT_OUT = ("torch",)
AT_ONCE, SECONDS = 8, 60
JSON = "application/vnd.pypi.simple.v1+json"
HEAD = """\
# Made by python benchmarks/lock.py from constraints.txt: install with
#     pip install --no-deps --require-hashes --requirement requirements.lock
# torch is not in it: install torch=={torch} first, the build for your device.
"""


def pins(text: str) -> dict[str, str]:
    """Names, as an index has them, and versions."""
    found = re.findall(r"^([\w.-]+)==(\S+)$", text, re.M)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def sums_of(page: str, name: str, version: str) -> list[str]:
    """The sums of the files of a version, from the page of a package: JSON or HTML."""
    if page.lstrip().startswith("{"):
        files = [(file["filename"], file.get("hashes", {}).get("sha256", "")) for file in json.loads(page)["files"]]
    else:
        links = re.findall(r"href=[\"']([^\"']+)[\"']", page)
        parts = [unescape(link).rpartition("#sha256=") for link in links]
        files = [(address.rpartition("/")[2], known) for address, _, known in parts]
    named = r"[-_.]+".join(map(re.escape, name.split("-")))
    of_version = re.compile(rf"{named}-{re.escape(version)}(-|\.(tar|zip))", re.IGNORECASE)
    return sorted({known for file, known in files if known and of_version.match(file)})


def index() -> str:
    """Where pip looks for packages."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    if asked.returncode == 0:
        return asked.stdout.strip().rstrip("/")
    from pip._internal.models.index import PyPI

    return str(PyPI.simple_url).rstrip("/")


def locked(text: str, address: str) -> str:
    """The lock of a file of constraints."""
    wanted = pins(text)

    def one(name: str) -> list[str]:
        request = Request(f"{address}/{name}/", headers={"Accept": f"{JSON}, text/html;q=0.5"})
        with urlopen(request, timeout=SECONDS) as page:
            return sums_of(page.read().decode(), name, wanted[name])

    names = sorted(name for name in wanted if name not in LEFT_OUT)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(names, pool.map(one, names), strict=True))
    if missing := [name for name, sums in found.items() if not sums]:
        sys.exit(f"the index has no sums of {', '.join(f'{name}=={wanted[name]}' for name in missing)}")
    lines = [[f"{name}=={wanted[name]}", *(f"--hash=sha256:{known}" for known in found[name])] for name in names]
    return HEAD.format(torch=wanted["torch"]) + "\n".join(" \\\n    ".join(entry) for entry in lines) + "\n"


if __name__ == "__main__":
    LOCK.write_text(locked(CONSTRAINTS.read_text(), index()))

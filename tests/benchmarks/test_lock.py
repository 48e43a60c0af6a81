"""The sums of every version that is pinned."""

from __future__ import annotations

import json
import re
from pathlib import Path

import lock

ROOT = Path(__file__).parents[2]
SUM = "a" * 64
FILES = {
    "some_package-1.2.0-py3-none-any.whl": SUM,
    "some-package-1.2.0.tar.gz": "b" * 64,
    "some_package-1.2.0.post1-py3-none-any.whl": "c" * 64,
    "some_package-1.12.0-py3-none-any.whl": "d" * 64,
}


def test_every_pin_but_torch_has_sums_in_the_lock() -> None:
    pins = lock.pins((ROOT / "constraints.txt").read_text())
    text = (ROOT / "requirements.lock").read_text()
    entries = re.findall(r"^([\w.-]+)==(\S+) \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M)
    assert {name: version for name, version, _ in entries} == {n: v for n, v in pins.items() if n not in lock.LEFT_OUT}
    assert f"install torch=={pins['torch']} first" in text
    assert "://" not in text


def test_the_sums_of_a_version_are_read_from_the_page_of_a_package() -> None:
    as_json = json.dumps({"files": [{"filename": name, "hashes": {"sha256": known}} for name, known in FILES.items()]})
    as_html = "\n".join(f'<a href="../../files/{name}#sha256={known}">{name}</a>' for name, known in FILES.items())
    for page in (as_json, as_html):
        assert lock.sums_of(page, "some-package", "1.2.0") == [SUM, "b" * 64]
        assert lock.sums_of(page, "some-package", "3.0") == []

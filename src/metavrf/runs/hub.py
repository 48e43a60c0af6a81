"""Models on the Hugging Face hub, by an address such as ``hf://owner/name`` or ``hf://owner/name@revision``.

A model there is the folder that :func:`metavrf.save_pretrained` writes. Nothing in it is run as code.
"""

from __future__ import annotations

import re
from pathlib import Path

from metavrf.errors import UserError

FILES = ("README.md", "card.json", "config.toml", "data.json", "manifest.json", "model.safetensors", "result.json")
_ADDRESS = re.compile(r"hf:/+(?P<name>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?/?")  # a path keeps one slash of two


def is_address(path: object) -> bool:
    """Whether a path names a model on the hub."""
    return str(path).startswith("hf:/")


def fetch(address: object) -> Path:
    """Download a model, or find it in the hub's cache; returns its folder."""
    asked = _ADDRESS.fullmatch(str(address))
    if asked is None:
        raise UserError(f"{address} is not a model on the hub: give hf://owner/name or hf://owner/name@revision")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(f"hf://{asked['name']} needs the extra 'hub': pip install 'metavrf[hub]'") from error
    try:
        return Path(snapshot_download(asked["name"], revision=asked["revision"], allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:  # the hub's own errors are of these kinds
        reason = " ".join(str(error).split())
        raise UserError(f"cannot fetch hf://{asked['name']} from the Hugging Face hub ({reason})") from error

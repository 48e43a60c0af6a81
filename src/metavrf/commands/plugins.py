"""Files of one's own that add families, data sets, embeddings and learners."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tyro.conf import UseAppendAction

from metavrf.errors import UserError


@dataclass(kw_only=True)
class Plugins:
    """What every command has that opens a run."""

    plugin: UseAppendAction[list[Path]] = field(default_factory=list)
    """Python file that adds families, data sets, embeddings or learners of your own; may be given again."""

    def load_plugins(self) -> None:
        """Run the files."""
        load_plugins(self.plugin)


def load_plugins(files: Sequence[Path]) -> None:
    """Run Python files that the user names, so that what they register is known."""
    for file in files:
        if not file.is_file():
            raise UserError(f"the plugin {file} does not exist")
        name = f"metavrf_plugin_{file.stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where the help of a dataclass, and the types of its fields, are looked up
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            reason = " ".join(str(error).split())
            raise UserError(f"the plugin {file} failed: {type(error).__name__}: {reason}") from error

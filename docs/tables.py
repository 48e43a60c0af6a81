"""Fill in the tables of README.md and docs/*.md: python docs/tables.py, or with --check to see if any is out of date.

A table stands between two comments of a page, ``<!-- table: NAME -->`` and ``<!-- end -->``. Its figures come from
``results/*.json`` and the cards of the models in the package; lists of names come from the registries.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tabled import TABLES
from tabled.figures import Rows

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)


def rendered(rows: Rows) -> str:
    """A table in Markdown."""
    head, *lines = rows
    if any(len(line) != len(head) for line in lines):
        raise ValueError(f"lines of unequal length under {head}")
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *lines))


def filled(text: str) -> str:
    """A page with its tables made anew."""
    return BLOCK.sub(lambda block: block[1] + rendered(TABLES[block["name"]]()) + block[3], text)


def main() -> None:
    """Write the pages, or with --check say which are out of date."""
    stale = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        before = page.read_text()
        after = filled(before)
        if after != before:
            stale.append(str(page.relative_to(ROOT)))
            if "--check" not in sys.argv[1:]:
                page.write_text(after)
    if stale and "--check" in sys.argv[1:]:
        sys.exit(f"out of date, run python docs/tables.py: {', '.join(stale)}")


if __name__ == "__main__":
    main()

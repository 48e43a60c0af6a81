"""Make the reference of all public names from their docstrings: python docs/reference.py FOLDER."""

import sys
from pathlib import Path

import pdoc

import metavrf

for name in metavrf.__all__:
    getattr(metavrf, name)  # imported when first used, and pdoc looks at what is there
pdoc.render.configure(docformat="google")
pdoc.pdoc("metavrf", output_directory=Path(sys.argv[1]))

"""Models that come with the package, a folder each: a run without its checkpoint, in half precision, and its card."""

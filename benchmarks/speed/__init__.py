"""How fast it is: the same work in several ways, by turns, in one run. See docs/performance.md."""

"""Figures of the authors' code that are quoted beside ours, not measured in the same run.

Its TensorFlow does not run beside this package. They were measured on two cores, in single precision, on Omniglot.
"""

from __future__ import annotations

AUTHORS_STEP = 0.77
"""Seconds of a training step: 6 tasks of 5-way 1-shot with 15 queries."""
AUTHORS_EPISODES = 17.0
"""Test episodes a second, 15 queries."""
AUTHORS_ACCURACY = (600.0, 52.0)
"""Seconds of training, and the accuracy on test classes then (%)."""

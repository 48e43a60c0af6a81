"""Related tasks one after the other: what the supports so far have said is remembered for the next."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike

from metavrf.episodes import Episodes
from metavrf.prediction import Prediction

if TYPE_CHECKING:
    from metavrf.learners.base import Learner


class Stream:
    """A learner that remembers, from task to task, what their supports said; queries leave no trace.

    ::

        stream = metavrf.load("runs/stream").stream()
        for x, y, asked in days:
            print(stream.solve((x, y), asked).mean)
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.memory: Any = None

    def solve(self, support: Episodes | tuple[ArrayLike, ArrayLike], query: ArrayLike | None = None) -> Prediction:
        """Solve the next task, and remember its support.

        Args:
            support: inputs and targets of one regression task; or whole episodes, one task.
            query: inputs to answer; where ``support`` is episodes, they may hold them already.
        """
        if isinstance(support, Episodes):
            task = (
                support if query is None else support.asking(torch.as_tensor(query, dtype=torch.float32).unsqueeze(0))
            )
        else:
            x, y = support
            task = Episodes.of_task(x, y, x if query is None else query)
        prediction = self.learner.predict(replace(task, stream=1), memory=self.memory)
        if prediction.memory is not None:
            self.memory = prediction.memory.detached()
        return prediction

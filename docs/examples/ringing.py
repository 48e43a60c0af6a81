"""A family of functions in eleven lines: metavrf train ringing --plugin docs/examples/ringing.py --out RUN."""

from torch import exp, pi, sin

from metavrf import FunctionFamily, register_family


@register_family("ringing")
class Ringing(FunctionFamily):
    """Damped oscillations, such as a bell after the blow."""

    domain = (0.0, 10.0)
    parameters = {"height": (0.5, 3.0), "decay": (0.05, 0.5), "frequency": (1.0, 3.0), "phase": (0.0, 2 * pi)}

    def evaluate(self, x, height, decay, frequency, phase):
        """One curve per task: the parameters are [tasks, 1] and x is [tasks, points]."""
        return height * exp(-decay * x) * sin(frequency * x + phase)

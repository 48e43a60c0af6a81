"""Errors a user can cause and mend, and what a terminal may be told."""


class UserError(ValueError):
    """Bad input: the message is one sentence that says what was given and what to do.

    The command line prints it on standard error, without a traceback, and exits with code 2.
    """


def printable(text: str) -> str:
    """A text that may hold names of files or classes, fit for a terminal: escape codes are shown, not obeyed."""
    kept = (c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return "".join(kept)


class Caution(UserWarning):
    """What a user should know though the work goes on: one sentence, which the command line prints."""

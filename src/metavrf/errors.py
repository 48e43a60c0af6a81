"""Errors a user can cause and mend."""


class UserError(ValueError):
    """Bad input: the message is one sentence that says what was given and what to do.

    The command line prints it on standard error, without a traceback, and exits with code 2.
    """


class Caution(UserWarning):
    """What a user should know though the work goes on: one sentence, which the command line prints."""

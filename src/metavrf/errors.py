"""Errors a user can cause and mend."""


class UserError(ValueError):
    """Bad input: the message is one sentence that says what was given and what to do.

    The command line prints it on standard error, without a traceback, and exits with code 2.
    """

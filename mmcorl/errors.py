"""The exceptions a user is meant to read: a sentence each, which the command line prints alone."""


class Refused(ValueError):
    """Input that cannot work, said in one sentence: the value, the rule, the way out.

    Raised before work starts. The command line prints the sentence alone and exits with 2.
    """


class Failed(RuntimeError):
    """Work that had to stop through no fault of the input, such as on a full disk.

    One sentence: what happened, what is safe, what next. The command line prints it alone and exits with 1;
    anything unexpected keeps its stack trace instead.
    """

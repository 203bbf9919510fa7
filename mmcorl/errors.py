"""The one exception a user is meant to read."""


class Refused(ValueError):
    """Input that cannot work, said in one sentence: the value, the rule, the way out.

    Raised before work starts. The command line prints the sentence alone and exits with 2.
    """

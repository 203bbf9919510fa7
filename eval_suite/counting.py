"""Numbers of things in sentences."""


def counted(count: int, one: str, more: str) -> str:
    """`1 problem is` or `1,319 problems are`: the words that follow a count, in the form that fits it."""
    return f"{count:,} {one if count == 1 else more}"

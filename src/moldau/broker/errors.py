"""What the shell raises for the person in front of it."""


class StartError(Exception):
    """The node cannot start; one clear line for the person who started it."""

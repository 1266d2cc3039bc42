"""What is wrong with a pipeline as it is written, in one line with the remedy."""


class PipelineError(ValueError):
    """A pipeline asks for what cannot be; found before anything runs."""

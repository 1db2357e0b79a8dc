"""What other systems load: a file for each, which imports nothing of palestra."""

__all__: list[str] = []

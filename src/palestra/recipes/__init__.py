"""Short end-to-end runs that can be read, copied and run as modules."""

__all__: list[str] = []

"""Property tests of this folder measure no time: the machine may be shared."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

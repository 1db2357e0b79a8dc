"""A model behind an OpenAI-compatible server, and learning from the programs that use it."""

from palestra.serving.captured import PART, WORLD, CapturedEpisode
from palestra.serving.desk import Answer, Desk, Limits
from palestra.serving.learning import learn, prepare
from palestra.serving.serve import bind, serve

__all__ = [
    "PART",
    "WORLD",
    "Answer",
    "CapturedEpisode",
    "Desk",
    "Limits",
    "bind",
    "learn",
    "prepare",
    "serve",
]

"""palestra trains LLM agents to act over many turns with reinforcement learning."""

__version__ = "0.1.0"
__all__ = ["__version__"]

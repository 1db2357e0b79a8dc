"""The stages of a run as one resumable pipeline."""

from palestra.pipeline.config import RunConfig
from palestra.pipeline.load import BUILTIN_CONFIGS, parse_config, read_config_text
from palestra.pipeline.progress import Reporter

__all__ = ["BUILTIN_CONFIGS", "Reporter", "RunConfig", "parse_config", "read_config_text"]

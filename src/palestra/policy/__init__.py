"""What acts: policies, chat templates and engines.

Torch and transformers are needed only by ``models``, ``nano``, ``smollm2`` and ``local``.
"""

from palestra.policy.base import Conversation, Policy, Sampled, TokenPolicy
from palestra.policy.chat import ChatTemplate, SchemaForm
from palestra.policy.engine import Engine, Generation, SamplingParams
from palestra.policy.model_names import BUILTIN_MODELS, check_model_name, is_hub_id
from palestra.policy.scripted import (
    NoisyTeacher,
    Script,
    ScriptedPolicy,
    oracle_script,
    random_script,
    replay_script,
)
from palestra.policy.transcript import ContextMode, ContextWindow, Transcript

__all__ = [
    "BUILTIN_MODELS",
    "ChatTemplate",
    "ContextMode",
    "ContextWindow",
    "Conversation",
    "Engine",
    "Generation",
    "NoisyTeacher",
    "Policy",
    "Sampled",
    "SamplingParams",
    "SchemaForm",
    "Script",
    "ScriptedPolicy",
    "TokenPolicy",
    "Transcript",
    "check_model_name",
    "is_hub_id",
    "oracle_script",
    "random_script",
    "replay_script",
]

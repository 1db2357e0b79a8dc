"""What acts: policies, chat templates and engines. Torch is needed only by ``nano`` and ``local``."""

from palestra.policy.base import Conversation, Policy, Sampled, TokenPolicy
from palestra.policy.chat import ChatTemplate
from palestra.policy.engine import Engine, Generation, SamplingParams
from palestra.policy.scripted import (
    NoisyTeacher,
    Script,
    ScriptedPolicy,
    oracle_script,
    random_script,
    replay_script,
)

__all__ = [
    "ChatTemplate",
    "Conversation",
    "Engine",
    "Generation",
    "NoisyTeacher",
    "Policy",
    "Sampled",
    "SamplingParams",
    "Script",
    "ScriptedPolicy",
    "TokenPolicy",
    "oracle_script",
    "random_script",
    "replay_script",
]

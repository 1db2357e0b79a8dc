"""Small models as folders: a Llama with a tokenizer and a chat template of its own, and a nano policy."""

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.models import save_policy
from palestra.policy.nano import new_nano, train_tokenizer

KEPT = "{{ m['content'] }}"
SHORTENED = "{{ '...' if m['role'] == 'user' and loop.index0 > 1 and not loop.last else m['content'] }}"
"""Earlier observations are shown as three dots, so every reply after the second breaks the prefix."""
DECLARED = (
    "{% if tools %}<|im_start|>system\n{{ messages[0]['content'] }}\n{% for t in tools %}{{ t | tojson }}\n"
    "{% endfor %}<|im_end|>\n{% endif %}"
)
CALLED = (
    "{% for c in m['tool_calls'] or [] %}<tool_call>\n"
    """{"name": "{{ c['function']['name'] }}", "arguments": {{ c['function']['arguments'] | tojson }}}"""
    "\n</tool_call>{% endfor %}"
)
"""A template that declares tools has one before its messages, the other in them."""
SAY = '{"tool_name": "say", "parameters": {"word": "red"}} number 12, word blue green lamp heard'


def write_llama(
    folder: Path,
    shown: str = KEPT,
    *,
    hidden: int = 48,
    heads: int = 4,
    declares: bool = False,
    more_special: tuple[str, ...] = (),
) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [SAY] * 4, trainers.BpeTrainer(vocab_size=380, initial_alphabet=alphabet, show_progress=False)
    )
    special = ("<|im_start|>", "<|im_end|>", *more_special)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special])
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n" + shown + "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    if declares:
        first = "if not (tools and m['role'] == 'system') %}"
        template = DECLARED + template.replace("in messages %}", f"in messages {first}")
        template = template.replace(shown, shown + CALLED)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template).save_pretrained(folder)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_nano(folder: Path) -> Path:
    """An untrained one of a few thousand parameters."""
    tokenizer = train_tokenizer(["say the word, left or right", "number 12, word blue"], 300)
    model = new_nano(tokenizer.get_vocab_size(), hidden=32, feed_forward=48, heads=2, seed=1)
    save_policy(folder, model, RoleTokenTemplate(tokenizer))
    return folder

"""Small tokenizers with chat templates in the manner of well-known families, written for these tests."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "Sort the post. Answer with a call. Letter 12: where does it go?",
    '{"tool_name": "look", "parameters": {"letter": "12"}} error: no stamp left done finish() user system',
] * 4


def byte_level(special: list[str]) -> Tokenizer:
    """As GPT-2, Llama 3, Qwen, SmolLM2 and Phi-4 have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def sentence_piece(special: list[str]) -> Tokenizer:
    """As Mistral, Gemma and Phi-3 have it: white space is a letter, unknown ones are bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<unk>", *(f"<0x{n:02X}>" for n in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator([text.replace(" ", "\u2581") for text in TEXTS], trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe helpful.<|im_end|>\n{% endif %}"
)
TOOLS_IN_USER = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}<|im_start|>user{% endif %}\n"
    "<tool_response>\n{{ m['content'] }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING_DROPPED = (
    "{% for m in messages %}{% set c = m['content'] %}{% if m['role'] == 'assistant' and '</think>' in c %}"
    "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ c }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}"
    "{% set role = 'ipython' if m['role'] == 'tool' else m['role'] %}"
    "<|start_header_id|>{{ role }}<|end_header_id|>\n\n"
    "{% if loop.first and role == 'system' %}Today: {{ date_string }}\n\n{% endif %}"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
ALTERNATING = (
    "{% for m in messages if m['role'] != 'system' %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user and assistant') }}{% endif %}{% endfor %}"
)
SYSTEM_IN_LAST = (
    ALTERNATING + "{{ '<s>' }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] "
    "{% if loop.last and messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n\n{% endif %}"
    "{{ m['content'] }}[/INST]{% elif m['role'] == 'assistant' %} {{ m['content'] | trim }}</s>{% endif %}"
    "{% endfor %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + ALTERNATING
    + "{{ '<bos>' }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
ONE_TOKEN_A_ROLE = (
    "{% for m in messages %}{% if m['role'] in ['system', 'user', 'assistant'] %}"
    "<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SEPARATOR = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}<|im_sep|>{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)

_IM = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>"]
_LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
FAMILIES = {
    "smollm2": (byte_level, _IM, DEFAULT_SYSTEM + CHATML),
    "qwen2.5": (byte_level, _IM, DEFAULT_SYSTEM + TOOLS_IN_USER),
    "thinking": (byte_level, _IM, THINKING_DROPPED),
    "llama3": (byte_level, _LLAMA, HEADERS),
    "mistral": (sentence_piece, ["<s>", "</s>", "[INST]", "[/INST]"], SYSTEM_IN_LAST),
    "gemma": (sentence_piece, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], NO_SYSTEM),
    "phi3": (sentence_piece, ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"], ONE_TOKEN_A_ROLE),
    "phi4": (byte_level, _IM, SEPARATOR),
}


def make_tokenizer(family: str, template: str | None = None) -> PreTrainedTokenizerFast:
    make, special, own = FAMILIES[family]
    return PreTrainedTokenizerFast(
        tokenizer_object=make(special), chat_template=own if template is None else template
    )

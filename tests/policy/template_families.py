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
OR_TOOLS = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n\n{% endif %}# Tools\n\n<tools>"
    "{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n</tools>\n\nWrite each call as <tool_call>\n"
    '{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>\n{% else %}'
)
"""What is in place of a system message where there are tools, in the manner of Qwen 2.5 and 3."""
CALLS = (
    "{% for c in m['tool_calls'] or [] %}{% if m['content'] or not loop.first %}\n{% endif %}<tool_call>\n"
    """{"name": "{{ c['function']['name'] }}", "arguments": {{ c['function']['arguments'] | tojson }}}"""
    "\n</tool_call>{% endfor %}"
)
TOOLS_IN_USER = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}<|im_start|>user{% endif %}\n"
    "<tool_response>\n{{ m['content'] }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m['role'] != 'system' or not (tools and loop.first) %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] }}" + CALLS + "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING_SINCE_ASKED = (
    "{% set ns = namespace(asked=0) %}{% for m in messages if m['role'] == 'user' %}"
    "{% set ns.asked = messages.index(m) %}{% endfor %}"
    + TOOLS_IN_USER.replace(
        "{{ m['content'] }}" + CALLS,
        "{% set parts = m['content'].split('</think>') %}{% if m['role'] != 'assistant' %}{{ m['content'] }}"
        "{% elif loop.index0 > ns.asked and (loop.last or parts | length > 1) %}<think>\n"
        "{{ parts[0].split('<think>')[-1].strip('\n') if parts | length > 1 }}\n</think>\n\n"
        "{{ parts[-1].lstrip('\n') }}{% else %}{{ parts[-1].lstrip('\n') }}{% endif %}" + CALLS,
    )
)
"""As Qwen 3: thinking is kept since the user last asked, and the last message has some, if empty."""
THINKING_DROPPED = (
    "{% for m in messages %}{% set c = m['content'] %}{% if m['role'] == 'assistant' and '</think>' in c %}"
    "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ c }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{{ '<|begin_of_text|>' }}{% set ns = namespace(asked=false) %}{% for m in messages %}"
    "{% set role = 'ipython' if m['role'] == 'tool' else m['role'] %}"
    "<|start_header_id|>{{ role }}<|end_header_id|>\n\n"
    "{% if loop.first and role == 'system' %}Today: {{ date_string }}\n\n{% endif %}"
    "{% if tools and role == 'user' and not ns.asked %}{% set ns.asked = true %}Call one of these as "
    '{"name": NAME, "parameters": OBJECT}.\n\n'
    "{% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}{% endif %}"
    "{% if m['tool_calls'] %}{% set c = m['tool_calls'][0]['function'] %}"
    """{"name": "{{ c['name'] }}", "parameters": {{ c['arguments'] | tojson }}}"""
    "{% else %}{{ m['content'] | trim }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
ALTERNATING = (
    "{% for m in messages if m['role'] != 'system' %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user and assistant') }}{% endif %}{% endfor %}"
)
SYSTEM_IN_LAST = (
    ALTERNATING.replace("!= 'system'", "not in ['system', 'tool'] and not m['tool_calls']")
    + "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{{ '<s>' }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% if tools and m == users[-1] %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] "
    "{% if loop.last and messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n\n{% endif %}"
    "{{ m['content'] }}[/INST]{% elif m['tool_calls'] %}[TOOL_CALLS] {{ m['tool_calls'] | tojson }}</s>"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] | trim }}</s>{% elif m['role'] == 'tool' %}"
    "{% if not m['tool_call_id'] %}{{ raise_exception('a result needs the id of its call') }}{% endif %}"
    "[TOOL_RESULTS] {{ m['content'] }}[/TOOL_RESULTS]{% endif %}{% endfor %}"
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
    "qwen2.5": (byte_level, _IM, OR_TOOLS + DEFAULT_SYSTEM + "{% endif %}" + TOOLS_IN_USER),
    "qwen3": (byte_level, _IM, OR_TOOLS + "{% endif %}" + THINKING_SINCE_ASKED),
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

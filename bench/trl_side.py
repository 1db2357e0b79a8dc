"""TRL's half of ``multiturn_vs_trl.py``: its GRPOTrainer over several turns, in an environment of its own, without palestra.

It takes a step, or works out loss and gradient of a given batch, whenever a line on standard input says so, and answers with a
line of JSON. Turns are played as TRL's ``rollout_func`` does it with its own generation: the whole history is given again each turn.
"""

import argparse
import json
import os
import re
import resource
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from guess_world import SYSTEM, answer, prompt, secret
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

OPEN, CLOSE = "<|im_start|>", "<|im_end|>"


def say(**values):
    """One line to the other side; standard output belongs to the protocol alone."""
    ANSWERS.write(json.dumps(values) + "\n")
    ANSWERS.flush()


ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def make_rollout(asked, tokenizer):
    """Play all dialogues turn by turn."""

    def rollout(prompts, trainer):
        start = time.process_time()
        texts = tokenizer.apply_chat_template(prompts, tokenize=False, add_generation_prompt=True)
        prompt_ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        numbers = [secret(int(re.search(r"Game (\d+)", each[-1]["content"]).group(1))) for each in prompts]
        said, mask, rewards = [[] for _ in prompts], [[] for _ in prompts], [0.0] * len(prompts)
        for turn in range(asked.turns):
            whole = [before + after for before, after in zip(prompt_ids, said, strict=True)]
            sampled, _ = trainer._generate_single_turn(whole, None, {}, 1)
            for place, ids in enumerate(sampled):
                said[place] += ids
                mask[place] += [1] * len(ids)
                reward, reply = answer(numbers[place], tokenizer.decode(ids, skip_special_tokens=True))
                rewards[place] += reward / asked.turns
                if turn < asked.turns - 1:
                    closing = "" if ids[-1] == tokenizer.eos_token_id else CLOSE
                    told = f"{closing}\n{OPEN}user\n{reply}{CLOSE}\n{OPEN}assistant\n"
                    reply_ids = tokenizer(told, add_special_tokens=False)["input_ids"]
                    said[place] += reply_ids
                    mask[place] += [0] * len(reply_ids)
        lengths = [len(before) + len(after) for before, after in zip(prompt_ids, said, strict=True)]
        NOTES.update(generate=time.process_time() - start, tokens=sum(lengths), sampled=sum(map(sum, mask)))
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": said,
            "logprobs": None,
            "env_mask": mask,
            "env_reward": rewards,
        }

    return rollout


NOTES = {}


class Obey(TrainerCallback):
    """Wait before each step for a line that asks for it; a line with a file asks for the gradient of a batch first."""

    def __init__(self):
        self.trainer = None

    def on_step_begin(self, *_, **__):
        """Wait for the line that asks for a step."""
        while (line := sys.stdin.readline().strip()) != "step":
            if not line or line == "end":
                say(peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
                os._exit(0)
            say(**gradient_of(self.trainer, line))
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def on_step_end(self, *_, **__):
        """Tell what the step took."""
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        say(wall=wall, cpu=cpu, **NOTES, update=cpu - NOTES["generate"])


def gradient_of(trainer, file):
    """Loss and norms of gradients of a batch that both sides have, by TRL's own loss."""
    with open(file) as opened:
        given = json.load(opened)
    width, prompts = max(map(len, given["ids"])), given["prompt_tokens"]

    def padded(rows):
        return torch.tensor([row + [0] * (width - len(row)) for row in rows])

    ids, seen = padded(given["ids"]), padded([[1] * len(row) for row in given["ids"]])
    inputs = {
        "prompt_ids": ids[:, :prompts],
        "prompt_mask": seen[:, :prompts],
        "completion_ids": ids[:, prompts:],
        "completion_mask": seen[:, prompts:],
        "tool_mask": padded(given["mask"])[:, prompts:],
        "old_per_token_logps": padded(given["logprobs"])[:, prompts:],
        "advantages": torch.tensor(given["advantages"]),
        "num_items_in_batch": torch.tensor(sum(map(sum, given["mask"]))),
    }
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    norms = {name: float(each.grad.norm()) for name, each in trainer.model.named_parameters()}
    trainer.model.zero_grad()
    return {"loss": float(loss.detach()), "norms": norms}


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=32)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32)
    rows = [
        {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt(game)}]}
        for game in range(64)
    ]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=1_000,
        per_device_train_batch_size=asked.group,
        num_generations=asked.group,
        gradient_accumulation_steps=1,
        max_completion_length=asked.new_tokens,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        temperature=1.0,
        top_k=0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
        generation_kwargs={"min_new_tokens": asked.new_tokens},
    )

    def reward(completions, env_reward, **_):
        return env_reward

    obey = Obey()
    obey.trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        rollout_func=make_rollout(asked, tokenizer),
        callbacks=[obey],
    )
    obey.trainer.train()


if __name__ == "__main__":
    main()

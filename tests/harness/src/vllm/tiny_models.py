"""Makes small models of random weights that vLLM can load: python tiny_models.py FOLDER.

Their tokens are noise, but greedy ones repeat. `experts` is a mixture of experts; `dense-1` and
`dense-2` differ in their weights alone.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 512
CONTEXT = 2048
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    # Far apart, so that the order of a sum does not change the most likely token.
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(str(number) for number in range(2000))], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>"
    )


def save(folder, model_class, config, seed):
    torch.manual_seed(seed)
    model_class(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def main():
    folder = Path(sys.argv[1])
    save(folder / "experts", Qwen3MoeForCausalLM, Qwen3MoeConfig(**SHAPE, **EXPERTS), 1)
    for seed in (1, 2):
        save(folder / f"dense-{seed}", Qwen3ForCausalLM, Qwen3Config(**SHAPE), seed)


main()

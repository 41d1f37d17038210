"""A real engine that serves a language model: `transformers serve` with continuous batching, on random weights."""

from __future__ import annotations

import random
import string
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from processes import free_port, running, wait_for

START_S = 120.0


@contextmanager
def real_engine(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve a tiny Llama from files under `folder` on loopback; yields the URL and the model's name.

    It has no token that ends a text, so that answers have the length that was asked for.
    """
    model, log = "tiny-llama", folder / "server.log"
    _write_model(folder / model)
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", model, "--continuous-batching"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with running(command, log, folder=folder, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1") as server:
        wait_for("transformers serve answers", START_S, lambda: _answers(f"{url}/health"), log)
        yield url, model
        server.kill()  # it would go on batching after Ctrl-C


def _answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=1).is_success
    return False


def _write_model(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    draw = random.Random(0)
    words = ["".join(draw.choices(string.ascii_lowercase, k=5)) for _ in range(3000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(words, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
        bos_token_id=0, eos_token_id=None, pad_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)

"""Published language models: names that lead to their shapes, quantizations that names state, and rows of configs."""

from __future__ import annotations

import csv
import re
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.errors import InvalidInput
from predictor.serving.models import (
    Sharding,
    find_served_model,
    holds_text_alone,
    hub_id_of,
    quantization_of_hub_id,
    row_of,
    served_models,
    sharding_of,
    state_numbers,
)
from predictor.serving.stored_weights import quantization_of_config

NAMES = served_models()
KEPT = {
    "": None, "-Instruct": None, "-it": None, "-Base": None, "-FP8": "fp8", "-AWQ": "int4",
    "-Instruct-GPTQ-Int4": "int4", "-GPTQ-Int8": "int8", "-GGUF": None,
    "-Q4_K_M-GGUF": "int4", "-unsloth-bnb-4bit": "int4", "-MLX-8bit": "int8",
    "-NVFP4": "nvfp4", "-w-mxfp4-a-fp8": "mxfp4", "-quantized.w8a8": "int8", "-quantized.w4a16": "int4",
    "-BF16": "bfloat16",
}  # fmt: skip
"""Ends of hub ids, and the quantization that they state."""


@given(
    name=st.sampled_from(NAMES),
    publisher=st.sampled_from(["", "unsloth/", "RedHatAI/", "NousResearch/", "bartowski/Qwen_", "nvidia/"]),
    end=st.sampled_from(sorted(KEPT)),
    upper=st.booleans(),
)
def test_every_name_leads_to_its_own_row_however_it_is_kept(
    name: str, publisher: str, end: str, *, upper: bool
) -> None:
    hub_id = publisher + (name.upper() if upper else name) + end
    assert find_served_model(hub_id) is find_served_model(name)
    assert quantization_of_hub_id(hub_id) == KEPT[end]


def test_names_and_hub_ids_lead_to_the_figures_of_their_rows() -> None:
    rows = list(csv.DictReader(files("predictor.serving").joinpath("models.csv").read_text("utf-8").splitlines()))
    assert [row["name"] for row in rows] == NAMES
    for row in rows:
        for name in (row["name"], row["source"].split()[0]):
            found = find_served_model(name)
            assert found is not None, name
            stated = [float(row[column]) for column in ("layers", "width", "cache_per_token", "context")]
            assert [found.layers, found.width, found.kept_per_token, found.context] == stated, name
            assert found.parameters == pytest.approx(float(row["parameters_b"]) * 1e9), name


@pytest.mark.parametrize(
    ("hub_id", "name"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("bartowski/google_gemma-3-27b-it-GGUF", "gemma-3-27b"),
        ("microsoft/Phi-4-reasoning-plus", "phi-4-reasoning"),
        ("microsoft/Phi-4-mini-instruct", "phi-4-mini"),
        ("zai-org/GLM-4.5-Air-FP8", "glm-4.5-air"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507-FP8", "qwen3-30b-a3b-thinking-2507"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "deepseek-r1-0528-qwen3-8b"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2"),
        ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen2.5-7b-instruct-1m"),
        ("CohereForAI/c4ai-command-r-plus-08-2024", "command-r-plus"),
        ("internlm/internlm2_5-7b-chat", "internlm2-5-7b"),
        ("microsoft/Phi-4-multimodal-instruct", None),
        ("microsoft/Phi-4-mini-flash-reasoning", None),
        ("zai-org/GLM-4.6V-Flash", None),
        ("cerebras/MiniMax-M2-REAP-162B-A10B", None),
        ("mistralai/Mistral-Large-3-675B-Instruct-2512", "mistral-large-3"),
        ("mistralai/Mistral-Large-3-675B-Instruct-2512-NVFP4", "mistral-large-3"),
        ("mistralai/Mistral-Large-3", "mistral-large-3"),
        ("mistralai/Mistral-Large-5", None),
        ("deepseek-ai/DeepSeek-V4-Flash-0731", "deepseek-v4-flash"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "llama-3.3-nemotron-super-49b"),
        ("mistralai/Mistral-Large-Instruct-2411", "mistral-large"),
        ("turboderp/mistral-large-4.0bpw-exl2", "mistral-large"),
        ("yuhuili/Llama-3.1-8B-EAGLE3", None),
        ("Qwen/Qwen3-32Bx", None),
        ("bert-base", None),
    ],
)
def test_names_of_other_models_lead_elsewhere(hub_id: str, name: str | None) -> None:
    assert find_served_model(hub_id) == (None if name is None else find_served_model(name))


def test_a_name_without_its_publisher_leads_to_a_hub_id() -> None:
    for name, hub_id in {
        "qwen3-32b": "Qwen/Qwen3-32B",
        "qwen3:32b": "Qwen/Qwen3-32B",
        "Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
        "unsloth/Qwen3-32B": "unsloth/Qwen3-32B",
        "Qwen3-32B-AWQ": "Qwen3-32B-AWQ",
        "my-finetune": "my-finetune",
    }.items():
        assert hub_id_of(name) == hub_id


def test_of_models_that_see_the_part_for_text_is_held() -> None:
    assert holds_text_alone("google/gemma-3-27b-it")
    assert not holds_text_alone("google/gemma-3-1b-it")


def test_parameters_are_near_the_size_that_names_state() -> None:
    """The published counts; those of the last lines include what reads images or foretells tokens."""
    for name, billions in {
        "qwen3-8b": 8.2, "qwen3-30b-a3b": 30.5, "qwen2.5-0.5b": 0.49, "llama-3.2-1b": 1.24, "gemma-2-27b": 27.2,
        "glm-4.5": 355, "qwen3-coder-480b-a35b": 480, "deepseek-v2-lite": 15.7, "mixtral-8x22b": 141,
        "falcon-40b": 41.3,
        "opt-66b": 66, "phi-4": 14.7, "mistral-small-24b": 23.6, "command-r-plus": 104,
        "deepseek-v4-flash": 284, "deepseek-v4-pro": 1600, "kimi-k3": 2780, "kimi-linear-48b-a3b": 49.2,
        "minimax-m3": 428, "mimo-v2-flash": 309, "mistral-small-4": 119, "mistral-large-3": 675,
        "mistral-large-4-1t": 1050, "llama-3.3-nemotron-super-49b": 49, "granite-4.0-h-small": 32,
        "granite-4.0-h-tiny": 7, "granite-4.0-h-1b": 1.46, "falcon-h1-0.5b": 0.52, "lfm2-350m": 0.354484,
        "lfm2-8b-a1b": 8.3, "gemma-4-12b": 12, "seed-oss-36b": 36, "hunyuan-a13b": 80, "exaone-4.0-32b": 32,
        "ernie-4.5-300b-a47b": 300, "ernie-4.5-0.3b": 0.36, "hy3-preview": 295, "solar-open-100b": 102, "a.x-k1": 519,
        "jamba-v0.1": 52, "qwen3.5-9b": 9, "glm-5.3": 744,
        "llama-4-scout-17b-16e": 109, "qwen3.5-35b-a3b": 35, "nemotron-3-ultra-550b-a55b": 550, "glm-4.5v": 106,
        "ministral-3-8b": 8.9 - 0.4, "gemma-4-e2b": 5.1 - 0.45, "gemma-4-e4b": 8 - 0.45,
        "ministral-3-14b": 13.9 - 0.4, "exaone-4.5-33b": 33, "glm-5.3-flash": 320 - 7.2,
    }.items():  # fmt: skip
        found = find_served_model(name)
        assert found is not None
        assert found.parameters / 1e9 == pytest.approx(billions, rel=0.02), name


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 65536,
}  # fmt: skip


def test_a_config_of_a_known_shape_has_its_figures_and_a_context_of_its_own() -> None:
    row = row_of("nvidia/Llama-3.1-8B-UltraLong-Instruct", LLAMA)
    assert (row["name"], row["parameters_b"], row["context"]) == ("llama-3.1-8b-ultralong", "8.03", "65536")
    assert row["source"].endswith("config.json: 32 layers; 32 heads and 8 key-value heads of 128")
    assert row["quantization"] == ""
    assert row_of("a/b", {"model_type": "glm_moe_dsa", "num_hidden_layers": 2, "index_topk": 8})["source"].endswith(
        "8 of 256 experts; sparse attention"
    )
    stored = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert row_of("a/b", {**LLAMA, **stored})["quantization"] == "fp8"
    # Repositories of ModelOpt may state it in another file.
    assert row_of("nvidia/b-FP8", LLAMA)["quantization"] == "fp8"
    assert row_of("nvidia/b-BF16", LLAMA)["quantization"] == ""
    larger = row_of("a/b", {**LLAMA, "vocab_size": 200_000})
    assert larger["parameters_b"] == larger["active_b"] == "8.618"


def test_rows_and_configs_say_what_is_split_over_devices() -> None:
    row = row_of("a/b", LLAMA)
    assert (row["model_type"], row["heads"], row["expert_width"]) == ("llama", "32", "")
    assert sharding_of(LLAMA) == sharding_of("llama-3.1-8b") == Sharding("llama", 32)
    qwen = {"model_type": "qwen3_moe", "num_attention_heads": 64, "num_experts": 128, "moe_intermediate_size": 1536}
    assert sharding_of(qwen) == sharding_of("Qwen/Qwen3-235B-A22B-FP8") == Sharding("qwen3_moe", 64, 1536)
    assert (
        sharding_of({"model_type": "mixtral", "num_local_experts": 8, "intermediate_size": 14336}).expert_width == 14336
    )
    seeing = {"model_type": "gemma3", "text_config": {"num_attention_heads": 16, "intermediate_size": 15360}}
    assert sharding_of(seeing) == sharding_of("gemma-3-12b") == Sharding("gemma3", 16)
    assert sharding_of("gpt2").model_type == "gpt2"
    assert sharding_of("no-model-of-this-name") == Sharding()


def test_the_keys_of_an_index_are_kept_beside_the_latent_vectors() -> None:
    """DeepSeek V3.2 chooses tokens by keys of 128 numbers in each layer, 22 % more than the latent vectors alone."""
    sparse = {"model_type": "glm_moe_dsa", "num_hidden_layers": 2}
    assert row_of("a/b", sparse)["cache_per_token"] == str(2 * (512 + 64 + 128))
    shared = {**sparse, "indexer_types": ["full", "shared"]}
    assert row_of("a/b", shared)["cache_per_token"] == str(2 * (512 + 64) + 128)


def test_tables_of_which_a_token_needs_a_row_are_memory_and_no_reading() -> None:
    """Gemma 4 E2B has a table of 262,144 rows of 256 numbers for each of 35 layers."""
    found = find_served_model("google/gemma-4-E2B-it")
    assert found is not None
    assert found.unread_parameters == pytest.approx(262_144 * 256 * 35, rel=1e-3)
    assert found.parameters - found.unread_parameters == pytest.approx(found.active_parameters)
    assert found.read_parameters(8) == pytest.approx(2.28e9)
    tables = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 1000, "num_hidden_layers": 2}
    row = row_of("a/b", {"model_type": "gemma4", "text_config": {**tables, "num_kv_shared_layers": 0}})
    assert float(row["unread_b"]) == pytest.approx(1000 * 8 * 2 / 1e9)


def test_an_index_bounds_what_is_read_and_computed_of_long_prompts() -> None:
    """DeepSeek V3.2 attends to 2,048 tokens. The index alone looks at all of them, with 64 heads of 128."""
    sparse = find_served_model("deepseek-v3.2")
    assert sparse is not None
    assert sparse.read(100_000, 0.001) == pytest.approx(61 * (576 * 2048 + 128 * 100_000), rel=1e-5)
    assert sparse.multiply_adds(100_000, 0.001) == pytest.approx(
        61 * (128 * 1088 * 2048 + 64 * 128 * 100_000), rel=1e-5
    )
    assert sparse.held(100_000) == 61 * (576 + 128) * 100_000
    dense = find_served_model("deepseek-v3")
    assert dense is not None
    assert sparse.read(1_000, 100) - dense.read(1_000, 100) == 61 * 128 * 1_050


def test_layers_of_deepseek_v4_keep_a_vector_for_several_tokens() -> None:
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    row = row_of("a/b", {"model_type": "deepseek_v4", "num_hidden_layers": 3, "layer_types": kinds})
    assert float(row["cache_per_token"]) == (512 + 128) / 4 + 512 / 128
    assert (float(row["cache_in_window"]), float(row["window"])) == (3 * 512, 128)
    assert float(row["chosen_tokens"]) == 512 * 4
    assert float(row["attended"]) == 64 * 2 * 512 / 4
    assert float(row["index_attended"]) == 64 * 128 / 4 + 64 * 2 * 512 / 128
    assert "1 of them to a vector for 4 more, 1 of them to a vector for 128 more" in row["source"]


def test_layers_beside_sparse_ones_attend_to_all() -> None:
    """The first layers of MiniMax M3 have no index: what they keep is read of every token."""
    kinds = ["full_attention", "minimax_m3_sparse"]
    row = row_of("a/b", {"model_type": "minimax_m3_vl", "text_config": {"num_hidden_layers": 2, "layer_types": kinds}})
    of_layer = 2 * 4 * 128
    assert float(row["cache_per_token"]) == 2 * of_layer + 128
    assert (float(row["chosen_tokens"]), float(row["index_per_token"])) == (16 * 128, of_layer + 128)
    assert float(row["attended"]) == 2 * 64 * 128
    assert float(row["index_attended"]) == 2 * 64 * 128 + 4 * 128


def test_experts_that_no_layer_has_are_not_counted() -> None:
    """The config of Nemotron-H names experts, but its dense models have none."""
    dense = {"model_type": "nemotron_h", "layers_block_type": ["mamba", "attention", "mlp"], "num_hidden_layers": 3}
    assert row_of("a/b", dense)["expert_share"] == "1"


def test_fields_that_a_config_lists_by_layer_count_where_all_are_equal() -> None:
    listed = {"model_type": "hunyuan_v1_moe", "num_hidden_layers": 2, "num_experts": 8, "head_dim": 128}
    assert row_of("a/b", {**listed, "moe_topk": [2, 2]})["expert_share"] == "0.25"


def test_values_may_be_smaller_than_keys() -> None:
    """Keys of MiMo V2 have 192 numbers, values 128."""
    row = row_of("a/b", {"model_type": "mimo_v2_flash", "num_hidden_layers": 1, "layer_types": ["full_attention"]})
    assert float(row["cache_per_token"]) == 4 * (192 + 128)


def test_states_of_linear_layers_are_those_of_the_config() -> None:
    row = row_of(
        "a/b", {"model_type": "qwen3_next", "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2}
    )
    assert float(row["state"]) == 3 * 32 * 128 * 128
    assert state_numbers("Qwen/Qwen3-Next-80B-A3B-Instruct") == 36 * 32 * 128 * 128
    assert state_numbers("qwen3-8b") == 0


def test_heads_of_rows_are_those_that_their_sources_state() -> None:
    rows = csv.DictReader(files("predictor.serving").joinpath("models.csv").read_text("utf-8").splitlines())
    for row in rows:
        name = row["name"]
        stated = re.search(r"(\d+) heads(?: and (\d+) key-value)?", row["source"])
        sharding = sharding_of(name)
        assert sharding.heads > 0, name
        if stated is not None:
            assert sharding.heads == int(stated[1]), name
            assert float(row["cache_parts"]) in (1, float(stated[2] or stated[1])), name
        assert (sharding.expert_width > 0) <= (float(row["expert_share"]) < 1), name


def test_rows_say_what_layers_keep() -> None:
    gemma = {"model_type": "gemma2", "num_hidden_layers": 4, "sliding_window": 512}
    assert "4 layers of which 2 look back 512 tokens" in row_of("google/gemma", gemma)["source"]
    qwen = {"model_type": "qwen3_next", "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2}
    assert (
        "4 layers of which 1 attend to all; 16 heads and 2 key-value heads of 256; 2 of 8 experts"
        in (row_of("Qwen/next", qwen)["source"])
    )
    seeing = {
        "model_type": "qwen3_vl",
        "text_config": {"num_hidden_layers": 2, "vocab_size": 1000},
        "vision_config": {"depth": 2},
    }
    seen = row_of("Qwen/VL", seeing)
    text = row_of("Qwen/text", {"model_type": "qwen3", "vocab_size": 1000, "num_hidden_layers": 2, "head_dim": 128})
    assert seen["source"].endswith("; its part for text")
    assert seen["parameters_b"] == text["parameters_b"]
    with pytest.raises(InvalidInput, match="a/bert generates no text"):
        row_of("a/bert", {"model_type": "bert"})


@pytest.mark.parametrize(
    ("stored", "quantization"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}, "targets": ["Linear"]}},
            },
            "mxfp4",
        ),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "float"}, "targets": ["lm_head"]},
                    "group_1": {"weights": {"num_bits": 8, "type": "float"}, "targets": ["q_proj", "k_proj"]},
                },
            },
            "fp8",
        ),
        ({"quant_method": "compressed-tensors"}, None),
        (None, None),
    ],
)
def test_a_config_states_how_its_weights_are_stored(stored: object, quantization: str | None) -> None:
    assert quantization_of_config({"quantization_config": stored}) == quantization
    # Of a model that reads images the part for text states it.
    assert quantization_of_config({"text_config": {"quantization_config": stored}}) == quantization

"""Model presets and Hugging Face configurations."""

import json
from pathlib import Path

import pytest

from scenarios.errors import ScenarioError
from scenarios.reading.models.huggingface import read_model
from scenarios.reading.models.model_presets import load_presets
from scenarios.workloads.loading import load_scenario
from sim.training.spec.models.latent import LatentAttention
from sim.training.spec.models.window import SlidingWindow

PARAMETERS = {
    # Hugging Face's counts of the published weights
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "mistral-7b": 7_241_732_096,
    "qwen-2.5-0.5b": 494_032_768,
    "qwen-2.5-7b": 7_615_616_512,
    "qwen-2.5-72b": 72_706_203_648,
    "qwen-1.5-moe-a2.7b": 14_315_784_192,
    "qwen-3-0.6b": 596_049_920,
    "qwen-3-8b": 8_190_735_360,
    "qwen-3-32b": 32_762_123_264,
    "qwen-3-30b-a3b": 30_532_122_624,
    "qwen-3-235b-a22b": 235_093_634_560,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "deepseek-v3": 671_026_419_200 - 58 * 256,  # without the biases that balance 58 layers' experts
}

SC21 = ["1.7b", "3.6b", "7.5b", "18.4b", "39.1b", "76.1b", "145.6b", "310.1b", "529.6b", "1008b"]
KORTHIKANTI = {"22b": 22, "175b": 175, "530b": 530, "1t": 1008}
GPT3 = {"1.3b": 1.3, "6.7b": 6.7, "13b": 13, "175b": 175}

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    "vocab_size": 128256, "rope_theta": 500000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "rms_norm_eps": 1e-05, "attention_bias": False, "attention_dropout": 0.0, "pretraining_tp": 1,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL = LLAMA | {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 32768, "vocab_size": 32000, "rope_theta": 1000000.0, "rope_scaling": None,
    "sliding_window": None, "router_aux_loss_coef": 0.02, "output_router_logits": False,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048,
    "intermediate_size": 10944, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
    "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "max_position_embeddings": 163840, "vocab_size": 102400, "rope_theta": 10000, "hidden_act": "silu",
    "attention_bias": False, "attention_dropout": 0.0, "pretraining_tp": 1, "tie_word_embeddings": False,
    "rope_scaling": {"type": "yarn", "factor": 40},
}  # fmt: skip
DEEPSEEK_V3 = DEEPSEEK | {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "n_group": 8, "topk_group": 4, "scoring_func": "sigmoid", "vocab_size": 129280,
    "num_nextn_predict_layers": 1, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"},
}  # fmt: skip
MISTRAL = LLAMA | {
    "model_type": "mistral", "sliding_window": 4096, "vocab_size": 32000, "rope_theta": 10000.0, "rope_scaling": None,
    "max_position_embeddings": 32768,
}  # fmt: skip
QWEN = LLAMA | {
    "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": False,
    "max_window_layers": 28, "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip
QWEN_25 = QWEN | {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
}  # fmt: skip
QWEN_3 = QWEN | {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128,
    "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True,
}  # fmt: skip
QWEN_2_MOE = QWEN | {
    "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 60,
    "num_experts_per_tok": 4, "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1,
    "norm_topk_prob": False,
}  # fmt: skip
QWEN_3_MOE = QWEN | {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
}  # fmt: skip
GEMMA_2 = {
    "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "head_dim": 256,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 8192, "vocab_size": 256000,
    "rope_theta": 10000.0, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False, "attention_dropout": 0.0, "sliding_window": 4096, "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
}  # fmt: skip
GEMMA_3 = {
    "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "max_position_embeddings": 32768,
    "vocab_size": 262144, "rope_theta": 1000000, "rope_local_base_freq": 10000, "sliding_window": 512,
    "sliding_window_pattern": 6, "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": None,
    "final_logit_softcapping": None, "attention_bias": False, "attention_dropout": 0.0,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "n_ctx": 1024,
    "vocab_size": 50257, "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
}  # fmt: skip


def load(write, tmp_path: Path, config: dict[str, object], **keys: object):
    """Return the model of a scenario beside a config.json."""
    (tmp_path / "config.json").write_text(json.dumps(config, indent=2))
    model = json.dumps({"huggingface": "config.json", **keys})
    text = f"name: a\ncluster: {{node: local-cpu, num_nodes: 1, devices_per_node: 1}}\nmodel: {model}\n"
    return load_scenario(write(text + "training: {global_batch_size: 1, microbatch_size: 1}\n")).job.model


def preset_model(write, name: str):
    """Return the model of a preset."""
    text = f"name: a\ncluster: {{node: local-cpu, num_nodes: 1, devices_per_node: 1}}\nmodel: {{preset: {name}}}\n"
    return load_scenario(write(text + "training: {global_batch_size: 1, microbatch_size: 1}\n")).job.model


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_presets_have_the_published_number_of_parameters(write, name: str, parameters: int) -> None:
    """Counted from the preset's shapes, to the last parameter."""
    assert preset_model(write, name).num_parameters == parameters


@pytest.mark.parametrize("size", SC21)
def test_sc21_presets_have_the_published_number_of_parameters(write, size: str) -> None:
    """The name says billions of parameters, as table 1 prints them."""
    billions = preset_model(write, f"megatron-sc21-{size}").num_parameters / 1e9
    assert billions == pytest.approx(float(size[:-1]), abs=0.051)


@pytest.mark.parametrize(("name", "billions"), [
    *((f"megatron-sp-{size}", billions) for size, billions in KORTHIKANTI.items()),
    *((f"gpt-3-{size}", billions) for size, billions in GPT3.items()),
])  # fmt: skip
def test_gpt_presets_have_about_the_named_number_of_parameters(write, name: str, billions: float) -> None:
    """Names are rounded; embeddings are in or out of them."""
    assert preset_model(write, name).num_parameters / 1e9 == pytest.approx(billions, rel=0.03)


def test_every_preset_cites_its_source() -> None:
    """A source with a year and where to find it, for each of the models that are promised."""
    presets = load_presets()
    assert set(presets) == {
        *PARAMETERS,
        *(f"megatron-sc21-{size}" for size in SC21),
        *(f"megatron-sp-{size}" for size in KORTHIKANTI),
        *(f"gpt-3-{size}" for size in GPT3),
    }
    assert all("arXiv" in preset.source and "20" in preset.source for preset in presets.values())


def test_mixtral_configuration_is_read(write, tmp_path) -> None:
    """Mixtral's config.json gives the same model as the preset; a llama with experts is still refused."""
    assert load(write, tmp_path, MIXTRAL, sequence_length=4096) == preset_model(write, "mixtral-8x7b")
    with pytest.raises(ScenarioError, match="mixture of experts"):
        load(write, tmp_path, LLAMA | {"num_local_experts": 8})


def test_a_token_of_mixtral_uses_a_part_of_it(write) -> None:
    """12.9 billion of 46.7 (Jiang et al. 2024, section 2.1): embedding, attention, router and two of eight experts."""
    model = preset_model(write, "mixtral-8x7b")
    products = model.num_layers * (model.attention_products + model.experts.products(4096, 3))
    assert products + 2 * 32000 * 4096 == pytest.approx(12.9e9, rel=0.01)


def test_llama_configuration_is_read(write, tmp_path) -> None:
    """A Llama 3 config.json gives the same model as the preset; scaled rotary angles change no cost."""
    assert load(write, tmp_path, LLAMA) == preset_model(write, "llama-3-8b")


def test_gpt2_configuration_is_read(write, tmp_path) -> None:
    """GPT-2 XL's config.json gives its 1,557,611,200 parameters, tied, with one dropout probability."""
    model = load(write, tmp_path, GPT2)
    assert model.num_parameters == 1_557_611_200
    assert (model.family, model.tied_embeddings, model.dropout) == ("gpt", True, 0.1)


def test_latent_attention_of_a_configuration_is_read(write, tmp_path) -> None:
    """A DeepSeek-V2 without experts has the stated widths; what compresses queries may be null, as in V2-Lite."""
    latent = {"kv_rank": 512, "head_size": 128, "rotary_head_size": 64, "value_head_size": 128}
    assert load(write, tmp_path, DEEPSEEK).latent_attention == LatentAttention(**latent)
    compressed = load(write, tmp_path, DEEPSEEK | {"q_lora_rank": 1536, "model_type": "deepseek_v3"})
    assert compressed.latent_attention == LatentAttention(q_rank=1536, **latent)
    assert (compressed.num_kv_heads, compressed.ffn_hidden_size) == (16, 10944)


def test_deepseek_v3_configuration_is_read(write, tmp_path) -> None:
    """Its config.json gives the preset's model, but for the length of sequences; scores of experts change no shape."""
    assert load(write, tmp_path, DEEPSEEK_V3, sequence_length=4096) == preset_model(write, "deepseek-v3")


@pytest.mark.parametrize(("config", "preset"), [
    (MISTRAL, "mistral-7b"), (QWEN_25, "qwen-2.5-7b"), (QWEN_2_MOE, "qwen-1.5-moe-a2.7b"), (QWEN_3, "qwen-3-0.6b"),
    (QWEN_3_MOE, "qwen-3-30b-a3b"), (GEMMA_2, "gemma-2-2b"), (GEMMA_3, "gemma-3-1b"),
])  # fmt: skip
def test_configurations_of_newer_models_are_read(write, tmp_path, config: dict[str, object], preset: str) -> None:
    """Their config.json gives the preset's model, but for the length of sequences."""
    expected = preset_model(write, preset)
    assert load(write, tmp_path, config, sequence_length=expected.sequence_length) == expected


def test_rotary_bases_of_gemma_3_may_be_nested(write, tmp_path) -> None:
    """The newer form of the file states them by kind of layer."""
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    plain = {key: value for key, value in GEMMA_3.items() if not key.startswith("rope")}
    assert load(write, tmp_path, plain | {"rope_parameters": nested}) == load(write, tmp_path, GEMMA_3)


def test_window_of_a_qwen_is_of_all_layers_or_of_none(write, tmp_path) -> None:
    """``use_sliding_window`` turns it on, from layer ``max_window_layers`` on."""
    on = QWEN_25 | {"use_sliding_window": True, "sliding_window": 1024}
    windows = [load(write, tmp_path, on | {"max_window_layers": first}).sliding_window for first in (0, 28)]
    assert windows == [SlidingWindow(size=1024), None]


def test_configuration_keys_are_overridden(write, tmp_path) -> None:
    """The scenario's keys stand over the file's, here a shorter sequence and a padded vocabulary."""
    model = load(write, tmp_path, GPT2, sequence_length=512, vocab_size=50304)
    assert (model.sequence_length, model.vocab_size, model.num_layers) == (512, 50304, 48)


def test_missing_keys_have_hugging_face_defaults(write, tmp_path) -> None:
    """Old configurations have no key heads and no rope_theta; new ones nest the latter."""
    old = {key: LLAMA[key] for key in LLAMA if key not in {"num_key_value_heads", "rope_theta", "tie_word_embeddings"}}
    model = load(write, tmp_path, old)
    assert (model.num_kv_heads, model.rotary_base, model.tied_embeddings) == (32, 10000.0, False)
    nested = load(write, tmp_path, {**old, "rope_parameters": {"rope_theta": 123.0}, "tie_word_embeddings": True})
    assert (nested.rotary_base, nested.tied_embeddings) == (123.0, True)


@pytest.mark.parametrize(("base", "key", "value", "words"), [
    (LLAMA, "model_type", "bloom", "models of type 'bloom' (text) are not modelled"),
    (LLAMA, "model_type", "falcon", "known: deepseek_v2, deepseek_v3, gemma2, gemma3_text, gpt2, llama, mistral"),
    (LLAMA, "model_type", None, "models of type nothing"),
    (LLAMA, "model_type", "falcon", "write its shape as keys: family, num_layers"),
    (LLAMA, "sliding_window", 4096, "sliding-window attention"),
    (LLAMA, "sliding_window", 4096, "write null here and set model.sequence_length"),
    (LLAMA, "attention_bias", True, "biases in the attention"),
    (LLAMA, "mlp_bias", True, "biases in the feed-forward"),
    (LLAMA, "num_local_experts", 8, "mixture of experts"),
    (LLAMA, "quantization_config", {"bits": 4}, "quantized weights"),
    (LLAMA, "hidden_act", "gelu", '"gelu" is not modelled'),
    (LLAMA, "pretraining_tp", 2, "2 is not modelled"),
    (LLAMA, "attention_dropout", 0.1, "no dropout"),
    (QWEN_25 | {"use_sliding_window": True}, "max_window_layers", 12, "layers from number 12 on have a window"),
    (QWEN_3, "attention_bias", True, "biases in the attention"),
    (QWEN_3_MOE, "decoder_sparse_step", 2, "every layer has experts"),
    (QWEN_3_MOE, "mlp_only_layers", [3], "every layer has experts"),
    (GEMMA_2, "hidden_activation", "gelu", "the feed-forward layer is GeGLU"),
    (GEMMA_3, "attn_logit_softcapping", 50.0, "Gemma 3 has no caps"),
    (LLAMA, "num_hidden_layers", "32", "a whole number of 1 or more belongs here"),
    (LLAMA, "num_hidden_layers", None, "required and missing"),
    (LLAMA, "num_attention_heads", 0, "a whole number of 1 or more"),
    (LLAMA, "tie_word_embeddings", "no", "true or false belongs here"),
    (LLAMA, "rope_theta", "big", "a number belongs here"),
    (LLAMA, "rope_theta", 10**400, "a number belongs here"),
    (LLAMA, "rope_theta", float("nan"), "a number belongs here, not nan"),
    (LLAMA, "num_attention_heads", 33, "hidden_size 4096 does not divide by num_attention_heads 33"),
    (LLAMA, "num_attention_heads", 10**30, "must be at most 1,000,000,000,000, got 1000"),
    (LLAMA, "head_dim", 10**4000, "must be at most 1,000,000,000,000, got 1000"),
    (DEEPSEEK, "num_key_value_heads", 2, "2 is not modelled: every head has keys of its own"),
    (DEEPSEEK, "kv_lora_rank", None, "required and missing"),
    (DEEPSEEK, "v_head_dim", "128", "a whole number of 1 or more belongs here"),
    (DEEPSEEK_V3, "moe_layer_freq", 2, "all layers after the first dense ones have experts"),
    (DEEPSEEK_V3, "quantization_config", {"quant_method": "awq"}, "only fp8 is read over"),
    (DEEPSEEK_V3, "num_experts_per_tok", None, "required and missing"),
    (DEEPSEEK, "hidden_act", "gelu", '"gelu" is not modelled'),
    (GPT2, "resid_pdrop", float("nan"), "a number belongs here, not nan"),
    (GPT2, "resid_pdrop", 0.2, "one dropout probability is modelled"),
    (GPT2, "activation_function", "relu", "the activation is GELU"),
    (GPT2, "scale_attn_by_inverse_layer_idx", True, "scaled by layer"),
    (GPT2, "add_cross_attention", True, "cross-attention"),
])  # fmt: skip
def test_configuration_that_is_not_modelled_is_refused_by_name(
    write, tmp_path, base, key: str, value: object, words: str
) -> None:
    """Features that are not modelled and values that are none are refused with the file, line and key."""
    with pytest.raises(ScenarioError) as caught:
        load(write, tmp_path, {**base, key: value})
    assert words in str(caught.value)
    assert Path(caught.value.file) == tmp_path / "config.json"
    line = (tmp_path / "config.json").read_text().splitlines()[caught.value.line - 1]
    assert line.startswith(f'  "{caught.value.key}":')


def test_configuration_that_repeats_a_key_is_refused(write, tmp_path) -> None:
    """JSON's last word would win in silence: the key is named, with the line where it stands first."""
    path = write("name: x\n")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2",\n "n_embd": 8,\n "n_embd": 9}')
    with pytest.raises(ScenarioError, match=r"config\.json:2: n_embd: the key is written twice"):
        read_model(path.parent / "config.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, '{"a": ' + "1" * 5000 + "}", "\0"])
def test_file_that_is_no_configuration_is_refused(write, tmp_path, text: str) -> None:
    """Anything but one JSON mapping of a model is an input error."""
    (tmp_path / "config.json").write_text(text)
    path = write()
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, [f"model={{huggingface: {tmp_path}/config.json}}"])
    assert caught.value.file == str(tmp_path / "config.json")

"""Which parameters of real transformers Muon steps: by their modules, whatever the model calls them."""

import pytest
import torch
import transformers

import optim
from optim import configure_param_groups
from tests.optim.groups.models import by_name, names_of

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
MIXTURE = {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4}


def causal(config):
    return transformers.AutoModelForCausalLM.from_config(config)


def endings(model, algorithm, **options):
    algorithms = by_name(configure_param_groups(model, matrices="muon", **options), "algorithm")
    return {".".join(name.split(".")[-2:]) for name, other in algorithms.items() if other == algorithm}


def test_gpt2():
    """Its layers are Conv1D, whose rows are inputs; its head is its embedding."""
    model = causal(transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100))
    assert endings(model, "muon") == {"c_attn.weight", "c_proj.weight", "c_fc.weight"}
    groups = configure_param_groups(model, matrices="muon")
    assert {group["algorithm"] for group in groups if group.get("transposed")} == {"muon"}
    optimizer = optim.Muon(groups, lr=1e-3, adamw={"lr": 1e-3})
    with pytest.raises(ValueError, match="transposed"):
        optim.Muon(groups, adjust_lr_fn="original")
    loss = model(torch.arange(12)[None], labels=torch.arange(12)[None]).loss
    loss.backward()
    optimizer.step()
    assert model(torch.arange(12)[None], labels=torch.arange(12)[None]).loss < loss


def test_llama():
    """The head has the shape of the embedding, and so no other layer has."""
    config = transformers.LlamaConfig(**SMALL, tie_word_embeddings=False)
    assert endings(causal(config), "adamw") == {
        "embed_tokens.weight",
        "lm_head.weight",
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        "norm.weight",
    }


def test_mixtral():
    """Stacks of experts are matrices, and routers are not."""
    model = causal(transformers.MixtralConfig(**MIXTURE))
    muon = endings(model, "muon")
    assert {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"} < muon
    assert {"experts.gate_up_proj", "experts.down_proj"} < muon and "gate.weight" in endings(model, "adamw")


def model_of(name, **config):
    """A model without memory, as only its structure counts."""
    kind = getattr(transformers, name)
    with torch.device("meta"):
        return kind(kind.config_class(**config))


def layers(model, reason, **options):
    """The last two pieces of the names of the layers whose weights are where they are for a reason."""
    groups = configure_param_groups(model, matrices="muon", **options)
    reasons = {name: why for group in groups for name, why in zip(names_of(group), group["reasons"])}
    return {".".join(name.removesuffix(".weight").split(".")[-2:]) for name, why in reasons.items() if why == reason}


ONE = {"num_hidden_layers": 1}
SWITCH = {"num_layers": 1, "num_decoder_layers": 1, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
GEMMA = {**ONE, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64}
DBRX = {"n_layers": 1, "attn_config": {"rope_theta": 1e4}}
DENSE_FIRST = {"num_hidden_layers": 2, "first_k_dense_replace": 1}
FUSED = "Linear, fused without split_sizes"


@pytest.mark.parametrize(
    ("name", "config", "routers", "gates"),
    [
        ("Gemma4ForCausalLM", GEMMA, {"router.proj"}, {"0.per_layer_input_gate"}),
        ("SwitchTransformersForConditionalGeneration", SWITCH, {"router.classifier"}, {"expert_0.wi"}),
        ("DbrxForCausalLM", DBRX, {"router.layer"}, {"attn.out_proj"}),
        ("AfmoeForCausalLM", {"num_hidden_layers": 3}, {"router.gate"}, {"mlp.gate_proj"}),
        ("Llama4ForCausalLM", ONE, {"feed_forward.router"}, {"shared_expert.gate_proj"}),
        ("BailingHybridForCausalLM", DENSE_FIRST, {"mlp.gate"}, {"forget_gate.f_proj"}),
        ("KimiLinearForCausalLM", {"num_hidden_layers": 2}, {"mlp.gate"}, {"forget_gate.f_b_proj"}),
        ("DFineForObjectDetection", {}, set(), {"gateway.gate"}),
        ("Gemma3nForCausalLM", {}, {"altup.modality_router"}, {"mlp.gate_proj"}),
        ("DogeForCausalLM", {**ONE, "is_moe": True}, {"mlp.router_gate"}, {"mlp.gate_proj"}),
    ],
)
def test_routers_and_other_gates(name, config, routers, gates):
    rules = [{"params": "*experts.mlp*", "algorithm": "adamw"}] if name.startswith("Dbrx") else []
    model = model_of(name, **config)
    assert layers(model, "router", rules=rules, output_head=()) == routers
    assert gates <= layers(model, "Linear", rules=rules, output_head=())


@pytest.mark.parametrize("name", ["GptOssForCausalLM", "AriaTextForCausalLM", "Llama4ForCausalLM"])
def test_experts_that_hold_inputs_before_outputs(name):
    groups = configure_param_groups(model_of(name, **ONE), matrices="muon")
    transposed = {name for name, value in by_name(groups, "transposed").items() if value}
    assert {name.split(".")[-1] for name in transposed} == {"gate_up_proj", "down_proj"}
    for kind, form in ((optim.Muon, "original"), (optim.NorMuon, "match_rms_adamw")):
        with pytest.raises(ValueError, match="transposed"):
            kind(groups, adjust_lr_fn=form)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        *((f"{name}ForCausalLM", ONE) for name in ("Mamba2", "Qwen3Next", "Bamba", "NemotronH")),
        ("Zamba2ForCausalLM", {}),
        ("FalconH1ForCausalLM", {**ONE, "mamba_rms_norm": True}),
    ],
)
def test_gated_norms_do_not_decay(name, config):
    model = model_of(name, **config)
    gated = {f"{name}.weight" for name, x in model.named_modules() if type(x).__name__.endswith("RMSNormGated")}
    decays = by_name(configure_param_groups(model, weight_decay=0.1), "weight_decay")
    assert {decays[name] for name in gated} == {0.0}


@pytest.mark.parametrize(
    ("name", "config", "heads"),
    [
        ("LukeForMaskedLM", ONE, {"lm_head.decoder"}),
        ("JanusForConditionalGeneration", {}, {"generation_head.vision_head"}),
        ("BertForMaskedLM", ONE, set()),  # whose only head is tied
    ],
)
def test_heads_next_to_a_tied_one(name, config, heads):
    assert layers(model_of(name, **config), "output head") == heads


def test_a_hidden_layer_of_the_embeddings_shape_is_no_head():
    """It was taken for the head of a classifier, which then went to Muon."""
    model = model_of("BertForSequenceClassification", **ONE, vocab_size=3072)
    with pytest.raises(ValueError, match="'classifier.weight' follows .*output_head="):
        configure_param_groups(model, matrices="muon")
    assert endings(model, "muon", output_head="classifier*") > {"dense.weight", "query.weight"}


@pytest.mark.parametrize(
    ("name", "config", "fused"),
    [
        ("Phi3ForCausalLM", ONE, {"self_attn.qkv_proj", "mlp.gate_up_proj"}),
        ("BloomForCausalLM", ONE, {"self_attention.query_key_value"}),
        ("MptForCausalLM", {"n_layers": 1}, {"attn.Wqkv"}),
        ("GPTBigCodeForCausalLM", {"n_layer": 1}, {"attn.c_attn"}),
        ("DebertaForMaskedLM", ONE, {"self.in_proj"}),
        ("GPT2LMHeadModel", {"n_layer": 1}, set()),  # a Conv1D, whose blocks are columns
        ("Mamba2ForCausalLM", ONE, set()),  # no attention
    ],
)
def test_fused_projections(name, config, fused):
    assert layers(model_of(name, **config), FUSED) == fused

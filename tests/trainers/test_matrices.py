"""Which parameters of real transformers Muon steps: by their modules, whatever the model calls them."""

import pytest
import torch
import transformers

import optim
from optim import configure_param_groups
from tests.optim.groups.models import by_name

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
    found = by_name(configure_param_groups(model, matrices="muon", **options), "algorithm")
    return {".".join(name.split(".")[-2:]) for name, other in found.items() if other == algorithm}


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

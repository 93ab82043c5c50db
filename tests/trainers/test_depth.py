"""Learning rates by depth for small transformers: the embedding, the layers and the head of each architecture."""

import math

import pytest
import transformers

from optim.groups import configure_param_groups
from tests.optim.groups.models import by_name

SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}
VIEW = {**SMALL, "image_size": 8, "patch_size": 4}
SEQUENCE = {"d_model": 8, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2}
SEQUENCE |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "vocab_size": 20}
SEQUENCE |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1)


def powers(model, layers):
    """How often the decay multiplies the learning rate of each parameter."""
    factors = by_name(configure_param_groups(model, lr=1.0, layer_decay=0.5, layers=layers), "lr_factor")
    return {name: -math.log2(factor) for name, factor in factors.items()}


def prefixed(model_powers, prefix):
    """The different powers of the parameters with a prefix."""
    return {power for name, power in model_powers.items() if name.startswith(prefix)}


def check(model, layers, expected):
    """Each prefix has one power, and every parameter has one of the prefixes."""
    model_powers = powers(model, layers)
    assert {prefix: prefixed(model_powers, prefix) for prefix in expected} == {
        prefix: {power} for prefix, power in expected.items()
    }
    assert all(name.startswith(tuple(expected)) for name in model_powers)


def numbered(prefix, count):
    """The powers of the layers of a stack."""
    return {f"{prefix}.{i}.": count - i for i in range(count)}


def test_vit():
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**VIEW))
    (prefix,) = {name.split(".0.")[0] for name, _ in model.named_parameters() if ".0." in name}
    layers = numbered(prefix, 3)
    check(model, f"{prefix}.*", {"vit.embeddings.": 4, **layers, "vit.layernorm.": 0, "classifier.": 0})


def test_bert():
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, vocab_size=20))
    layers = numbered("bert.encoder.layer", 3)
    expected = {"bert.embeddings.": 4, **layers, "bert.pooler.": 0, "classifier.": 0}
    check(model, "bert.encoder.layer.*", expected)


def test_gpt2():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=3, n_embd=8, n_head=2, vocab_size=20))
    expected = {"transformer.wte.": 4, "transformer.wpe.": 4, **numbered("transformer.h", 3), "transformer.ln_f.": 0}
    check(model, "transformer.h.*", expected)


@pytest.mark.parametrize("order", [1, -1])
def test_t5(order):
    """Its embedding, which both stacks share, is before all layers."""
    sizes = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_heads": 2}
    config = transformers.T5Config(**sizes, num_layers=2, num_decoder_layers=3)
    model = transformers.T5ForConditionalGeneration(config)
    encoder = {**numbered("encoder.block", 2), "encoder.final_layer_norm.": 0}
    decoder = {**numbered("decoder.block", 3), "decoder.final_layer_norm.": 0}
    globs = ["encoder.block.*", "decoder.block.*"][::order]
    expected = {"shared.": 3, **encoder, **decoder}
    if "lm_head.weight" in dict(model.named_parameters()):
        expected["lm_head."] = 0
    check(model, globs, expected)


def test_swin():
    """The downsampling between two stages has the factor of the next stage's first layer."""
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 4, "window_size": 2}
    config = transformers.SwinConfig(**sizes, depths=[1, 2], num_heads=[1, 2])
    model = transformers.SwinForImageClassification(config)
    blocks = {"swin.encoder.layers.0.blocks.0.": 3, "swin.encoder.layers.0.downsample.": 2}
    blocks |= {"swin.encoder.layers.1.blocks.0.": 2, "swin.encoder.layers.1.blocks.1.": 1}
    expected = {"swin.embeddings.": 4, **blocks, "swin.layernorm.": 0, "classifier.": 0}
    check(model, "swin.encoder.layers.*.blocks.*", expected)


def test_convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[4, 8], depths=[1, 2], num_stages=2)
    model = transformers.ConvNextForImageClassification(config)
    stages = "convnext.encoder.stages"
    blocks = {f"{stages}.0.layers.0.": 3, f"{stages}.1.downsampling_layer.": 2}
    blocks |= {f"{stages}.1.layers.0.": 2, f"{stages}.1.layers.1.": 1}
    expected = {"convnext.embeddings.": 4, **blocks, "convnext.layernorm.": 0, "classifier.": 0}
    check(model, f"{stages}.*.layers.*", expected)


def test_whisper():
    """Each stack has its own embeddings."""
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SEQUENCE, num_mel_bins=4))
    encoder = {"model.encoder.conv": 3, "model.encoder.embed": 3, **numbered("model.encoder.layers", 2)}
    decoder = {"model.decoder.embed": 4, **numbered("model.decoder.layers", 3)}
    norms = {"model.encoder.layer_norm.": 0, "model.decoder.layer_norm.": 0}
    check(model, ["model.encoder.layers.*", "model.decoder.layers.*"], {**encoder, **decoder, **norms})


def test_clip():
    """Two towers are numbered separately; the temperature is before all layers, the projections after them."""
    text = {**SMALL, "num_hidden_layers": 2, "vocab_size": 20}
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=VIEW, projection_dim=4))
    towers = {"text_model.embeddings.": 3, **numbered("text_model.encoder.layers", 2), "text_model.final_": 0}
    towers |= {"vision_model.embeddings.": 4, "vision_model.pre_": 4, **numbered("vision_model.encoder.layers", 3)}
    expected = {"logit_scale": 3, **towers, "vision_model.post_": 0, "visual_projection.": 0, "text_projection.": 0}
    check(model, ["vision_model.encoder.layers.*", "text_model.encoder.layers.*"], expected)


def test_llava():
    """The projector between the towers belongs to none."""
    text = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 2}, vocab_size=20)
    config = transformers.LlavaConfig(vision_config=transformers.CLIPVisionConfig(**VIEW), text_config=text)
    model = transformers.LlavaForConditionalGeneration(config)
    names = [name for name, _ in model.named_parameters()]
    (vision,) = {name.split(".layers.")[0] for name in names if "vision" in name and ".layers." in name}
    model_powers = powers(model, [f"{vision}.layers.*", "model.language_model.layers.*"])
    assert prefixed(model_powers, "model.multi_modal_projector.") == {0}
    assert prefixed(model_powers, f"{vision}.layers.0.") == {3}
    assert prefixed(model_powers, f"{vision.removesuffix('.encoder')}.embeddings.") == {4}
    assert prefixed(model_powers, "model.language_model.embed_tokens.") == {3}
    assert prefixed(model_powers, "model.language_model.layers.1.") == {1}
    assert prefixed(model_powers, "model.language_model.norm.") | prefixed(model_powers, "lm_head.") == {0}

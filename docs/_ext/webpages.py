"""What the pages of the site get in addition to their text: words for the search, names that break, descriptions."""

from __future__ import annotations

import re
from html import escape, unescape
from typing import Any

import line_breaks
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

log = logging.getLogger(__name__)

# What people type into the search box, and the sections with the answers. These come first among the hits, and are
# entries of the index.
WORDS = {
    "index#install": "install, installation, pip install, extras",
    "quickstart": "quickstart, quick start, getting started, first steps, tutorial, beginner",
    "get_started": "getting started, get started, start",
    "which": "schedule, learning rate, learning-rate schedule, learning rate schedule, learning rate scheduler, lr, "
    "lr schedule, which schedule, warmup, warm-up, "
    "pretraining, fine-tuning, continued pretraining, annealing",
    "which#bind-or-optim-lr-scheduler": "multiplier, absolute learning rate",
    "coming_from/torch#schedulers": "torch.optim.lr_scheduler, LambdaLR, StepLR, LinearLR, OneCycleLR, "
    "CosineAnnealingLR, SequentialLR, porting, migrate",
    "coming_from/torch#reducelronplateau": "ReduceLROnPlateau, plateau",
    "coming_from/hugging_face": "Hugging Face, lr_scheduler_type, get_scheduler, get_constant_schedule, "
    "get_constant_schedule_with_warmup, get_linear_schedule_with_warmup, get_cosine_schedule_with_warmup, "
    "get_cosine_with_min_lr_schedule_with_warmup, get_polynomial_decay_schedule_with_warmup, "
    "get_cosine_with_hard_restarts_schedule_with_warmup, get_inverse_sqrt_schedule, get_wsd_schedule",
    "coming_from/composer": "Composer schedulers",
    "comparison": "comparison, alternatives, optax, jax, timm, OLMo-core, Megatron-LM, schedule-free, schedule free",
    "comparison#names-in-other-projects": "WSDLRScheduler, names in other projects",
    "comparison#averages-of-weights": "ModelEmaV3, ema-pytorch, EMAWeightAveraging",
    "compatibility": "compatibility, supported versions, requirements, Python version, torch version",
    "compatibility#devices": "CUDA, GPU, MPS, TPU, XLA, Apple, Windows, macOS, AMD, ROCm",
    "coming_from/torch#lambdalr": "LambdaLR equivalent, LambdaLR, MultiplicativeLR",
    "coming_from/torch#optimizers": "epsilon, eps, defaults, default eps, default weight decay, differences from torch",
    "mistakes": "silent mistakes, wrong learning rate without an error, pitfalls, common mistakes",
    "troubleshooting": "troubleshooting, error messages, errors, warnings, FAQ, faq",
    "troubleshooting#the-learning-rate-never-changes": "learning rate not changing, learning rate stays the same, "
    "lr not updating",
    "troubleshooting#the-learning-rate-stays-0": "lr is 0, learning rate is 0, zero learning rate",
    "troubleshooting#the-loop-never-ends": "endless loop, infinite loop, clock.done",
    "troubleshooting#valueerror-the-state-is-of-a-different-schedule": "the state is of another schedule",
    "troubleshooting#valueerror-no-longer-controls-it-since-was-created-later": "superseded, two schedulers",
    "troubleshooting#optim-hides-torch-optim": "import optim, torch.optim",
    "troubleshooting#userwarning-detected-call-of-lr-scheduler-step-before-optimizer-step": "UserWarning, "
    "lr_scheduler.step() before optimizer.step()",
    "troubleshooting#gradscaler-skips-steps": "GradScaler, AMP, mixed precision, float16",
    "troubleshooting#batches-have-the-wrong-size-because-workers-read-ahead": "num_workers, prefetch",
    "steps_to_tokens": "steps to tokens, warmup_steps, max_steps, convert steps, num_warmup_steps",
    "steps_to_tokens#convert-your-arguments": "num_train_epochs, min_lr_ratio, min_lr, warmup_ratio",
    "steps_to_tokens#switch-in-the-middle-of-a-run": "LambdaLR checkpoint, switch from torch",
    "glossary": "glossary, terms, definitions",
    "loop": "training loop, Clock, loop",
    "loop#recipe-a-run-that-ends-after-an-hour": "seconds, sec, minutes, hours, time limit, wall clock",
    "loop#ask-a-schedule-without-a-loop": "visualize schedule, visualize, plot, draw, matplotlib, jupyter, notebook",
    "loop#the-order-of-calls": "scheduler not stepping, learning rate does not change, scheduler.step, "
    "gradient accumulation",
    "loop#times": "tokens, samples, epochs, units, dur, time units",
    "loop#what-a-batch-is": "batch, padding",
    "loop#several-processes": "DDP, distributed, ranks, process_group",
    "loop#what-bind-can-schedule": "bind, betas, momentum, momentum schedule, hyperparameter, weight decay, "
    "weight decay schedule",
    "recipes": "recipes, papers",
    "recipes#warmup-stable-decay-wsd-trapezoidal-with-a-1-sqrt-cooldown": "WSD, trapezoidal, warmup-stable-decay, "
    "warmup stable decay",
    "recipes#wsd-with-an-exponential-decay-minicpm": "MiniCPM, exponential decay",
    "recipes#cosine-to-a-tenth-chinchilla": "Chinchilla",
    "recipes#wsd-s-repeated-decays": "WSD-S",
    "recipes#linear-decay-to-zero-d2z": "D2Z, linear decay",
    "recipes#fine-tuning-roberta": "fine-tuning, finetuning, RoBERTa",
    "recipes#multi-step-deepseek-llm": "DeepSeek",
    "recipes#cosine-then-annealing-llama-3-405b": "Llama 3, annealing, cosine",
    "recipes#infinite-learning-rates-continual-pretraining": "infinite learning rate, continual pretraining",
    "recipes#noam-the-first-transformer": "Noam, NoamLR, Transformer",
    "recipes#power-scheduler-granite": "Granite, power scheduler",
    "recipes#steps-in-epochs-resnet-50-on-imagenet": "ResNet, ImageNet, vision",
    "batch_size_schedules#scale-the-learning-rate-with-the-batch-size": "linear scaling rule, square root scaling, "
    "learning rate and batch size",
    "batch_size_schedules": "batch-size warmup, batch ramp, batch-size ramp, batch size, batch size ramp, "
    "BatchSizeSchedule, BatchSizeSampler",
    "half_lives": "half-life, HalfLife, betas in tokens, beta2, timescale, weight decay timescale",
    "values": "dropout schedule, KL weight, loss weight, entropy weight, temperature, sequence length, "
    "curriculum, schedule any value",
    "averages": "EMA, SWA, LAWA, model averaging, exponential moving average, weight averaging, average, WeightAverage",
    "tutorials/merging": "merge, merging checkpoints, merge checkpoints, WSM, model soup, checkpoint averaging",
    "loop#events-evaluate-save-average": "evaluate every, save every, save before cooldown, passed, every, events",
    "logging": "logs, logging, TensorBoard, Weights & Biases, wandb, named_values, get_last_value",
    "muon_ranks": "distributed Muon, Muon FSDP, process_group, HSDP",
    "groups": "parameter groups, tags",
    "groups#make-groups-from-names-without-weight-decay-for-norms-and-biases": "weight decay, no decay, bias, norm",
    "learning_rates": "per layer learning rate, per-layer learning rate, different learning rates, "
    "discriminative learning rates, learning rates for parts, parameter-specific learning rate",
    "learning_rates#freeze-layers-and-unfreeze-them": "freeze layers, freeze, freezing, frozen, unfreeze, "
    "gradual unfreezing, requires_grad",
    "learning_rates#layer-wise-learning-rate-decay": "layer-wise learning rate decay, layerwise learning rate decay, "
    "layer-wise learning rate, LLRD, layer decay, layer_decay",
    "learning_rates#use-the-learning-rate-of-a-narrower-model-mup": "muP, maximal update parametrization, width, "
    "hyperparameter transfer, base_model",
    "learning_rates#train-loras-two-matrices-at-two-learning-rates": "LoRA, LoRA+, PEFT, adapters",
    "branches": "branch, branches, cooldown, cooldowns, stable run, several lengths, warm up again, rewarm",
    "checkpoints": "resume, resuming, checkpoint, checkpoints, state_dict, save, load",
    "checkpoints#a-cooldown-from-a-checkpoint": "cooldown, cool down, branch",
    "checkpoints#another-schedule-or-a-longer-run": "extend, longer run, on_change",
    "trainers": "trainer, trainers, gradient accumulation",
    "by_config": "config, by config, _target_, class_path, LightningCLI, sd-scripts, kohya, OneTrainer, RF-DETR, "
    "anemoi, NeMo, verl, sentence-transformers, OLMo-core, Ray Train, MMEngine, prime-rl, OpenRLHF, LLaMA-Factory",
    "trainers/hugging_face": "transformers, Trainer, TrainingArguments, TRL, SFTTrainer",
    "trainers/hugging_face#use-muon-or-groups-of-your-own-also-under-fsdp": "optimizer_cls_and_kwargs, FSDP Muon",
    "trainers/lightning": "Lightning, PyTorch Lightning, configure_optimizers, LearningRateMonitor",
    "trainers/lightning#lr_find-and-learningratemonitor": "learning rate finder, lr finder, lr_find, LR range test",
    "trainers/lightning#lightningcli-and-hydra": "LightningCLI, Hydra, class_path, _target_",
    "trainers/accelerate": "accelerate, Accelerator",
    "trainers/torchtitan": "torchtitan",
    "trainers/deepspeed": "DeepSpeed, ZeRO",
    "trainers/composer": "Composer, MosaicML, ComposerScheduler, scale_schedule_ratio",
    "results": "results, which optimizer, best optimizer",
    "optimizers": "optimizer, optimizers",
    "optimizers#state-before-the-first-step": "sharding, sharded checkpoint, optimizer state, memory",
    "preinitialize": "preinitialize, third-party optimizers, dummy step",
    "muon": "Muon, NorMuon, adjust_lr_fn",
    "muon_form": "Newton-Schulz, ns_coefficients, Moonlight, modded-nanogpt",
    "low_precision": "bfloat16, bf16, mixed precision, AMP, autocast, master weights, stochastic rounding",
    "low_precision#which-other-projects-do-this": "8-bit Adam, 8-bit, 8bit, bitsandbytes, quantized optimizer, torchao",
    "distributed": "multiple GPUs, multi-GPU, distributed training, torchrun, FSDP, FSDP2, DDP, fully_shard, DCP, "
    "torch.distributed.checkpoint, process_group",
    "examples": "examples, example, scripts, tutorials",
    "reference/index": "API reference, API, reference, documentation of classes",
    "project/changes": "changelog, changes, release notes, what is new, version",
    "project/license": "license, licence, MIT",
    "project/contributing": "contributing, contribute, development, run the tests",
    "architecture": "architecture, design, code structure",
    "tutorials/your_own": "custom optimizer, custom scheduler, custom schedule, own optimizer, own schedule, subclass",
    "compiling": "torch.compile, compile, CUDA graph, recompile",
    "compiling#optimizer-and-scheduler-in-your-own-function-hold-tensors": "hold_tensors",
    "config": "YAML, config",
    "command_line": "command line, CLI, timesched plot, timesched check",
    "gallery/schedules": "gallery, warmup, warm-up, curves",
    "reference/api/timesched.CosineAnnealingWithWarmupScheduler": "cosine, cosine with warmup, cosine annealing, "
    "cosine decay",
    "reference/api/timesched.CosineAnnealingScheduler": "cosine, cosine annealing",
    "reference/api/timesched.CosineAnnealingWarmRestartsScheduler": "SGDR, warm restarts",
    "reference/api/timesched.LinearWithWarmupScheduler": "LinearWarmup, linear warmup",
    "reference/api/timesched.OneCycleScheduler": "OneCycle, one cycle, 1cycle",
    "reference/api/timesched.CyclicScheduler": "cyclic, cyclical, triangular",
    "reference/api/timesched.WarmupStableDecayScheduler": "WSD, 1-sqrt, trapezoidal",
    "reference/api/timesched.RexScheduler": "REX",
    "reference/api/timesched.InverseSquareRootWithWarmupScheduler": "inverse square root, inverse sqrt, rsqrt",
    "reference/api/timesched.PiecewiseScheduler": "piecewise",
    "reference/api/timesched.CooldownScheduler": "cooldown, annealing",
    "reference/api/timesched.SequenceScheduler": "sequence, sequential, shift",
    "reference/api/timesched.bind": "bind, LambdaLR",
    "reference/api/optim.AdamW": "AdamW",
    "reference/api/optim.Lamb": "Lamb, LAMB",
}
# Sections that concern a word but are not its first answer. These come after the other hits.
LATER_WORDS = {
    "muon_ranks": "FSDP, FSDP2",
    "checkpoints": "FSDP, FSDP2",
    "optimizers#state-before-the-first-step": "FSDP, FSDP2",
    "trainers": "FSDP, FSDP2",
}


def check_pages(app: Sphinx, env: Any, docnames: list[str]) -> None:
    """Warns of words for a page that does not exist."""
    for docname in sorted({place.partition("#")[0] for place in [*WORDS, *LATER_WORDS]} - env.found_docs):
        log.warning("docs/_ext/webpages.py: there is no page %s", docname)


def add_words(app: Sphinx, doctree: nodes.document) -> None:
    """Entries of the index that Sphinx's search shows above what it finds by itself."""
    docname = app.env.docname
    ids = {each for node in doctree.findall(nodes.Element) for each in node["ids"]}
    entries = []
    for table, main in ((WORDS, "main"), (LATER_WORDS, "")):
        for place, words in table.items():
            page, _, anchor = place.partition("#")
            if page != docname:
                continue
            if anchor and anchor not in ids:
                log.warning("docs/_ext/webpages.py: %s has no section %s", docname, anchor)
            entries += [("single", word, anchor, main, None) for word in words.split(", ")]
    if entries:
        doctree.insert(0, addnodes.index(entries=entries))  # for the search
        app.env.domains.index_domain.entries.setdefault(docname, []).extend(entries)  # for the page of the index


def break_names(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Long names break where a line is too short."""
    if "body" in context:
        context["body"] = line_breaks.allow_breaks(page, context["body"])


def describe(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The first paragraph of a page, for search engines and for those who are sent a link."""
    paragraph = next(iter(doctree.findall(nodes.paragraph)), None) if doctree else None
    text = " ".join(paragraph.astext().split()) if paragraph else app.config.project
    text = text if len(text) <= 200 else text[:200].rpartition(" ")[0] + " ..."
    title = unescape(re.sub("<[^>]*>", "", context.get("title") or app.config.project))
    tags = {"description": text, "og:title": title, "og:description": text, "og:type": "website"}
    tags |= {"og:site_name": app.config.project}
    context["metatags"] = context.get("metatags", "") + "".join(
        f'<meta {"property" if ":" in name else "name"}="{name}" content="{escape(value)}">'
        for name, value in tags.items()
    )


def limit_search(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Short queries find whole words only. The script must run before Sphinx's own, which starts the search."""
    if page == "search":
        app.add_js_file("search.js")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-before-read-docs", check_pages)
    app.connect("doctree-read", add_words)
    app.connect("html-page-context", break_names)
    app.connect("html-page-context", describe)
    app.connect("html-page-context", limit_search)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

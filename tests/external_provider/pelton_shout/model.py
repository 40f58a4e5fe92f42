"""A model family as another package would bring it: Qwen3's block under a name of its own."""

from __future__ import annotations

from pelton.models.qwen3 import Qwen3


class Shout(Qwen3):
    name = "shout"
    title = "Shout"
    config_names = ("ShoutForCausalLM",)
    gguf_names = ("shout",)

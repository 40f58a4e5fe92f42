"""The blocks that decoder models share: attention, gated MLP, embedding, head. Pure mathematics over graph ops."""

from __future__ import annotations

from pelton.graph import ops
from pelton.graph.graph import ROWS, TOKENS, Graph, Value
from pelton.models.spec import AttentionSpec, GatedDeltaSpec, MlpSpec, ModelSpec, MoeSpec


def decoder(graph: Graph, spec: ModelSpec, *, has_post_norms: bool = False) -> None:
    """x + mixer(norm(x)), then x + feed_forward(norm(x)), for every layer between embedding and head.

    has_post_norms: what either gives is normed too, before it is added.
    """
    x = embed_tokens(graph, spec)
    for index, layer in enumerate(spec.layers):
        with graph.scope(f"layers.{index}"):
            if layer.mixer is not None:
                mixed = mix(graph, norm(graph, x, "mixer_norm", spec), layer.mixer, spec)
                if has_post_norms:
                    mixed = norm(graph, mixed, "mixer_post_norm", spec)
                x = ops.add(x, mixed, name="mixer_residual")
            if layer.feed_forward is not None:
                fed = feed_forward(graph, norm(graph, x, "feed_forward_norm", spec), layer.feed_forward, spec)
                if has_post_norms:
                    fed = norm(graph, fed, "feed_forward_post_norm", spec)
                x = ops.add(x, fed, name="feed_forward_residual")
    predict(graph, x, spec)


def embed_tokens(graph: Graph, spec: ModelSpec) -> Value:
    token_ids = graph.input("token_ids", (TOKENS,), "int32")
    table = graph.parameter("embed_tokens.weight", (spec.vocab_size, spec.hidden_size))
    return ops.embedding(token_ids, table, scale=spec.embedding_scale, name="embed_tokens")


def norm(graph: Graph, x: Value, name: str, spec: ModelSpec) -> Value:
    weight = graph.parameter(f"{name}.weight", (spec.hidden_size,))
    return ops.rms_norm(x, weight, eps=spec.norm_eps, name=name)


def mix(graph: Graph, x: Value, mixer: AttentionSpec | GatedDeltaSpec, spec: ModelSpec) -> Value:
    """What a layer's mixer makes of x: [tokens, hidden], already normed."""
    if isinstance(mixer, GatedDeltaSpec):
        return gated_delta(graph, x, mixer, spec)
    return self_attention(graph, x, mixer, spec)


def feed_forward(graph: Graph, x: Value, part: MlpSpec | MoeSpec, spec: ModelSpec) -> Value:
    """What a layer's feed-forward part makes of x: [tokens, hidden], already normed."""
    if isinstance(part, MoeSpec):
        return mixture_of_experts(graph, x, part, spec)
    return gated_mlp(graph, x, part, spec)


def mixture_of_experts(graph: Graph, x: Value, moe: MoeSpec, spec: ModelSpec) -> Value:
    """The sum of each row's chosen experts by their weights; x: [tokens, hidden], already normed."""
    hidden, inner, experts = spec.hidden_size, moe.expert.intermediate_size, moe.num_experts
    with graph.scope("experts"):
        logits = project(graph, x, "router", hidden, experts, False)
        choices, weights = ops.route(logits, num_chosen=moe.num_chosen, is_normalised=moe.is_normalised, name="route")
        gate = graph.parameter("gate.weight", (experts * inner, hidden))
        up = graph.parameter("up.weight", (experts * inner, hidden))
        down = graph.parameter("down.weight", (experts * hidden, inner))
        active = ops.experts_gated(
            x, choices, gate, up, num_experts=experts, activation=moe.expert.activation, name="activation"
        )
        mixed = ops.experts_down(active, choices, weights, down, num_experts=experts, name="down")
        if moe.shared is None:
            return mixed
        shared = gated_mlp(graph, x, moe.shared, spec)
        if moe.has_shared_gate:
            share = project(graph, x, "shared_gate", hidden, 1, False)
            shared = ops.gated_activation(share, shared, activation="sigmoid", name="shared")
        return ops.add(mixed, shared, name="sum")


def self_attention(graph: Graph, x: Value, attention: AttentionSpec, spec: ModelSpec) -> Value:
    """o(attention(rope(norm(q)), rope(norm(k)), v)); x: [tokens, hidden], already normed."""
    hidden, heads, kv_heads, head_dim = (
        spec.hidden_size,
        attention.num_heads,
        attention.num_kv_heads,
        attention.head_dim,
    )
    with graph.scope("attention"):
        q = project(graph, x, "q", hidden, heads * head_dim, attention.has_qkv_bias)
        k = project(graph, x, "k", hidden, kv_heads * head_dim, attention.has_qkv_bias)
        v = project(graph, x, "v", hidden, kv_heads * head_dim, attention.has_qkv_bias)
        if attention.has_qk_norm:
            q_weight = graph.parameter("q_norm.weight", (head_dim,))
            k_weight = graph.parameter("k_norm.weight", (head_dim,))
            q = ops.rms_norm(q, q_weight, eps=spec.norm_eps, vectors=heads, name="q_norm")
            k = ops.rms_norm(k, k_weight, eps=spec.norm_eps, vectors=kv_heads, name="k_norm")
        if attention.rotary is not None:
            positions = graph.input("positions", (TOKENS,), "int32")
            q = ops.rope(q, positions, heads=heads, head_dim=head_dim, rotary=attention.rotary, name="q_rope")
            k = ops.rope(k, positions, heads=kv_heads, head_dim=head_dim, rotary=attention.rotary, name="k_rope")
        cache = graph.cache_layer(kv_heads, head_dim, attention.window)
        mixed = ops.attention(
            q, k, v, cache=cache, num_heads=heads, scale=attention.scale, window=attention.window, name="attend"
        )
        if attention.has_output_gate:
            gate = project(graph, x, "gate", hidden, heads * head_dim, attention.has_qkv_bias)
            mixed = ops.gated_activation(gate, mixed, activation="sigmoid", name="gated")
        return project(graph, mixed, "o", heads * head_dim, hidden, attention.has_output_bias)


def gated_delta(graph: Graph, x: Value, mixer: GatedDeltaSpec, spec: ModelSpec) -> Value:
    """Linear attention over a state; x: [tokens, hidden], already normed."""
    sizes = ops.DeltaSizes(
        num_key_heads=mixer.num_key_heads,
        num_value_heads=mixer.num_value_heads,
        key_head_dim=mixer.key_head_dim,
        value_head_dim=mixer.value_head_dim,
        conv_kernel=mixer.conv_kernel,
        is_tiled=mixer.is_tiled,
        has_log_decay=mixer.has_log_decay,
    )
    heads = mixer.num_value_heads
    with graph.scope("delta"):
        mixed = ops.gated_delta(
            project(graph, x, "qkv", spec.hidden_size, sizes.conv_columns, False),
            project(graph, x, "z", spec.hidden_size, sizes.value_columns, False),
            project(graph, x, "beta", spec.hidden_size, heads, False),
            project(graph, x, "alpha", spec.hidden_size, heads, False),
            ops.DeltaParameters(
                conv=graph.parameter("conv.weight", (sizes.conv_kernel * sizes.conv_columns,)),
                decay=graph.parameter("decay", (heads,)),
                dt_bias=graph.parameter("dt_bias", (heads,)),
                norm=graph.parameter("norm.weight", (mixer.value_head_dim,)),
            ),
            sizes=sizes,
            state=graph.state_layer(sizes.state_floats),
            eps=spec.norm_eps,
            name="recur",
        )
        return project(graph, mixed, "o", sizes.value_columns, spec.hidden_size, False)


def gated_mlp(graph: Graph, x: Value, mlp: MlpSpec, spec: ModelSpec) -> Value:
    """down(activation(gate(x)) * up(x)); x: [tokens, hidden], already normed."""
    with graph.scope("mlp"):
        gate = project(graph, x, "gate", spec.hidden_size, mlp.intermediate_size, mlp.has_bias)
        up = project(graph, x, "up", spec.hidden_size, mlp.intermediate_size, mlp.has_bias)
        active = ops.gated_activation(gate, up, activation=mlp.activation, name="activation")
        return project(graph, active, "down", mlp.intermediate_size, spec.hidden_size, mlp.has_bias)


def project(graph: Graph, x: Value, name: str, k: int, n: int, has_bias: bool) -> Value:
    weight = graph.parameter(f"{name}.weight", (n, k))
    bias = graph.parameter(f"{name}.bias", (n,)) if has_bias else None
    return ops.linear(x, weight, bias, name=name)


def predict(graph: Graph, x: Value, spec: ModelSpec) -> None:
    """The final norm and the head, only on the rows that need logits. Records the graph's outputs."""
    graph.output("hidden", x)
    logit_rows = graph.input("logit_rows", (ROWS,), "int32")
    rows = ops.gather_rows(x, logit_rows, name="logit_rows")
    rows = norm(graph, rows, "norm", spec)
    head = "embed_tokens.weight" if spec.is_head_tied else "lm_head.weight"
    weight = graph.parameter(head, (spec.vocab_size, spec.hidden_size))
    graph.output("logits", ops.linear(rows, weight, name="lm_head"))

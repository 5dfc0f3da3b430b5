"""Configs of Kimi K3 and DeepSeek-V4 as published in `config.json`, both ways."""

from __future__ import annotations

from typing import Any

from nano.config import ConfigError, K3Config
from nano.dsv4.config import Dsv4Config
from nano.graft.config import count, text_part
from nano.graft.errors import GraftError


def k3_from_published(raw: dict[str, Any]) -> K3Config:
    """From the `text_config` of a published Kimi K3: layers are numbered from 1 there."""
    t = text_part(raw)
    linear = t.get("linear_attn_config")
    if not isinstance(linear, dict):
        raise GraftError("config lacks linear_attn_config")
    _refuse(t, linear)
    n, inter = count(t, "num_hidden_layers"), count(t, "moe_intermediate_size")
    shared = count(t, "num_shared_experts", "n_shared_experts", default=2)
    full = linear.get("full_attn_layers")
    if not isinstance(full, list) or not all(type(i) is int and 1 <= i <= n for i in full):
        raise GraftError("linear_attn_config.full_attn_layers must list layers from 1")
    dense = t.get("dense_layers")
    data = {
        "n_layers": n, "hidden": count(t, "hidden_size"), "vocab": count(t, "vocab_size"),
        "n_experts": count(t, "num_experts", "n_routed_experts"),
        "top_k": count(t, "num_experts_per_token", "num_experts_per_tok"), "n_shared": shared,
        "kda_heads": count(linear, "num_heads"), "kda_dim": count(linear, "head_dim"),
        "kda_conv": count(linear, "short_conv_kernel_size", default=4),
        "kda_fa_rank": count(linear, "f_a_rank", default=count(linear, "head_dim")),
        "gate_lower_bound": float(linear.get("gate_lower_bound", -5.0)),
        "mla_heads": count(t, "num_attention_heads"), "mla_q_lora": count(t, "q_lora_rank"),
        "mla_kv_lora": count(t, "kv_lora_rank"), "mla_nope": count(t, "qk_nope_head_dim"),
        "mla_rope": count(t, "qk_rope_head_dim"), "mla_v": count(t, "v_head_dim"),
        "routed_hidden": count(t, "latent_moe_hidden_size", "routed_hidden_size"),
        "moe_inter": inter, "shared_inter": count(t, "shared_intermediate_size",
                                                 default=shared * inter),
        "dense_inter": count(t, "intermediate_size"),
        "attn_res_block": count(t, "attn_res_block_size", "attn_res_block", default=12),
        "first_k_dense": count(t, "first_k_dense_replace", default=1),
        "rms_eps": float(t.get("rms_norm_eps", 1e-5)),
        "mla_layers": sorted(i - 1 for i in full), "dense_layers": dense, "kda_a_log": "head",
        "kda_l2": str(linear.get("l2_norm", "sum1e-6")),
        "situ_beta": float(t.get("situ_beta", 4.0)),
        "situ_linear_beta": float(t.get("situ_linear_beta", 25.0)),
        "routed_scale": float(t.get("routed_scaling_factor", 1.0)),
    }
    specials = {name: t[key] for name, key in (("bos", "bos_token_id"),
                                               ("end_of_msg", "eos_token_id"))
                if type(t.get(key)) is int}
    if specials:
        data["specials"] = specials
    try:
        return K3Config.from_json(data)
    except ConfigError as err:
        raise GraftError(str(err)) from err


def _refuse(t: dict[str, Any], linear: dict[str, Any]) -> None:
    """What the forward pass does not cover; keys that are absent have the covered value."""
    wants = {"hidden_act": "situ", "mla_use_nope": True, "mla_use_output_gate": True,
             "latent_moe_use_norm": True, "moe_renormalize": True,
             "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
             "tie_word_embeddings": False}
    for key, value in wants.items():
        if t.get(key, value) not in (value, None):
            raise GraftError(f"config key {key}: {t[key]!r} is not covered, only {value!r}")
    if linear.get("use_full_rank_gate", True) is not True:
        raise GraftError("linear_attn_config.use_full_rank_gate must be true")


def k3_to_published(c: K3Config) -> dict[str, Any]:
    """A `config.json` from which `k3_from_published` gives the same model."""
    assert c.mla_layers is not None
    linear = {
        "full_attn_layers": [i + 1 for i in c.mla_layers],
        "kda_layers": [i + 1 for i in range(c.n_layers) if not c.is_mla(i)],
        "num_heads": c.kda_heads, "head_dim": c.kda_dim, "short_conv_kernel_size": c.kda_conv,
        "f_a_rank": c.kda_fa_rank, "gate_lower_bound": c.gate_lower_bound, "l2_norm": c.kda_l2,
        "use_full_rank_gate": True,
    }
    text = {
        "model_type": "kimi_k3", "hidden_act": "situ", "num_hidden_layers": c.n_layers,
        "hidden_size": c.hidden, "vocab_size": c.vocab, "num_experts": c.n_experts,
        "num_experts_per_token": c.top_k, "num_shared_experts": c.n_shared,
        "linear_attn_config": linear, "num_attention_heads": c.mla_heads,
        "q_lora_rank": c.mla_q_lora, "kv_lora_rank": c.mla_kv_lora,
        "qk_nope_head_dim": c.mla_nope, "qk_rope_head_dim": c.mla_rope, "v_head_dim": c.mla_v,
        "latent_moe_hidden_size": c.routed_hidden, "moe_intermediate_size": c.moe_inter,
        "shared_intermediate_size": c.shared_inter, "intermediate_size": c.dense_inter,
        "attn_res_block_size": c.attn_res_block, "first_k_dense_replace": c.first_k_dense,
        "dense_layers": c.dense_layers, "rms_norm_eps": c.rms_eps, "situ_beta": c.situ_beta,
        "situ_linear_beta": c.situ_linear_beta, "routed_scaling_factor": c.routed_scale,
        "mla_use_nope": True, "mla_use_output_gate": True, "latent_moe_use_norm": True,
        "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
        "tie_word_embeddings": False, "bos_token_id": c.specials.get("bos"),
        "eos_token_id": c.specials.get("end_of_msg"),
    }
    return {"model_type": "kimi_k3", "text_config": text}


_COMPRESSED = {"sliding_attention": 0, "compressed_sparse_attention": 4,
               "heavily_compressed_attention": 128}


def dsv4_from_library(raw: dict[str, Any]) -> Dsv4Config:
    """From a `config.json` as published or as the library writes it."""
    t = text_part(raw)
    n, hd = count(t, "num_hidden_layers"), count(t, "head_dim")
    rope = t.get("rope_parameters") or {}
    main, wide = rope.get("main", {}), rope.get("compress", t.get("rope_scaling") or {})
    rates = t.get("compress_rates") or {}
    if isinstance(t.get("layer_types"), list):
        try:
            ratios = [int(rates.get(k, _COMPRESSED[k])) for k in t["layer_types"]]
        except KeyError as err:
            raise GraftError(f"layer_types holds {err.args[0]!r}") from err
    else:
        ratios = t.get("compress_ratios")
        if not isinstance(ratios, list):
            raise GraftError("config lacks layer_types or compress_ratios")
    kinds = t.get("mlp_layer_types")
    hashed = kinds.count("hash_moe") if isinstance(kinds, list) else count(
        t, "num_hash_layers", default=3)
    turned = t.get("qk_rope_head_dim") or round(hd * float(t.get("partial_rotary_factor") or 0.125))
    bos, eos = t.get("bos_token_id"), t.get("eos_token_id")
    data = {
        "n_layers": n, "hidden": count(t, "hidden_size"), "vocab": count(t, "vocab_size"),
        "n_heads": count(t, "num_attention_heads"), "head_dim": hd, "qk_rope_head_dim": turned,
        "q_lora_rank": count(t, "q_lora_rank"), "o_lora_rank": count(t, "o_lora_rank"),
        "o_groups": count(t, "o_groups"), "sliding_window": count(t, "sliding_window", default=128),
        "compress_ratios": ratios[:n],
        "rope_theta": float(main.get("rope_theta", t.get("rope_theta", 1e4))),
        "compress_rope_theta": float(wide.get("rope_theta", t.get("compress_rope_theta", 1.6e5))),
        "index_n_heads": count(t, "index_n_heads"), "index_head_dim": count(t, "index_head_dim"),
        "index_topk": count(t, "index_topk"), "n_routed_experts": count(t, "n_routed_experts"),
        "num_experts_per_tok": count(t, "num_experts_per_tok"),
        "moe_intermediate_size": count(t, "moe_intermediate_size"), "num_hash_layers": hashed,
        "routed_scaling_factor": float(t.get("routed_scaling_factor", 1.5)),
        "swiglu_limit": float(t.get("swiglu_limit", 10.0)),
        "rms_norm_eps": float(t.get("rms_norm_eps", 1e-6)),
        "hc_mult": count(t, "hc_mult", default=4),
        "hc_sinkhorn_iters": count(t, "hc_sinkhorn_iters", default=20),
        "hc_eps": float(t.get("hc_eps", 1e-6)), "yarn_factor": float(wide.get("factor", 16.0)),
        "yarn_beta_fast": float(wide.get("beta_fast", 32.0)),
        "yarn_beta_slow": float(wide.get("beta_slow", 1.0)),
        "yarn_orig_seq_len": int(wide.get("original_max_position_embeddings", 65536)),
        # Rounding of cached rows belongs to the published, quantised files; the library knows none.
        "act_qat": bool(t.get("act_qat", "quantization_config" in t)),
        "specials": {"bos": bos if type(bos) is int else 0, "end_of_msg": eos if type(eos) is int
                     else 1},
    }
    try:
        return Dsv4Config.from_json(data)
    except ConfigError as err:
        raise GraftError(str(err)) from err


def dsv4_to_library(c: Dsv4Config) -> dict[str, Any]:
    """A `config.json` that the library reads, for ratios 0, 4 and one other."""
    others = {c.ratio(i) for i in range(c.n_layers)} - {0, 4}
    if len(others) > 1:
        raise GraftError(f"the library has one ratio beside 4, the model has {sorted(others)}")
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention"}
    share = c.qk_rope_head_dim / c.head_dim
    yarn = {
        "rope_type": "yarn", "rope_theta": c.compress_rope_theta, "factor": c.yarn_factor,
        "beta_fast": c.yarn_beta_fast, "beta_slow": c.yarn_beta_slow, "attention_factor": 1.0,
        "original_max_position_embeddings": c.yarn_orig_seq_len, "partial_rotary_factor": share,
    }
    main = {"rope_type": "default", "rope_theta": c.rope_theta, "partial_rotary_factor": share}
    return {
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
        "vocab_size": c.vocab, "hidden_size": c.hidden, "num_hidden_layers": c.n_layers,
        "moe_intermediate_size": c.moe_intermediate_size, "num_attention_heads": c.n_heads,
        "num_key_value_heads": 1, "head_dim": c.head_dim, "q_lora_rank": c.q_lora_rank,
        "o_lora_rank": c.o_lora_rank, "o_groups": c.o_groups,
        "num_experts_per_tok": c.num_experts_per_tok, "n_routed_experts": c.n_routed_experts,
        "n_shared_experts": 1, "routed_scaling_factor": c.routed_scaling_factor,
        "layer_types": [kinds.get(c.ratio(i), "heavily_compressed_attention")
                        for i in range(c.n_layers)],
        "compress_rates": {"compressed_sparse_attention": 4,
                           "heavily_compressed_attention": next(iter(others), 128)},
        "mlp_layer_types": ["hash_moe" if c.is_hashed(i) else "moe" for i in range(c.n_layers)],
        "swiglu_limit": c.swiglu_limit, "sliding_window": c.sliding_window,
        "index_n_heads": c.index_n_heads, "index_head_dim": c.index_head_dim,
        "index_topk": c.index_topk, "hc_mult": c.hc_mult, "rms_norm_eps": c.rms_norm_eps,
        "hc_sinkhorn_iters": c.hc_sinkhorn_iters, "hc_eps": c.hc_eps,
        "partial_rotary_factor": share, "rope_theta": c.rope_theta,
        "compress_rope_theta": c.compress_rope_theta,
        "rope_parameters": {"main": main, "compress": yarn}, "tie_word_embeddings": False,
        "act_qat": c.act_qat, "bos_token_id": c.specials.get("bos", 0),
        "eos_token_id": c.specials.get("end_of_msg", 1),
    }

"""The whole DeepSeek-V4 model against the classes of the `transformers` library, where the
installed version has them.

Those compute without the 8- and 4-bit rounding of cached rows, which is switched off here too, and
leave the order of equal index scores open.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nano.dsv4.config import Dsv4Config
from nano.dsv4.decode import run
from nano.dsv4.random_model import RECIPES, as_model, random_state, token_ids

hf: Any = pytest.importorskip(
    "transformers.models.deepseek_v4.modeling_deepseek_v4",
    reason="this Python has no transformers with DeepSeek-V4 classes",
)

LENGTH = 150  # the window of 128 is full, one dense row is closed, the indexer has to choose
RENAMED = {
    "attn.wq_a": "self_attn.q_a_proj", "attn.q_norm": "self_attn.q_a_norm",
    "attn.wq_b": "self_attn.q_b_proj", "attn.wkv": "self_attn.kv_proj",
    "attn.kv_norm": "self_attn.kv_norm", "attn.wo_a": "self_attn.o_a_proj",
    "attn.wo_b": "self_attn.o_b_proj", "attn.attn_sink": "self_attn.sinks",
    "attn.indexer.wq_b": "self_attn.compressor.indexer.q_b_proj",
    "attn.indexer.weights_proj": "self_attn.compressor.indexer.scorer.weights_proj",
    "attn.indexer.compressor": "self_attn.compressor.indexer",
    "attn.compressor": "self_attn.compressor",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "hc_attn_": "attn_hc.", "hc_ffn_": "ffn_hc.",
    "ffn.gate.bias": "mlp.gate.e_score_correction_bias", "ffn.gate": "mlp.gate",
    "ffn.experts.w2": "mlp.experts.down_proj",
    "ffn.shared_experts.w1": "mlp.shared_experts.gate_proj",
    "ffn.shared_experts.w2": "mlp.shared_experts.down_proj",
    "ffn.shared_experts.w3": "mlp.shared_experts.up_proj",
}
TAILS = {"wkv.weight": "kv_proj.weight", "wgate.weight": "gate_proj.weight",
         "ape": "position_bias", "norm.weight": "kv_norm.weight"}
GLOBALS = {"embed.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight",
           "norm.weight": "model.norm.weight", "hc_head_fn": "model.hc_head.hc_fn",
           "hc_head_base": "model.hc_head.hc_base", "hc_head_scale": "model.hc_head.hc_scale"}


def their_name(name: str) -> str:
    if name in GLOBALS:
        return GLOBALS[name]
    _, layer, rest = name.split(".", 2)
    old = max((key for key in RENAMED if rest.startswith(key)), key=len)
    tail = rest.removeprefix(old)
    if old.endswith("compressor"):
        tail = "." + TAILS[tail.removeprefix(".")]
    return f"model.layers.{layer}.{RENAMED[old]}{tail}"


def their_state(state: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    out = {}
    for layer in range(layers):
        w1, w3 = (state.pop(f"layers.{layer}.ffn.experts.{part}") for part in ("w1", "w3"))
        out[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = torch.cat([w1, w3], dim=1)
    return out | {their_name(name): t for name, t in state.items()}


def their_model(c: Dsv4Config) -> Any:
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention",
             128: "heavily_compressed_attention"}
    share = c.qk_rope_head_dim / c.head_dim
    rope = {
        "main": {"rope_type": "default", "rope_theta": c.rope_theta,
                 "partial_rotary_factor": share},
        "compress": {
            "rope_type": "yarn", "rope_theta": c.compress_rope_theta, "factor": c.yarn_factor,
            "beta_fast": c.yarn_beta_fast, "beta_slow": c.yarn_beta_slow,
            "original_max_position_embeddings": c.yarn_orig_seq_len, "attention_factor": 1.0,
            "partial_rotary_factor": share,
        },
    }
    config = DeepseekV4Config(
        vocab_size=c.vocab, hidden_size=c.hidden, num_hidden_layers=c.n_layers,
        moe_intermediate_size=c.moe_intermediate_size, num_attention_heads=c.n_heads,
        head_dim=c.head_dim, q_lora_rank=c.q_lora_rank, o_lora_rank=c.o_lora_rank,
        o_groups=c.o_groups, num_experts_per_tok=c.num_experts_per_tok,
        n_routed_experts=c.n_routed_experts, routed_scaling_factor=c.routed_scaling_factor,
        layer_types=[kinds[c.ratio(i)] for i in range(c.n_layers)],
        mlp_layer_types=["hash_moe" if c.is_hashed(i) else "moe" for i in range(c.n_layers)],
        swiglu_limit=c.swiglu_limit, sliding_window=c.sliding_window,
        index_n_heads=c.index_n_heads, index_head_dim=c.index_head_dim, index_topk=c.index_topk,
        hc_mult=c.hc_mult, hc_sinkhorn_iters=c.hc_sinkhorn_iters, hc_eps=c.hc_eps,
        rms_norm_eps=c.rms_norm_eps, partial_rotary_factor=share, rope_parameters=rope,
        attn_implementation="eager", use_cache=False,
    )
    return hf.DeepseekV4ForCausalLM(config).eval()


@pytest.mark.parametrize("name", ["a", "b"])
@torch.no_grad()
def test_logits(name: str) -> None:
    recipe = RECIPES[name]
    changes = {"act_qat": False, "index_n_heads": 16}  # many heads: no two scores are both 0
    config = Dsv4Config.from_json({**recipe.config, **changes})
    ours = as_model(config, random_state(recipe, config, 1))
    theirs = their_model(config)
    state = their_state(dict(ours.state_dict()), config.n_layers)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected and all("rotary_emb" in m for m in missing)
    ids = token_ids(recipe, config, 1)[:LENGTH]
    expected = theirs(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(ours(torch.tensor([ids]))[0], expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(run(ours, ids), expected, atol=2e-5, rtol=0)

"""Running a checkpoint of any family, with looks into its layers.

Kimi K3 and DeepSeek-V4 run through this package's models, the other families through the classes
of `transformers`, built from the config alone: no code of a checkpoint is executed.  Weights come
through the view.  With `stream` a layer's weights are in memory only while it runs, so that a
checkpoint may be larger than the memory.

Points of a layer, all [rows, d]:
    resid_in   the stream that the layer reads
    attn_out   what attention adds
    ffn_resid  the stream that the feed-forward part reads, before its norm
    ffn_in     the same over its rms, without the gain
    ffn_in_gained  with the gain: what the matrices see
    ffn_out    what the feed-forward part gives, before any norm behind it
    resid_out  the stream behind the layer
Of K3 a stream that a sublayer reads is the mixed vector, and resid_out the running sum; of
DeepSeek-V4 it is the weighted sum of the four streams, and resid_out their mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nano.config import K3Config
from nano.dsv4.config import Dsv4Config
from nano.dsv4.mixing import mixer, next_streams, sublayer_input
from nano.dsv4.model import Dsv4Model
from nano.graft.checkpoint import Checkpoint
from nano.graft.errors import GraftError
from nano.graft.functions import FfnModule
from nano.model import K3Model, mix
from nano.models import build_model
from nano.tensors import STACK_NAME

POINTS = ("resid_in", "attn_out", "ffn_resid", "ffn_in", "ffn_in_gained", "ffn_out", "resid_out")
Site = tuple[int, str]
HEAD_ROWS = 512  # rows of logits held at a time


class EarlyStop(Exception):
    """Nothing behind this layer is wanted."""


def over_rms(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


class Runner:
    """`forward` and `hidden`; not thread-safe.  Subclasses know where a family keeps its parts."""

    head_names: tuple[str, ...] = ()  # modules that only logits need

    def __init__(self, source: Checkpoint, stream: bool = False,
                 dtype: torch.dtype = torch.float32) -> None:
        self.source, self.cfg, self.stream, self.dtype = source, source.cfg, stream, dtype
        self.model = self._build().eval()
        self.model.requires_grad_(False)
        self.layers: list[nn.Module] = list(self._layer_list())
        self._prefixes = {id(m): n for n, m in self.model.named_modules()}
        later = [self.model.get_submodule(n) for n in self.head_names] if stream else []
        self._load(self.model, skip=[*later, *self.layers] if stream else [])
        for module in later:  # scans need no logits
            module.register_forward_pre_hook(lambda m, _: self._load(m))
        if stream:
            for layer in self.layers:
                layer.register_forward_pre_hook(lambda m, _: self._load(m))
                layer.register_forward_hook(lambda m, *_: self._unload(m))
        self._gains: dict[int, Tensor] = {}

    # -- to be given -------------------------------------------------------------------------

    def _build(self) -> nn.Module:
        raise NotImplementedError

    def _layer_list(self) -> Iterable[nn.Module]:
        raise NotImplementedError

    def attention(self, layer: int) -> nn.Module:
        raise NotImplementedError

    def ffn(self, layer: int) -> nn.Module:
        return getattr(self.layers[layer], self.ffn_attribute(layer))

    def ffn_attribute(self, layer: int) -> str:
        raise NotImplementedError

    def _streams(self, layer: int, call: tuple, attn: Tensor) -> tuple[Tensor, Tensor]:
        """resid_in and ffn_resid of a layer from its call and what attention gave."""
        raise NotImplementedError

    def _resid_out(self, out: Any) -> Tensor:
        return out

    def trunk(self, ids: Tensor) -> Tensor:
        """Normed output vectors [B, T, d]."""
        raise NotImplementedError

    def tail(self, first: int, calls: list[tuple]) -> Tensor:
        """As `trunk`, from layer `first` on, with the calls of layers that a trunk recorded."""
        raise NotImplementedError

    def head(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError

    def _value(self, name: str) -> np.ndarray:
        """The tensor that the model has under `name`."""
        raise NotImplementedError

    # -- weights -----------------------------------------------------------------------------

    def _load(self, module: nn.Module, skip: list[nn.Module] | None = None) -> None:
        spared = {id(m) for layer in skip or [] for m in layer.modules()}
        for child in module.modules():
            if id(child) in spared or isinstance(child, FfnModule):
                continue
            for name, p in list(child._parameters.items()):
                if p is not None and p.is_meta:
                    child._parameters[name] = nn.Parameter(self._read(child, name, p), False)
            for name, b in list(child._buffers.items()):
                if b is not None and b.is_meta:
                    child._buffers[name] = self._read(child, name, b)

    def _read(self, module: nn.Module, name: str, like: Tensor) -> Tensor:
        prefix = self._prefixes[id(module)]
        full = f"{prefix}.{name}" if prefix else name
        if name in module._non_persistent_buffers_set:
            return torch.zeros(like.shape, dtype=like.dtype)
        values = torch.from_numpy(np.ascontiguousarray(self._value(full)))
        if values.numel() != like.numel():
            raise GraftError(f"{self.source.path}: {full} has {values.numel()} values, the model "
                             f"takes {like.numel()}")
        kind = self.dtype if like.is_floating_point() else like.dtype
        return values.to(kind).reshape(like.shape)

    def _unload(self, module: nn.Module) -> None:
        for child in module.modules():
            if isinstance(child, FfnModule):
                continue
            for name, p in child._parameters.items():
                if p is not None:
                    child._parameters[name] = nn.Parameter(p.to("meta"), False)

    def swap_ffn(self, layer: int, module: nn.Module) -> nn.Module:
        """Puts a module in place of a layer's feed-forward part; returns the one before."""
        name = self.ffn_attribute(layer)
        before = getattr(self.layers[layer], name)
        setattr(self.layers[layer], name, module)
        return before

    # -- running -----------------------------------------------------------------------------

    def logits(self, ids: Tensor) -> Tensor:
        """[B, T, V]."""
        return self.head(self.trunk(ids))

    def token_nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """-log p of targets [R] after normed vectors [R, d], f64, a few logits at a time."""
        out = []
        for h, t in zip(hidden.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True):
            logits = self.head(h).double()
            out.append(F.cross_entropy(logits, t, reduction="none"))
        return torch.cat(out) if out else torch.zeros(0, dtype=torch.float64)

    def capture(self, ids: Tensor, sites: Iterable[Site],
                want_hidden: bool = False) -> tuple[dict[Site, Tensor], Tensor | None]:
        """Values [B, T, d] at the sites, and normed output vectors if wanted.

        Layers behind the last site are not run unless the output is wanted.
        """
        sites = set(sites)
        out: dict[Site, Tensor] = {}
        handles = []
        last = max((layer for layer, _ in sites), default=-1)
        for layer in sorted({layer for layer, _ in sites}):
            handles += self._watch(layer, {p for at, p in sites if at == layer}, out)

        def stop(*_: Any) -> None:
            raise EarlyStop

        if not want_hidden and last >= 0:
            handles.append(self.layers[last].register_forward_hook(stop))
        try:
            hidden = self.trunk(ids)
        except EarlyStop:
            hidden = None
        finally:
            for handle in handles:
                handle.remove()
            if self.stream:
                for layer in self.layers:
                    self._unload(layer)
        return out, hidden if want_hidden else None

    def _watch(self, layer: int, points: set[str], out: dict[Site, Tensor]) -> list[Any]:
        found: dict[str, Any] = {}
        module = self.layers[layer]

        def before(_: nn.Module, args: tuple, kwargs: dict) -> None:
            found["call"] = (args, kwargs)

        def after_attention(_: nn.Module, __: tuple, result: Any) -> None:
            found["attn"] = (result[0] if isinstance(result, tuple) else result).detach()

        def at_ffn(_: nn.Module, args: tuple, result: Any) -> None:
            found["gained"] = args[0].detach()
            found["ffn"] = (result[0] if isinstance(result, tuple) else result).detach()

        def after(_: nn.Module, __: tuple, result: Any) -> None:
            resid_in, ffn_resid = self._streams(layer, found["call"], found["attn"])
            values = {"resid_in": resid_in, "attn_out": found["attn"], "ffn_resid": ffn_resid,
                      "ffn_in_gained": found["gained"], "ffn_out": found["ffn"]}
            if "ffn_in" in points:
                values["ffn_in"] = over_rms(ffn_resid, self.cfg.norm_eps)
            if "resid_out" in points:
                whole = result[0] if isinstance(result, tuple) else result
                values["resid_out"] = self._resid_out(whole.detach())
            for point in points:
                out[(layer, point)] = values[point]

        return [module.register_forward_pre_hook(before, with_kwargs=True),
                self.attention(layer).register_forward_hook(after_attention),
                self.ffn(layer).register_forward_hook(at_ffn),
                module.register_forward_hook(after, prepend=True)]

    def record_calls(self, ids: Tensor) -> tuple[list[tuple], Tensor]:
        """The call of every layer in one forward pass, and the normed output vectors."""
        calls: list[tuple] = []

        def before(_: nn.Module, args: tuple, kwargs: dict) -> None:
            calls.append((args, kwargs))

        handles = [m.register_forward_pre_hook(before, with_kwargs=True) for m in self.layers]
        try:
            return calls, self.trunk(ids)
        finally:
            for handle in handles:
                handle.remove()


class _Twin(Runner):
    """The models of this package."""

    def _build(self) -> nn.Module:
        assert self.source.engine_cfg is not None
        with torch.device("meta"):
            return build_model(self.source.engine_cfg)

    def _layer_list(self) -> Iterable[nn.Module]:
        return self.model.layers

    def _value(self, name: str) -> np.ndarray:
        if STACK_NAME.fullmatch(name):
            stem, part = name.rsplit(".", 1)
            return np.stack([self.source.value(f"{stem}.{e}.{part}")
                             for e in range(self.cfg.n_experts)])
        return self.source.value(name)


class K3Runner(_Twin):
    model: K3Model

    def attention(self, layer: int) -> nn.Module:
        return self.layers[layer].self_attn

    def ffn_attribute(self, layer: int) -> str:
        return "mlp" if self.cfg.ffn_kind[layer] == "dense" else "block_sparse_moe"

    def _streams(self, layer: int, call: tuple, attn: Tensor) -> tuple[Tensor, Tensor]:
        (h, blocks, *_), _kw = call
        at, eps = self.layers[layer], self.cfg.norm_eps
        x = h
        if blocks:
            x = mix([*blocks, h], at.self_attention_res_norm.weight,
                    at.self_attention_res_proj.weight, eps)
        if at.closes_block:
            blocks, p = [*blocks, h], attn
        else:
            p = h + attn
        y = mix([*blocks, p], at.mlp_res_norm.weight, at.mlp_res_proj.weight, eps)
        return x.detach(), y.detach()

    def trunk(self, ids: Tensor) -> Tensor:
        return self.model.hidden(ids)

    def tail(self, first: int, calls: list[tuple]) -> Tensor:
        (h, blocks, docs, options), _ = calls[first]
        for layer in self.layers[first:]:
            out = layer(h, blocks, docs, options)
            if layer.closes_block:
                blocks = [*blocks, h]
            h = out
        m = self.model
        y = mix([*blocks, h], m.output_attn_res_norm.weight, m.output_attn_res_proj.weight,
                self.cfg.norm_eps)
        return over_rms(y, self.cfg.norm_eps) * m.norm.weight

    def head(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.lm_head.weight)


class Dsv4Runner(_Twin):
    model: Dsv4Model

    def attention(self, layer: int) -> nn.Module:
        return self.layers[layer].attn

    def ffn_attribute(self, layer: int) -> str:
        return "ffn"

    def _streams(self, layer: int, call: tuple, attn: Tensor) -> tuple[Tensor, Tensor]:
        (x, *_), _kw = call
        at, c = self.layers[layer], self.model.config

        def mixed(part: str, streams: Tensor) -> Any:
            return mixer(streams, getattr(at, f"hc_{part}_fn"), getattr(at, f"hc_{part}_base"),
                         getattr(at, f"hc_{part}_scale"), c.rms_norm_eps, c.hc_eps,
                         c.hc_sinkhorn_iters)

        first = mixed("attn", x)
        middle = next_streams(x, attn, first)
        return (sublayer_input(x, first.pre).detach(),
                sublayer_input(middle, mixed("ffn", middle).pre).detach())

    def _resid_out(self, out: Any) -> Tensor:
        return out.mean(dim=2)

    def trunk(self, ids: Tensor) -> Tensor:
        return self.model.hidden(ids, self.model._begin(ids, None))

    def tail(self, first: int, calls: list[tuple]) -> Tensor:
        (x, tokens, run, options), _ = calls[first]
        for layer in self.layers[first:]:
            x = layer(x, tokens, run, options)
        return self.model.finish(x)

    def head(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.head.weight)


class LibraryRunner(Runner):
    """Families that `transformers` runs."""

    head_names = ("lm_head",)

    def _build(self) -> nn.Module:
        try:
            import transformers
        except ImportError as err:
            raise GraftError(f"running a {self.source.arch} model needs the package transformers "
                             "(pip install transformers)") from err
        raw = dict(self.source.raw_cfg)
        inner = raw.get("text_config")
        if isinstance(inner, dict):
            raw = inner
        raw = {k: v for k, v in raw.items() if k not in ("quantization_config", "auto_map")}
        kind = str(raw.get("model_type", ""))
        try:
            known = transformers.CONFIG_MAPPING[kind]
        except KeyError as err:
            raise GraftError(f"transformers {transformers.__version__} has no model_type "
                             f"{kind!r}") from err
        config = known.from_dict(raw)
        config._experts_implementation = "eager"  # the fused ones know neither f64 nor gradients
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                config, attn_implementation="eager", dtype=self.dtype)
        # Tables of the rotation are computed, not stored.
        model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
        scale = getattr(model.model.embed_tokens, "embed_scale", None)
        if isinstance(scale, Tensor):
            model.model.embed_tokens.embed_scale = torch.tensor(self.cfg.embed_scale)
        self.cap = getattr(config, "final_logit_softcapping", None)
        return model

    def _layer_list(self) -> Iterable[nn.Module]:
        return self.model.model.layers

    def attention(self, layer: int) -> nn.Module:
        at = self.layers[layer]
        return at.linear_attn if self.cfg.attn_kind[layer] == "gdn" else at.self_attn

    def ffn_attribute(self, layer: int) -> str:
        return "mlp"

    def _streams(self, layer: int, call: tuple, attn: Tensor) -> tuple[Tensor, Tensor]:
        args, kwargs = call
        x = (args[0] if args else kwargs["hidden_states"]).detach()
        if self.source.arch == "gemma3":
            attn = self.layers[layer].post_attention_layernorm(attn)
        return x, x + attn

    def trunk(self, ids: Tensor) -> Tensor:
        return self.model.model(input_ids=ids, use_cache=False).last_hidden_state

    def tail(self, first: int, calls: list[tuple]) -> Tensor:
        args, kwargs = calls[first]
        h = args[0] if args else kwargs["hidden_states"]
        for layer, (args, kwargs) in zip(self.layers[first:], calls[first:], strict=True):
            rest = {k: v for k, v in kwargs.items() if k != "hidden_states"}
            out = layer(h, *args[1:], **rest)
            h = out[0] if isinstance(out, tuple) else out
        return self.model.model.norm(h)

    def head(self, hidden: Tensor) -> Tensor:
        logits = self.model.lm_head(hidden)
        return logits if not self.cap else self.cap * torch.tanh(logits / self.cap)

    def _value(self, name: str) -> np.ndarray:
        if name == "lm_head.weight":
            return self.source.head.read()
        bare = name.removeprefix("model.")
        if bare.endswith(("embed_scale",)):
            return np.float32([self.cfg.embed_scale])
        stem, _, part = bare.rpartition(".")
        if stem.endswith("mlp.experts"):
            return np.stack([self._expert(f"{stem}.{e}", part)
                             for e in range(self.cfg.n_experts)])
        if bare.endswith("mlp.gate_up_proj.weight"):
            return np.concatenate([self.source.value(bare.replace("gate_up", p))
                                   for p in ("gate", "up")])
        return self.source.value(bare)

    def _expert(self, stem: str, part: str) -> np.ndarray:
        if part == "down_proj":
            return self.source.value(f"{stem}.down_proj.weight")
        return np.concatenate([self.source.value(f"{stem}.{p}_proj.weight")
                               for p in ("gate", "up")])


def open_runner(source: Checkpoint, stream: bool = False,
                dtype: torch.dtype = torch.float32) -> Runner:
    """The backend of the checkpoint's family."""
    if isinstance(source.engine_cfg, K3Config):
        return K3Runner(source, stream, dtype)
    if isinstance(source.engine_cfg, Dsv4Config):
        return Dsv4Runner(source, stream, dtype)
    return LibraryRunner(source, stream, dtype)

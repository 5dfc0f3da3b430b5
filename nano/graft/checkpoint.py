"""A checkpoint of any family as layers of matrices, read and changed under one set of names.

All matrices are [out, in] in f32.  Fusion, transposition, quantisation and norms that are stored
as w for 1 + w are undone when reading and done again when writing.  `set` stages a change;
nothing reaches the disk before `writer.commit`.  Not thread-safe.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nano import checkpoint as training
from nano.arch import Config as EngineConfig
from nano.arch import config_from_json, model_tensors
from nano.config import K3Config
from nano.dsv4.config import Dsv4Config
from nano.graft import config as configs
from nano.graft import published, tables
from nano.graft.config import Config
from nano.graft.errors import GraftError
from nano.graft.source import MkimSource, SafetensorsSource

Array = NDArray[Any]
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Slot:
    """Where a matrix lies: a tensor, or an index, some rows, of one; perhaps transposed."""

    name: str
    index: int | None = None
    rows: tuple[int, int] | None = None
    transposed: bool = False

    def cut(self, whole: Array) -> Array:
        """The [out, in] view of this slot in the tensor (or in its index)."""
        matrix = whole.T if self.transposed else whole
        return matrix if self.rows is None else matrix[self.rows[0] : self.rows[1]]


@dataclass
class Matrix:
    """One matrix of a checkpoint under its canonical name."""

    owner: Checkpoint
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.owner.shape(self.name)

    def read(self) -> F32:
        return self.owner.value(self.name)

    def set(self, values: Array) -> None:
        self.owner.set(self.name, values)


@dataclass
class Norm:
    """`gain` is the multiplier in effect: 1 + w where the family stores w."""

    weight: Matrix
    eps: float
    zero_centred: bool

    def gain(self) -> F32:
        w = self.weight.read()
        return w + np.float32(1) if self.zero_centred else w

    def set_gain(self, gain: Array) -> None:
        self.weight.set(gain - 1 if self.zero_centred else gain)


@dataclass
class GatedMLP:
    """down(act(gate x, up x)); gate, up [I, in], down [out, I]."""

    gate: Matrix
    up: Matrix
    down: Matrix

    def read(self) -> tuple[F32, F32, F32]:
        return self.gate.read(), self.up.read(), self.down.read()

    def set(self, gate: Array | None = None, up: Array | None = None,
            down: Array | None = None) -> None:
        for matrix, values in ((self.gate, gate), (self.up, up), (self.down, down)):
            if values is not None:
                matrix.set(values)

    @property
    def inner(self) -> int:
        return self.gate.shape[0]


@dataclass
class Router:
    kind: str  # softmax, sigmoid, sqrtsoftplus
    weight: Matrix
    bias: Matrix | None
    table: Matrix | None  # experts of each token id [V, k]; selection does not look at scores
    top_k: int
    scale: float


@dataclass
class FFNView:
    kind: str  # dense, moe, latent_moe
    act: str
    act_params: tuple[float, ...]
    dense: GatedMLP | None = None
    experts: list[GatedMLP] = field(default_factory=list)
    shared: list[GatedMLP] = field(default_factory=list)
    shared_gate: Matrix | None = None
    router: Router | None = None
    latent: tuple[Matrix, Matrix, Norm] | None = None  # down, up, norm of the mixture


@dataclass
class Layer:
    index: int
    attn_kind: str
    attention: dict[str, Matrix]
    ffn: FFNView
    norms: dict[str, Norm | None]  # pre_attn, post_attn, pre_ffn, post_ffn
    residual: str


class Checkpoint:
    """Open with `open_checkpoint`; close it, or use it as a context manager."""

    def __init__(self, path: Path, arch: str, source: MkimSource | SafetensorsSource,
                 raw_cfg: dict[str, Any]) -> None:
        self.path, self.arch, self.source, self.raw_cfg = path, arch, source, raw_cfg
        self.engine_cfg: EngineConfig | None = None
        self.prefix = ""
        self.warnings: list[str] = list(getattr(source, "warnings", []))
        self.staged: dict[str, Array] = {}  # whole tensors by their name in the file
        self._load_config()
        self._slots: dict[str, Slot] = {}
        self._check_names()
        self._layers: list[Layer] | None = None
        self._grouped: list[list[str]] | None = None
        self.chosen = range(self.cfg.n_layers)  # layers that instruments look at

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.source.close()

    # -- config and names --------------------------------------------------------------------

    def _load_config(self) -> None:
        if isinstance(self.source, MkimSource):
            self.engine_cfg = self.source.file.model_config()
        elif self.arch.startswith("mkim"):
            self.engine_cfg = config_from_json(self.raw_cfg)
        else:
            self.prefix = _prefix(self.source)
            if self.arch == "kimi_k3":
                self.engine_cfg = published.k3_from_published(self.raw_cfg)
            elif self.arch == "deepseek_v4":
                self.engine_cfg = published.dsv4_from_library(self.raw_cfg)
        if isinstance(self.engine_cfg, K3Config):
            self.cfg: Config = configs.k3_normal(self.engine_cfg)
        elif isinstance(self.engine_cfg, Dsv4Config):
            self.cfg = configs.dsv4_normal(self.engine_cfg)
        else:
            self.cfg = configs.library_config(self.arch, self.raw_cfg)

    def traits(self, layer: int) -> set[str]:
        """What a layer of a library family has; biases and such by the presence of tensors."""
        c, out = self.cfg, set()
        out.add("linear" if c.attn_kind[layer] == "gdn" else "heads")
        out.add(c.ffn_kind[layer])
        if self.arch == "gemma3":
            out.add("sandwich")
        here = f"{self.prefix}layers.{layer}.self_attn."
        for trait, name in (("qkv_bias", "q_proj.bias"), ("o_bias", "o_proj.bias"),
                            ("qk_norm", "q_norm.weight"), ("fused_qkv", "qkv_proj.weight")):
            if here + name in self.source:
                out.add(trait)
        return out

    def expected(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Canonical names and shapes of every tensor in the view."""
        if self.engine_cfg is not None:
            for t in model_tensors(self.engine_cfg):
                yield t.name, t.dims
            return
        dims = self.cfg.dims
        tied = {"tied"} if self.cfg.tied else set()

        def shape(row: tables.Row) -> tuple[int, ...]:
            return tuple(int(s) if s.isdigit() else dims[s] for s in row.shape)

        for row in tables.GLOBAL_ROWS:
            if row.applies(tied):
                yield row.name, shape(row)
        for layer in range(self.cfg.n_layers):
            traits = self.traits(layer)
            for row in tables.LAYER_ROWS:
                if row.applies(traits):
                    yield f"layers.{layer}.{row.name}", shape(row)
            for e in range(self.cfg.n_experts if "moe" in traits else 0):
                for row in tables.EXPERT_ROWS:
                    yield f"layers.{layer}.{row.name.format(e=e)}", shape(row)

    def _check_names(self) -> None:
        used: set[str] = set()
        for name, dims in self.expected():
            slot = self._find(name, dims)
            self._slots[name] = slot
            used.add(slot.name)
            if isinstance(self.source, SafetensorsSource):
                scale = self.source.scale_of(slot.name)
                used |= {scale} if scale else set()
        extra = [n for n in self.source.names() if n not in used
                 and not n.startswith(tables.OUTSIDE) and n != "vq_codebook"]
        if extra and isinstance(self.source, SafetensorsSource):
            self.warnings.append(f"{len(extra)} tensors outside the view are copied as they are, "
                                 f"such as {extra[0]}")
        self.outside = [n for n in self.source.names() if n not in used]

    def _find(self, name: str, dims: tuple[int, ...]) -> Slot:
        for candidate in self._candidates(name):
            if candidate in self.source:
                slot = Slot(candidate)
                self._check_shape(name, slot, dims)
                return slot
        for part in tables.fused(name):
            if self.prefix + part.name in self.source:
                return self._fused_slot(self.prefix + part.name, part, dims)
        raise GraftError(f"{self.path}: the tensor {self._candidates(name)[0]} is missing")

    def _candidates(self, name: str) -> list[str]:
        if self.arch.startswith("mkim"):
            return [name]
        if name in ("lm_head.weight", "head.weight"):
            return [self.prefix + "head.weight", *tables.HEADS]
        return [self.prefix + alias for alias in tables.aliases(self.arch, name)]

    def _check_shape(self, name: str, slot: Slot, dims: tuple[int, ...]) -> None:
        found = self.source.shape(slot.name)
        count, expected = int(np.prod(found, dtype=np.int64)), int(np.prod(dims, dtype=np.int64))
        padded = name.endswith(".A_log") and self.arch == "kimi_k3" and count > expected
        if not padded and (count != expected or (len(found) == 2 == len(dims) and found != dims)):
            raise GraftError(f"{self.path}: {slot.name} is {list(found)}, the config calls for "
                             f"{list(dims)}")

    def _fused_slot(self, whole: str, part: tables.Fused, dims: tuple[int, ...]) -> Slot:
        found = self.source.shape(whole)
        if part.index is not None:
            if len(found) != 3 or found[0] != self.cfg.n_experts:
                raise GraftError(f"{self.path}: {whole} is {list(found)}, not a stack of "
                                 f"{self.cfg.n_experts} matrices")
            found = found[1:]
        rows, cols = (dims[0] * (2 if part.part in ("gate", "up") else 1)), dims[1]
        straight, turned = found == (rows, cols), found == (cols, rows)
        kind = str(configs.text_part(self.raw_cfg).get("model_type", ""))
        if straight and turned:
            if kind in tables.TRANSPOSED_TYPES:
                straight = False
            elif not self.arch.startswith("mkim") and kind not in tables.MODEL_TYPES:
                raise GraftError(f"{self.path}: {whole}: {list(found)} may be read two ways, and "
                                 f"model_type {kind or '(none)'} does not say which")
        if not straight and not turned:
            raise GraftError(f"{self.path}: {whole} holds {list(found)}, the config calls for "
                             f"{[rows, cols]}")
        half = {"gate": (0, dims[0]), "up": (dims[0], 2 * dims[0])}.get(part.part)
        return Slot(whole, part.index, half, transposed=not straight)

    # -- values ------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Canonical names."""
        return list(self._slots)

    def shape(self, name: str) -> tuple[int, ...]:
        slot = self.slot(name)
        found = self.source.shape(slot.name)
        if slot.index is not None:
            found = found[1:]
        if slot.transposed:
            found = found[::-1]
        return (slot.rows[1] - slot.rows[0], *found[1:]) if slot.rows else found

    def slot(self, name: str) -> Slot:
        try:
            return self._slots[name]
        except KeyError:
            raise GraftError(f"{self.path}: the model has no {name}") from None

    def value(self, name: str) -> Array:
        """f32 (integers for tables), finite, staged changes included."""
        slot = self.slot(name)
        staged = self.staged.get(slot.name)
        if staged is not None:
            whole = staged if slot.index is None else staged[slot.index]
            out = slot.cut(whole).copy()
        else:
            out = np.ascontiguousarray(slot.cut(self.source.read(slot.name, slot.index)))
        if out.dtype == np.float32 and not np.isfinite(out).all():
            raise GraftError(f"{self.path}: {slot.name} holds values that are not finite")
        if name.endswith(".A_log") and self.arch == "kimi_k3":
            return self._cut_padding(slot, out)
        return out

    def _cut_padding(self, slot: Slot, values: Array) -> Array:
        assert isinstance(self.engine_cfg, K3Config)
        heads, flat = self.engine_cfg.kda_heads, values.reshape(-1)
        if np.any(flat[heads:]):
            raise GraftError(f"{self.path}: {slot.name} is not zero behind its {heads} heads")
        return flat[:heads]

    def set(self, name: str, values: Array) -> None:
        """Stages new values for a tensor of the view."""
        slot, values = self.slot(name), np.asarray(values)
        if values.size != int(np.prod(self.shape(name))) and not name.endswith(".A_log"):
            raise GraftError(f"{name} takes {list(self.shape(name))}, not {list(values.shape)}")
        if not np.isfinite(values).all():
            raise GraftError(f"{name}: new values are not finite")
        if slot.name not in self.staged:
            self.staged[slot.name] = self.source.read(slot.name).copy()
        staged = self.staged[slot.name]
        target = slot.cut(staged if slot.index is None else staged[slot.index])
        if name.endswith(".A_log"):
            target.reshape(-1)[: values.size] = values.reshape(-1)
        else:
            target[...] = values.reshape(target.shape)

    # -- views -------------------------------------------------------------------------------

    @property
    def layers(self) -> list[Layer]:
        if self._layers is None:
            self._layers = [self._layer(i) for i in range(self.cfg.n_layers)]
        return self._layers

    def _by_layer(self) -> list[list[str]]:
        """Names of each layer, found once: a large model has a quarter of a million."""
        if self._grouped is None:
            self._grouped = [[] for _ in range(self.cfg.n_layers)]
            for name in self._slots:
                if name.startswith("layers."):
                    self._grouped[int(name.split(".", 2)[1])].append(name)
        return self._grouped

    def matrix(self, name: str) -> Matrix:
        self.slot(name)
        return Matrix(self, name)

    def norm(self, name: str) -> Norm:
        plain = name.endswith(tables.PLAIN_NORMS)
        return Norm(self.matrix(name), self.cfg.norm_eps, self.cfg.zero_centred and not plain)

    @property
    def final_norm(self) -> Norm:
        return self.norm("norm.weight")

    @property
    def embed(self) -> Matrix:
        name = "embed.weight" if "embed.weight" in self._slots else "embed_tokens.weight"
        return self.matrix(name)

    @property
    def head(self) -> Matrix:
        name = next((n for n in ("lm_head.weight", "head.weight") if n in self._slots), None)
        return self.embed if name is None else self.matrix(name)

    def _layer(self, index: int) -> Layer:
        here = f"layers.{index}."
        n = tables.FFN_NAMES[self.arch]
        prefix = re.compile(r"(self_attn|linear_attn|attn)\.")

        def norm(name: str | None) -> Norm | None:
            return None if name is None else self.norm(here + name)

        attention = {
            name.removeprefix(here): self.matrix(name) for name in self._by_layer()[index]
            if prefix.match(name.removeprefix(here))
        }
        norms = {"pre_attn": norm(n.pre_attn), "post_attn": norm(n.post_attn),
                 "pre_ffn": norm(n.pre_ffn), "post_ffn": norm(n.post_ffn)}
        return Layer(index, self.cfg.attn_kind[index], attention, self._ffn(index, n), norms,
                     self.cfg.residual)

    def _mlp(self, here: str, names: tuple[str, str, str], **number: int) -> GatedMLP:
        return GatedMLP(*(self.matrix(here + name.format(**number)) for name in names))

    def _ffn(self, index: int, n: tables.FfnNames) -> FFNView:
        c, here = self.cfg, f"layers.{index}."
        view = FFNView(c.ffn_kind[index], c.act, c.act_params)
        if view.kind == "dense":
            view.dense = self._mlp(here, n.dense)
            return view
        view.experts = [self._mlp(here, n.expert, e=e) for e in range(c.n_experts)]
        view.shared = [self._mlp(here, n.shared)]
        if n.shared_gate:
            view.shared_gate = self.matrix(here + n.shared_gate)
        hashed = n.table is not None and index < c.hash_layers
        kind = {"situ": "sigmoid", "swiglu_clamp": "sqrtsoftplus"}.get(c.act, "softmax")
        view.router = Router(
            kind, self.matrix(here + n.router),
            self.matrix(here + n.router_bias) if n.router_bias and not hashed else None,
            self.matrix(here + str(n.table)) if hashed else None, c.top_k, c.routed_scale,
        )
        if n.latent:
            down, up, norm = n.latent
            view.latent = (self.matrix(here + down), self.matrix(here + up),
                           self.norm(here + norm))
        return view

    # -- identity ----------------------------------------------------------------------------

    def parameters(self) -> int:
        return sum(int(np.prod(self.shape(name))) for name in self._slots)

    def files(self) -> list[Path]:
        """The files that hold tensors."""
        if isinstance(self.source, MkimSource):
            return [self.path]
        return [shard.path for shard in self.source.shards]

    def digest(self) -> str:
        """SHA-256 over config and files; of files above 8 GiB a megabyte in every 64."""
        h = hashlib.sha256(json.dumps(self.raw_cfg, sort_keys=True).encode())
        for path in self.files():
            size = path.stat().st_size
            step = 1 << 20 if size <= 8 << 30 else 64 << 20
            h.update(f"{path.name}:{size}".encode())
            with path.open("rb") as f:
                for start in range(0, size, step):
                    f.seek(start)
                    h.update(f.read(1 << 20))
        return h.hexdigest()

    def info(self) -> dict[str, Any]:
        return {"path": self.path.name, "arch": self.arch, "digest": self.digest(),
                "params": self.parameters()}


def _prefix(source: SafetensorsSource) -> str:
    for prefix in tables.PREFIXES:
        if any(prefix + name in source for name in tables.EMBEDS):
            return prefix
    raise GraftError(f"{source.path}: no embedding under a known prefix "
                     f"({', '.join(p or '(none)' for p in tables.PREFIXES)})")


def _layer_range(text: str, name: str, layers: int) -> range:
    match = re.fullmatch(r"layers=(\d+)(?:-(\d+))?", text)
    first = int(match[1]) if match else 0
    last = int(match[2] or first) if match else -1
    if not match or not 0 <= first <= last < layers:
        raise GraftError(f"{name}: after # comes layers=FIRST-LAST, within 0-{layers - 1}")
    return range(first, last + 1)


def open_checkpoint(model: Path | str) -> Checkpoint:
    """A `.bin` file, a directory with `config.json` and `*.safetensors`, or a checkpoint or run
    directory of `nano.train`; `#layers=2-5` behind it limits what instruments look at.
    """
    name, _, part = str(model).partition("#")
    out = _open(Path(name))
    if part:
        try:
            out.chosen = _layer_range(part, str(model), out.cfg.n_layers)
        except GraftError:
            out.close()
            raise
    return out


def _open(path: Path) -> Checkpoint:
    if path.is_file():
        if path.suffix in (".pt", ".pth", ".pkl"):
            raise GraftError(f"{path}: pickles are never read; `nano.bin2pt` and `nano.export` "
                             "convert checkpoints of this project")
        source = MkimSource(path)
        try:
            arch = "mkim_dsv4" if isinstance(source.file.model_config(), Dsv4Config) else "mkim_k3"
            return Checkpoint(path, arch, source, dict(source.file.config))
        except BaseException:
            source.close()
            raise
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such model")
    if (path / "state.json").is_file() or (path / "latest").exists():
        return _open_training(path)
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path}: no config.json here; a model is a .bin file or a "
                                "directory with config.json and *.safetensors")
    raw = configs.read_json(path / "config.json")
    files = SafetensorsSource(path)
    try:
        return Checkpoint(path, configs.detect(raw, set(files.names())), files, raw)
    except BaseException:
        files.close()
        raise


def _open_training(path: Path) -> Checkpoint:
    """A checkpoint of `nano.train`: its averaged weights if it has any."""
    try:
        found = training.open_checkpoint(path)
    except training.CheckpointError as err:
        raise GraftError(str(err)) from err
    arch = "mkim_dsv4" if isinstance(found.config, Dsv4Config) else "mkim_k3"
    averaged = found.path / training.EMA
    files = SafetensorsSource(averaged if averaged.is_file() else found.path / training.MODEL)
    return Checkpoint(found.path, arch, files, found.config.to_json())

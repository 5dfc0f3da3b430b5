"""The container: known bytes, every kind of damage, and the recorded models."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from nano.mkim import DType, MkimError, MkimFile, bf16_to_f32, f32_to_bf16
from nano.mkim_writer import MkimWriter, Spec, plan
from nano.tests.random_model import GOLDEN

EXPERT = "layers.0.block_sparse_moe.experts.0.w1"
CONFIG = b'{"hidden":2,"n_layers":1}'


def example() -> bytearray:
    """The two-tensor file of the format description, byte by byte."""
    raw = bytearray(4113)
    head = b"MKIM0002" + struct.pack("<I", 25) + CONFIG + struct.pack("<I", 2)
    head += struct.pack("<H", 11) + b"norm.weight" + bytes([0, 1]) + struct.pack("<IQQ", 2, 192, 8)
    head += struct.pack("<H", 38) + EXPERT.encode() + bytes([1, 2])
    head += struct.pack("<IIQQ", 1, 32, 4096, 17)
    assert len(head) == 142
    raw[: len(head)] = head
    raw[192:200] = bytes.fromhex("0000803f000000bf")
    raw[4096:4112] = bytes.fromhex("1032547698badcfe" * 2)
    raw[4112] = 126
    return raw


def put(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(raw)
    return path


def container(path: Path) -> MkimFile:
    return MkimFile(path, model_checks=False)


def test_example_decodes(tmp_path: Path) -> None:
    with container(put(tmp_path, example())) as f:
        assert f.version == 2
        assert f.config == {"hidden": 2, "n_layers": 1}
        assert list(f.entries) == ["norm.weight", EXPERT]
        assert f.read("norm.weight").tolist() == [1.0, -0.5]
        row = [0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 0, -0.25, -0.5, -0.75, -1, -1.5, -2, -3]
        assert f.read(EXPERT).tolist() == [row + row]


def test_writer_lays_out_the_example() -> None:
    specs = [Spec("norm.weight", DType.F32, (2,)), Spec(EXPERT, DType.MXFP4, (1, 32))]
    header, entries = plan(json.loads(CONFIG), specs, 4096)
    assert header == bytes(example()[:142])
    assert [(e.offset, e.size) for e in entries] == [(192, 8), (4096, 17)]


def patched(at: int, new: bytes) -> bytes:
    raw = example()
    raw[at : at + len(new)] = new
    return bytes(raw)


U64 = "<Q"
DAMAGE = {
    "magic": (patched(7, b"9"), "not a model file"),
    "empty": (b"", "too few"),
    "config length": (patched(8, struct.pack("<I", 5000)), "does not fit"),
    "config length overflow": (patched(8, b"\xff\xff\xff\xff"), "does not fit"),
    "config json": (patched(12, b"["), "not JSON"),
    "config utf-8": (patched(14, b"\xff"), "not UTF-8"),
    "tensor count": (patched(37, struct.pack("<I", 1 << 31)), "cannot be in a file"),
    "tensor count too high": (patched(37, struct.pack("<I", 3)), "directory entry 2"),
    "name length zero": (patched(41, b"\0\0"), "a name of 0 bytes"),
    "name length huge": (patched(41, b"\xff\xff"), "a name of 65535 bytes"),
    "name bytes": (patched(43, b"\0"), "not printable"),
    "dtype": (patched(54, b"\x07"), "unknown element type 7"),
    "extension without format 3": (patched(54, b"\x10"), '"format": 3'),
    "no dims": (patched(55, b"\0"), "0 dims"),
    "five dims": (patched(55, b"\5"), "5 dims"),
    "zero dim": (patched(56, struct.pack("<I", 0)), "sizes of at least 1"),
    "size": (patched(68, struct.pack(U64, 12)), "need 8"),
    "offset in the directory": (patched(60, struct.pack(U64, 64)), "inside the directory"),
    "offset behind the end": (patched(60, struct.pack(U64, 8192)), "truncated"),
    "offset overflow": (patched(60, struct.pack(U64, 2**64 - 4)), "truncated"),
    "unaligned f32": (patched(60, struct.pack(U64, 194)), "not a multiple of 4"),
    "overlap": (patched(60, struct.pack(U64, 4100)), "inside layers.0"),
    "columns not in groups": (patched(122, struct.pack("<I", 31)), "multiples of 32"),
    "dims product": (patched(118, struct.pack("<II", 2**32 - 1, 2**32 - 32)), "sizes of at least"),
    "truncated blob": (bytes(example()[:-1]), "truncated"),
    "truncated directory": (bytes(example()[:100]), "truncated"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused(tmp_path: Path, kind: str) -> None:
    raw, message = DAMAGE[kind]
    path = put(tmp_path, raw)
    with pytest.raises(MkimError) as err:
        container(path)
    assert message in str(err.value)
    assert str(path) in str(err.value)


def test_every_truncation_of_the_header_is_refused(tmp_path: Path) -> None:
    for length in range(142):
        with pytest.raises(MkimError):
            container(put(tmp_path, bytes(example()[:length])))


def test_damaged_headers_never_cause_another_error(tmp_path: Path) -> None:
    """Random bytes in header and config of a whole model: it opens or is refused, no third way."""
    source = (GOLDEN / "k3a" / "model.bin").read_bytes()
    with container(GOLDEN / "k3a" / "model.bin") as f:
        header = f.data_start
    rng = np.random.default_rng(9)
    refused = 0
    for trial in range(300):
        raw = bytearray(source)
        area = 700 if trial % 2 else header
        for at in rng.integers(0, area, 1 + trial % 4):
            raw[at] = rng.integers(0, 256)
        try:
            MkimFile(put(tmp_path, raw)).close()
        except MkimError:
            refused += 1
    assert refused > 200


def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    entry = struct.pack("<H", 1) + b"a" + bytes([0, 1])
    raw = b"MKIM0001" + struct.pack("<I", 2)
    for offset in (128, 192):
        raw += entry + struct.pack("<IQQ", 1, offset, 4)
    with pytest.raises(MkimError, match="listed twice"):
        container(put(tmp_path, raw.ljust(256, b"\0")))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b'{"hidden":2,"hidden":3}', "twice"),
        (b'{"hidden":1e999}', "too large"),
        (b'{"hidden":NaN}', "NaN"),
        (b"[1]", "JSON object"),
        (b'{"a":' * 17 + b"1" + b"}" * 17, "nested"),
        (b'{"a":' * 9000 + b"1" + b"}" * 9000, "nested"),
        (b'{"hidden":2} x', "not JSON"),
    ],
)
def test_config_must_be_strict_json(tmp_path: Path, config: bytes, message: str) -> None:
    raw = b"MKIM0002" + struct.pack("<I", len(config)) + config + struct.pack("<I", 0)
    with pytest.raises(MkimError, match=message):
        container(put(tmp_path, raw))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden", -64), ("hidden", 64.5), ("hidden", "64"), ("n_layers", 0), ("top_k", 9),
        ("attn_res_block", 0), ("mla_layers", [3, 3]), ("mla_layers", [4]), ("kda_conv", 1),
        ("rms_eps", 0), ("gate_lower_bound", 1), ("vocab", True), ("vocab", "many"),
        ("arch", "dense"), ("specials", [1]), ("kda_a_log", "both"),
    ],
)
def test_config_values_are_checked(tmp_path: Path, key: str, value: object) -> None:
    path = reconfigured(tmp_path, {key: value})
    with pytest.raises(MkimError, match=key):
        MkimFile(path)


def reconfigured(tmp_path: Path, changes: dict[str, object]) -> Path:
    """The first recorded model with other config values, rewritten blob by blob."""
    with container(GOLDEN / "k3a" / "model.bin") as f:
        specs = [Spec(e.name, e.dtype, e.dims) for e in f.entries.values()]
        path = tmp_path / "changed.bin"
        with MkimWriter(path, {**f.config, **changes}, specs, model_checks=False) as writer:
            for name in f.entries:
                writer.write_blob(name, f.read_blob(name))
            writer.commit()
    return path


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    with pytest.raises(MkimError, match=r"mlp\.gate_proj\.weight is \[128, 64\]"):
        MkimFile(reconfigured(tmp_path, {"dense_inter": 64}))
    with pytest.raises(MkimError, match=r"layers\.4\.input_layernorm.* missing"):
        MkimFile(reconfigured(tmp_path, {"n_layers": 5, "mla_layers": [3]}))


def test_vq1_needs_its_codebook(tmp_path: Path) -> None:
    specs = [Spec(EXPERT, DType.VQ1, (2, 32))]
    path = tmp_path / "vq.bin"
    with MkimWriter(path, {"n_layers": 1}, specs, model_checks=False) as writer:
        writer.write_blob(EXPERT, bytes([1, 2, 3, 4]))
        with pytest.raises(MkimError, match="vq_codebook"):
            writer.commit()
    assert not path.exists()


def test_vq1_decodes_through_the_codebook(tmp_path: Path) -> None:
    book = np.random.default_rng(3).standard_normal((256, 16)).astype(np.float32)
    specs = [Spec(EXPERT, DType.VQ1, (2, 32)), Spec("vq_codebook", DType.F32, (256, 16))]
    path = tmp_path / "vq.bin"
    with MkimWriter(path, {"n_layers": 1}, specs, model_checks=False) as writer:
        writer.write_blob(EXPERT, bytes([7, 255, 0, 7]))
        writer.write("vq_codebook", book)
        writer.commit()
    with container(path) as f:
        expected = [[*book[7], *book[255]], [*book[0], *book[7]]]
        assert np.array_equal(f.read(EXPERT), np.array(expected))


def test_bf16_rounds_to_nearest_even() -> None:
    bits = [0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF, 0x80000000, 0x00008000]
    values = np.array(bits, np.uint32).view(np.float32)
    halves = f32_to_bf16(values)
    assert [hex(h) for h in halves] == [
        "0x3f80", "0x3f80", "0x3f82", "0x3f81", "0xbf80", "0x8000", "0x0"
    ]
    torch = pytest.importorskip("torch")
    w = np.random.default_rng(4).standard_normal(10_000).astype(np.float32)
    expected = torch.from_numpy(w).to(torch.bfloat16).float().numpy()
    assert np.array_equal(bf16_to_f32(f32_to_bf16(w)), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3.4028234e38])
def test_bf16_refuses_what_becomes_infinite(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        f32_to_bf16(np.array([1.0, bad], np.float32))


def test_writer_leaves_nothing_behind_on_failure(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"old")
    specs = [Spec("a", DType.F32, (2,)), Spec("b", DType.I32, (1,))]
    with (
        pytest.raises(MkimError, match="b was never written"),
        MkimWriter(path, {}, specs, model_checks=False) as writer,
    ):
        writer.write("a", np.zeros(2, np.float32))
        writer.commit()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.bin"]


def test_writer_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    with pytest.raises(MkimError, match="used twice"):
        MkimWriter(path, {}, [Spec("a", DType.F32, (1,))] * 2)
    with pytest.raises(MkimError, match='"format": 3'):
        MkimWriter(path, {}, [Spec("a", DType.BF16, (1, 2))])
    specs = [Spec("a", DType.F32, (2,))]
    with MkimWriter(path, {}, specs, model_checks=False) as writer:
        with pytest.raises(MkimError, match="not finite"):
            writer.write("a", np.array([1, np.nan], np.float32))
        with pytest.raises(MkimError, match="8 expected"):
            writer.write_blob("a", b"123")
        with pytest.raises(MkimError, match="was not declared"):
            writer.write("c", np.zeros(1, np.float32))


def test_recorded_digest_covers_all_blobs_in_order(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    values = {"b": np.arange(5, dtype=np.float32), "a": np.arange(3, dtype=np.float32)}
    specs = [Spec(name, DType.F32, v.shape) for name, v in values.items()]
    with MkimWriter(path, {"x": 1}, specs, model_checks=False) as writer:
        for name in ("a", "b"):
            writer.write(name, values[name])
        writer.commit()
    with container(path) as f:
        expected = hashlib.sha256(values["b"].tobytes() + values["a"].tobytes()).hexdigest()
        assert f.config == {"x": 1, "content_sha256": expected}
        assert all(e.offset % 64 == 0 for e in f.entries.values())
    assert path.stat().st_size == max(e.offset + e.size for e in f.entries.values())


def test_version_1_has_the_documented_defaults(tmp_path: Path) -> None:
    path = tmp_path / "old.bin"
    with MkimWriter(path, None, [Spec("a", DType.F32, (1,))], model_checks=False) as writer:
        writer.write("a", np.ones(1, np.float32))
        writer.commit()
    with container(path) as f:
        assert f.version == 1
        config = f.k3()
    assert (config.n_layers, config.n_experts, config.attn_res_block) == (93, 896, 12)
    assert config.mla_layers == [*range(3, 92, 4), 92]
    assert config.dense_layers == [0]
    assert config.kda_a_log == "channel"


@pytest.mark.parametrize("case", ["k3a", "k3b", "k3c"])
def test_recorded_models_open_and_verify(case: str) -> None:
    with MkimFile(GOLDEN / case / "model.bin") as f:
        f.verify_values()
        config = f.k3()
        recorded = json.loads((GOLDEN / case / "golden.json").read_text())["config"]
        for key in ("n_layers", "hidden", "n_experts", "mla_rope", "specials"):
            assert getattr(config, key) == recorded[key]
        moe = config.n_layers - len(config.dense_layers)
        kda = config.n_layers - len(config.mla_layers)
        expected = (5 + 6 * config.n_layers + 14 * kda + 8 * len(config.mla_layers)
                    + 3 * len(config.dense_layers) + (8 + 3 * config.n_experts) * moe)
        assert len(f.entries) == expected
        assert not [w for w in f.warnings if "unknown" in w]


@pytest.mark.parametrize(
    ("a_log", "heads", "dim", "reading"),
    [(4, 4, 32, "head"), (32, 4, 32, "channel"), (32, 32, 32, "channel")],
)
def test_decay_rates_are_read_per_head_or_channel(
    a_log: int, heads: int, dim: int, reading: str
) -> None:
    from nano.mkim_config import k3_config

    warnings: list[str] = []
    config = k3_config({"kda_heads": heads, "kda_dim": dim}, a_log, warnings)
    assert config.kda_a_log == reading
    assert any("A_log" in w for w in warnings) == (heads == dim)


def test_a_file_cut_after_opening_gives_an_error(tmp_path: Path) -> None:
    path = put(tmp_path, bytes(example()))
    with container(path) as f:
        os.truncate(path, 4100)
        with pytest.raises(MkimError, match="was cut"):
            f.read(EXPERT)

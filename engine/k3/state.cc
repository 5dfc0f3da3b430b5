// The state of K3 sequences as arrays (engine/model/state.h).

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/arch/state_values.h"
#include "engine/k3/k3_model.h"
#include "engine/k3/sequence.h"
#include "engine/k3/weights.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/q8_lanes.h"

namespace mk::k3 {
namespace {

uint32_t Dim(size_t value) {
  return static_cast<uint32_t>(value);
}

// body(first position, number of positions) for what of [0, length) lies in each page.
template <typename Body>
void ForPages(size_t length, const Body& body) {
  for (size_t first = 0; first < length; first += kPageTokens) {
    body(first, std::min(kPageTokens, length - first));
  }
}

}  // namespace

Result<std::vector<StateSection>> K3Model::LayOutState(const StateKey& key) const {
  if (key.rewindable != 0) {
    return Fail(ErrorCode::kInvalidArgument, "no saved state of a K3 model can go back");
  }
  const K3Shape& s = *shape_;
  const LatentShape bytes{s.kv_rank, s.rope};
  const uint32_t n = Dim(key.length);
  std::vector<StateSection> sections;
  for (size_t l = 0; l < s.layers; ++l) {
    const auto add = [&](StateArray array, StateType type, uint32_t a, size_t b, size_t c) {
      sections.push_back({array, static_cast<uint16_t>(l), type, {a, Dim(b), Dim(c)}});
    };
    if (s.attention[l] == AttentionKind::kKda) {
      add(StateArray::kKdaConv, StateType::kF32, 3, s.conv_taps - 1, s.kda_width);
      add(StateArray::kKdaMatrix, StateType::kF32, Dim(s.kda_heads), s.kda_dim, s.kda_dim);
    } else if (key.options.expanded_kv) {
      add(StateArray::kExpandedKeys, StateType::kF32, n, s.mla_heads, s.qk);
      add(StateArray::kExpandedValues, StateType::kF32, n, s.mla_heads, s.value);
    } else if (key.options.precision == Precision::kQ8) {
      add(StateArray::kLatentCodes, StateType::kI8, n, bytes.groups(), kQ8Group);
      add(StateArray::kLatentScales, StateType::kF32, n, bytes.groups(), 1);
    } else {
      add(StateArray::kLatentRows, StateType::kF32, n, s.latent_row(), 1);
    }
  }
  return sections;
}

void K3Sequence::ReadState(const StateSection& section, std::span<std::byte> out) const {
  const K3Shape& s = *shape_;
  const size_t layer = s.attention_index[section.layer];
  const size_t groups = byte_shape().groups();
  const size_t keys = s.mla_heads * s.qk;
  const size_t values = s.mla_heads * s.value;
  switch (section.array) {
    case StateArray::kKdaConv:
      return ReplayWindows(layer, FloatsOf(out).data());
    case StateArray::kKdaMatrix:
      return ReplayMatrices(layer, FloatsOf(out).data());
    case StateArray::kLatentRows:
      return ForPages(length(), [&](size_t first, size_t count) {
        std::copy_n(KvRow(layer, first), count * kv_row(), FloatsOf(out).data() + first * kv_row());
      });
    case StateArray::kExpandedKeys:
    case StateArray::kExpandedValues: {
      const bool is_keys = section.array == StateArray::kExpandedKeys;
      const size_t width = is_keys ? keys : values;
      for (size_t p = 0; p < length(); ++p) {
        std::copy_n(KvRow(layer, p) + (is_keys ? 0 : keys), width,
                    FloatsOf(out).data() + p * width);
      }
      return;
    }
    case StateArray::kLatentCodes:
      for (size_t p = 0; p < length(); ++p) {
        ReadQ8Codes(KvTile(layer, p), groups, p % kPageTokens,
                    CodesOf(out).data() + p * groups * kQ8Group);
      }
      return;
    case StateArray::kLatentScales:
      for (size_t p = 0; p < length(); ++p) {
        ReadQ8Scales(KvTile(layer, p), groups, p % kPageTokens, FloatsOf(out).data() + p * groups);
      }
      return;
    default:
      return;
  }
}

Status K3Sequence::Grow(const StateKey& key) {
  if (Status room = Reserve(key.length, false); !room) return room;
  set_length(key.length);
  settled_ = key.length;
  return {};
}

bool K3Sequence::WriteState(const StateSection& section, std::span<const std::byte> in) {
  const K3Shape& s = *shape_;
  const size_t layer = s.attention_index[section.layer];
  const LatentShape shape = byte_shape();
  const size_t groups = shape.groups();
  const size_t keys = s.mla_heads * s.qk;
  const size_t values = s.mla_heads * s.value;
  if (section.array == StateArray::kLatentCodes) {
    if (!AllWithin(CodesOf(in), 127)) return false;
  } else if (section.array == StateArray::kLatentScales) {
    if (!AllScales(FloatsOf(in))) return false;
  } else if (!AllFinite(FloatsOf(in))) {
    return false;
  }
  switch (section.array) {
    case StateArray::kKdaConv:
      std::memcpy(Before(layer).Window(0), in.data(), in.size());
      return true;
    case StateArray::kKdaMatrix:
      std::memcpy(Before(layer).Matrix(0), in.data(), in.size());
      return true;
    case StateArray::kLatentRows:
      ForPages(length(), [&](size_t first, size_t count) {
        std::copy_n(FloatsOf(in).data() + first * kv_row(), count * kv_row(), KvRow(layer, first));
      });
      return true;
    case StateArray::kExpandedKeys:
    case StateArray::kExpandedValues: {
      const bool is_keys = section.array == StateArray::kExpandedKeys;
      const size_t width = is_keys ? keys : values;
      for (size_t p = 0; p < length(); ++p) {
        std::copy_n(FloatsOf(in).data() + p * width, width, KvRow(layer, p) + (is_keys ? 0 : keys));
      }
      return true;
    }
    case StateArray::kLatentCodes:
      for (size_t p = 0; p < length(); ++p) {
        const int8_t* codes = CodesOf(in).data() + p * groups * kQ8Group;
        std::byte* const tile = KvTile(layer, p);
        WriteQ8Codes(codes, groups, p % kPageTokens, tile);
        // The latent once more, as values (latent_bytes.h).
        std::memcpy(tile + shape.key_bytes() + p % kPageTokens * shape.value_stride(), codes,
                    shape.value_stride());
      }
      return true;
    case StateArray::kLatentScales:
      for (size_t p = 0; p < length(); ++p) {
        WriteQ8Scales(FloatsOf(in).data() + p * groups, groups, p % kPageTokens, KvTile(layer, p));
      }
      return true;
    default:
      return false;
  }
}

namespace {

// Latent rows of positions [first, first + count) as floats: out [count][r_kv + rho].
void LoadLatents(const K3Shape& s, const K3Sequence& sequence, size_t layer, size_t first,
                 size_t count, float* out) {
  if (!sequence.byte_kv()) {
    std::copy_n(sequence.KvRow(layer, first), count * s.latent_row(), out);
    return;
  }
  const LatentShape shape = sequence.byte_shape();
  std::vector<int8_t> codes(shape.groups() * kQ8Group);
  std::vector<float> scales(shape.groups());
  for (size_t p = first; p < first + count; ++p, out += s.latent_row()) {
    ReadQ8Codes(sequence.KvTile(layer, p), shape.groups(), p % kPageTokens, codes.data());
    ReadQ8Scales(sequence.KvTile(layer, p), shape.groups(), p % kPageTokens, scales.data());
    // Both parts are padded to whole groups.
    const auto value = [&](size_t column) {
      return static_cast<float>(codes[column]) * scales[column / kQ8Group];
    };
    for (size_t c = 0; c < s.kv_rank; ++c) out[c] = value(c);
    for (size_t c = 0; c < s.rope; ++c) out[s.kv_rank + c] = value(shape.value_stride() + c);
  }
}

}  // namespace

void K3Model::ExpandState(const SpineWeights& spine, const ModelSequence& from,
                          const StateSection& section, std::span<std::byte> out) const {
  const K3Shape& s = *shape_;
  const auto& sequence = static_cast<const K3Sequence&>(from);
  const MlaWeights& weights = static_cast<const K3Weights&>(spine).layers[section.layer].mla;
  const bool keys = section.array == StateArray::kExpandedKeys;
  const std::vector<PackedMatrix>& heads = keys ? weights.key : weights.value;
  const size_t step = keys ? s.qk : s.value;
  const size_t width = s.mla_heads * step;
  std::vector<float> latents(kPageTokens * s.latent_row());
  ForPages(sequence.length(), [&](size_t first, size_t count) {
    LoadLatents(s, sequence, s.attention_index[section.layer], first, count, latents.data());
    float* const rows = FloatsOf(out).data() + first * width;
    for (size_t h = 0; h < s.mla_heads; ++h) {
      MatMul({heads[h], latents.data(), s.latent_row(), rows + h * step, width, count});
      if (!keys) continue;
      for (size_t p = 0; p < count; ++p) {
        std::copy_n(latents.data() + p * s.latent_row() + s.kv_rank, s.rope,
                    rows + p * width + h * step + s.nope);
      }
    }
  });
}

}  // namespace mk::k3

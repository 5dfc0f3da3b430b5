#include "engine/kernels/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/packed_matrix.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/bf16.h"
#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

// Values of one lane, from column `begin` on, into a panel of floats or of bfloat16.
void PackLane(const float* in, size_t begin, size_t cols, float* out) {
  for (size_t c = begin; c < cols; ++c) out[c * kPanelRows] = in[c];
}
void PackLane(const float* in, size_t begin, size_t cols, uint16_t* out) {
  for (size_t c = begin; c < cols; ++c) out[c * kPanelRows] = ToBf16(in[c]);
}

#if HWY_TARGET != HWY_SCALAR

using D4 = hn::FixedTag<float, 4>;
using V4 = hn::Vec<D4>;

HWY_INLINE void StoreFour(V4 v, float* out) {
  hn::StoreU(v, D4(), out);
}

// As ToBf16; weights are finite, so NaN needs no care.
HWY_INLINE void StoreFour(V4 v, uint16_t* out) {
  const hn::FixedTag<uint32_t, 4> d32;
  const hn::FixedTag<uint16_t, 4> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(d32, 0x7fff)), odd);
  const auto high = hn::BitCast(hn::FixedTag<int32_t, 4>(), hn::ShiftRight<16>(rounded));
  hn::StoreU(hn::DemoteTo(d16, high), d16, out);
}

// Four rows, `cols` apart, four columns at a time: a transposition in registers.
template <typename T>
void PackFourLanes(const float* in, size_t cols, T* out) {
  const D4 d4;
  const hn::FixedTag<uint64_t, 2> pairs;
  const auto wide = [&](V4 v) HWY_ATTR { return hn::BitCast(pairs, v); };
  const auto narrow = [&](auto v) HWY_ATTR { return hn::BitCast(d4, v); };
  size_t c = 0;
  for (; c + 4 <= cols; c += 4) {
    const V4 r0 = hn::LoadU(d4, in + c);
    const V4 r1 = hn::LoadU(d4, in + cols + c);
    const V4 r2 = hn::LoadU(d4, in + 2 * cols + c);
    const V4 r3 = hn::LoadU(d4, in + 3 * cols + c);
    const auto low01 = wide(hn::InterleaveLower(d4, r0, r1));
    const auto high01 = wide(hn::InterleaveUpper(d4, r0, r1));
    const auto low23 = wide(hn::InterleaveLower(d4, r2, r3));
    const auto high23 = wide(hn::InterleaveUpper(d4, r2, r3));
    T* const to = out + c * kPanelRows;
    StoreFour(narrow(hn::InterleaveLower(pairs, low01, low23)), to);
    StoreFour(narrow(hn::InterleaveUpper(pairs, low01, low23)), to + kPanelRows);
    StoreFour(narrow(hn::InterleaveLower(pairs, high01, high23)), to + 2 * kPanelRows);
    StoreFour(narrow(hn::InterleaveUpper(pairs, high01, high23)), to + 3 * kPanelRows);
  }
  for (size_t r = 0; r < 4; ++r) PackLane(in + r * cols, c, cols, out + r);
}

#else

template <typename T>
void PackFourLanes(const float* in, size_t cols, T* out) {
  for (size_t r = 0; r < 4; ++r) PackLane(in + r * cols, 0, cols, out + r);
}

#endif

template <typename T>
void PackPlain(WeightKind kind, const float* source, size_t first_row, size_t count, size_t cols,
               std::byte* panels) {
  for (size_t i = 0; i < count;) {
    const size_t row = first_row + i;
    std::byte* const panel = panels + row / kPanelRows * PanelBytes(kind, cols);
    T* const out = reinterpret_cast<T*>(panel) + row % kPanelRows;
    if (row % 4 == 0 && count - i >= 4) {
      PackFourLanes(source + i * cols, cols, out);
      i += 4;
    } else {
      PackLane(source + i * cols, 0, cols, out);
      ++i;
    }
  }
}

// round(v / scale) + 128 of sixteen lanes. No lane is beyond 127: |v| <= 127 scale (1 + 2^-23).
HWY_INLINE void StoreBytes(const V16& v, const V16& scale, uint8_t* out) {
  const V16 q = Div16(v, scale);
  for (size_t i = 0; i < kV16Parts; ++i) {
#if HWY_TARGET == HWY_SCALAR
    const auto rounded = static_cast<int>(std::nearbyint(hn::GetLane(q.part[i])));
    out[i] = static_cast<uint8_t>(rounded + kQ8Bias);
#else
    const hn::FixedTag<uint8_t, kRegisterLanes> d8;
    const VI rounded = hn::Add(hn::NearestInt(q.part[i]), hn::Set(DI(), kQ8Bias));
    hn::StoreU(hn::DemoteTo(d8, rounded), d8, out + i * kRegisterLanes);
#endif
  }
}

HWY_INLINE float LargestMagnitude(const V16& a, const V16& b) {
  V16 largest;
  for (size_t i = 0; i < kV16Parts; ++i) {
    largest.part[i] = MaxPart(hn::Abs(a.part[i]), hn::Abs(b.part[i]));
  }
#if HWY_TARGET == HWY_SCALAR
  return ReduceMax16(largest);
#else
  VF best = largest.part[0];
  for (size_t i = 1; i < kV16Parts; ++i) best = hn::Max(best, largest.part[i]);
  return hn::GetLane(hn::MaxOfLanes(DF(), best));
#endif
}

void PackQ8Row(const float* in, size_t cols, std::byte* panel, size_t lane) {
  alignas(64) uint8_t bytes[kQ8Group];
  for (size_t g = 0; g < Q8Groups(cols); ++g, panel += kQ8GroupBytes) {
    const size_t first = g * kQ8Group;
    const size_t width = std::min(kQ8Group, cols - first);
    const V16 a = LoadGroup16(in + first, std::min<size_t>(width, 16));
    const V16 b = width > 16 ? LoadGroup16(in + first + 16, width - 16) : Zero16();
    const float scale = LargestMagnitude(a, b) / 127.0f;
    reinterpret_cast<float*>(panel)[lane] = scale;
    if (scale >= 1.17549435e-38f) {
      StoreBytes(a, Set16(scale), bytes);
      StoreBytes(b, Set16(scale), bytes + 16);
    } else {
      // A subnormal scale counts as zero.
      std::memset(bytes, kQ8Bias, sizeof bytes);
    }
    std::byte* const out = panel + kPanelRows * sizeof(float) + lane * 4;
    for (size_t k = 0; k < kQ8Group / 4; ++k) {
      std::memcpy(out + k * 4 * kPanelRows, bytes + 4 * k, 4);
    }
  }
}

}  // namespace

void PackRowsImpl(WeightKind kind, const float* source, size_t first_row, size_t count, size_t cols,
                  std::byte* panels) {
  switch (kind) {
    case WeightKind::kF32:
      return PackPlain<float>(kind, source, first_row, count, cols, panels);
    case WeightKind::kBf16:
      return PackPlain<uint16_t>(kind, source, first_row, count, cols, panels);
    case WeightKind::kQ8:
      for (size_t i = 0; i < count; ++i) {
        const size_t row = first_row + i;
        PackQ8Row(source + i * cols, cols, panels + row / kPanelRows * PanelBytes(kind, cols),
                  row % kPanelRows);
      }
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(PackRowsImpl);

void PackRows(WeightKind kind, std::span<const float> source, size_t first_row, size_t count,
              size_t cols, std::span<std::byte> panels) {
  HWY_DYNAMIC_DISPATCH(PackRowsImpl)
  (kind, source.data(), first_row, count, cols, panels.data());
}

}  // namespace mk
#endif  // HWY_ONCE

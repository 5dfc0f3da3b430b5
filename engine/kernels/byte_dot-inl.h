// ByteDot: integer dot products of four columns of sixteen rows at a time.
//
// Weights are sixteen rows by four columns of bytes, row after row, either biased by +128
// (packed_matrix.h) or signed; activations are four signed bytes that all rows share, or sixteen
// times four of their own. No byte is -128. Sums are exact 32-bit integers.
//
// Include inside a Highway per-target source after v16-inl.h. kVnni selects AVX512_VNNI, which is
// used when the machine has it (target.h, HasVnni) and which Highway 1.0 has no target for; the
// instruction is written out, as everything else of its target is plain AVX-512.

#if defined(MK_KERNELS_BYTE_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MK_KERNELS_BYTE_DOT_INL_H_
#undef MK_KERNELS_BYTE_DOT_INL_H_
#else
#define MK_KERNELS_BYTE_DOT_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {

// N rows that are `stride` elements apart. Every third has a pointer of its own, and the others are
// one or two strides away, which addressing adds for nothing: a pointer per row would not fit into
// the registers.
template <size_t N, typename T>
class RowsOf {
 public:
  HWY_INLINE RowsOf(const T* first, size_t stride) : stride_(stride) {
    for (size_t i = 0; i < kPointers; ++i) third_[i] = first + 3 * i * stride;
  }
  HWY_INLINE const T* operator[](size_t n) const { return third_[n / 3] + n % 3 * stride_; }

 private:
  static constexpr size_t kPointers = (N + 2) / 3;
  const T* third_[kPointers];
  size_t stride_;
};

// Sixteen 32-bit integers.
struct I16 {
  HWY_INLINE I16() {}
  VI part[kV16Parts];
};

HWY_INLINE I16 SetInts16(int32_t value) {
  I16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::Set(DI(), value);
  return r;
}

HWY_INLINE V16 ToFloats16(const I16& v) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::ConvertTo(DF(), v.part[i]);
  return r;
}

// Sixteen times four bytes.
#if HWY_TARGET == HWY_SCALAR
struct Bytes64 {
  int8_t lane[64];
};

HWY_INLINE Bytes64 LoadBytes64(const void* p) {
  Bytes64 r;
  std::memcpy(r.lane, p, 64);
  return r;
}

// The same four bytes in all lanes.
HWY_INLINE Bytes64 RepeatBytes4(const int8_t* p) {
  Bytes64 r;
  for (size_t i = 0; i < 64; ++i) r.lane[i] = p[i % 4];
  return r;
}

HWY_INLINE Bytes64 FromBiased(Bytes64 b) {
  for (int8_t& v : b.lane) v = static_cast<int8_t>(static_cast<uint8_t>(v) ^ 0x80);
  return b;
}

// acc[i] += sum of four products; signed times signed.
HWY_INLINE void AddDot(I16& acc, const Bytes64& w, const Bytes64& x) {
  for (size_t i = 0; i < 16; ++i) {
    int32_t sum = hn::GetLane(acc.part[i]);
    for (size_t j = 0; j < 4; ++j) sum += w.lane[4 * i + j] * x.lane[4 * i + j];
    acc.part[i] = hn::Set(DI(), sum);
  }
}
#else
using D8 = hn::FixedTag<int8_t, 4 * kRegisterLanes>;
using V8 = hn::Vec<D8>;

struct Bytes64 {
  HWY_INLINE Bytes64() {}
  V8 part[kV16Parts];
};

HWY_INLINE Bytes64 LoadBytes64(const void* p) {
  Bytes64 r;
  for (size_t i = 0; i < kV16Parts; ++i) {
    r.part[i] = hn::LoadU(D8(), static_cast<const int8_t*>(p) + i * 4 * kRegisterLanes);
  }
  return r;
}

// The same four bytes in all lanes.
HWY_INLINE Bytes64 RepeatBytes4(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  Bytes64 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::BitCast(D8(), hn::Set(DI(), four));
  return r;
}

HWY_INLINE Bytes64 FromBiased(const Bytes64& b) {
  Bytes64 r;
  for (size_t i = 0; i < kV16Parts; ++i) {
    r.part[i] = hn::Xor(b.part[i], hn::Set(D8(), static_cast<int8_t>(-128)));
  }
  return r;
}

// acc[i] += sum of four products; signed times signed.
HWY_INLINE void AddDot(I16& acc, const Bytes64& w, const Bytes64& x) {
  for (size_t i = 0; i < kV16Parts; ++i) {
#if HWY_TARGET == HWY_AVX3
    // Pair sums of at most 2 * 127 * 127 do not saturate.
    const __m512i magnitude = _mm512_abs_epi8(w.part[i].raw);
    const __m512i with_sign = _mm512_mask_sub_epi8(
        x.part[i].raw, _mm512_movepi8_mask(w.part[i].raw), _mm512_setzero_si512(), x.part[i].raw);
    const __m512i pairs = _mm512_maddubs_epi16(magnitude, with_sign);
    const __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
    acc.part[i] = hn::Add(acc.part[i], VI{fours});
#elif HWY_TARGET == HWY_AVX2
    const __m256i magnitude = _mm256_abs_epi8(w.part[i].raw);
    const __m256i with_sign = _mm256_sign_epi8(x.part[i].raw, w.part[i].raw);
    const __m256i pairs = _mm256_maddubs_epi16(magnitude, with_sign);
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    acc.part[i] = hn::Add(acc.part[i], VI{fours});
#elif HWY_ARCH_ARM_A64
#ifdef __ARM_FEATURE_DOTPROD
    acc.part[i] = VI(vdotq_s32(acc.part[i].raw, w.part[i].raw, x.part[i].raw));
#else
    const int16x8_t low = vmull_s8(vget_low_s8(w.part[i].raw), vget_low_s8(x.part[i].raw));
    const int16x8_t high = vmull_high_s8(w.part[i].raw, x.part[i].raw);
    acc.part[i] = hn::Add(acc.part[i], VI(vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high))));
#endif
#else
#error "no byte dot product for this target"
#endif
  }
}
#endif  // HWY_TARGET != HWY_SCALAR

#if HWY_TARGET == HWY_AVX3
inline constexpr bool kMayHaveVnni = true;

HWY_INLINE Bytes64 BiasBytes(int8_t value) {
  Bytes64 r;
  r.part[0] = hn::Set(D8(), value);
  return r;
}

// acc[i] += sum of four products, w unsigned, x signed.
HWY_INLINE void AddDotUnsigned(I16& acc, const Bytes64& w, const Bytes64& x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc.part[0].raw) : "v"(w.part[0].raw), "v"(x.part[0].raw));
}
// The same with four bytes of x for all lanes, read on the way.
HWY_INLINE void AddDotUnsigned(I16& acc, const Bytes64& w, const int8_t* x) {
  using Four [[gnu::may_alias]] = int32_t;
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(acc.part[0].raw)
      : "v"(w.part[0].raw), "m"(*reinterpret_cast<const Four*>(x)));
}
#else
inline constexpr bool kMayHaveVnni = false;

// Never called.
HWY_INLINE Bytes64 BiasBytes(int8_t) {
  return {};
}
HWY_INLINE void AddDotUnsigned(I16&, const Bytes64&, const Bytes64&) {}
HWY_INLINE void AddDotUnsigned(I16&, const Bytes64&, const int8_t*) {}
#endif

// Adds the products of four columns with row n of x to its sums.
template <bool kVnni, size_t P, size_t N>
HWY_INLINE void AddFour(const Bytes64 (&weights)[P], const int8_t* x, size_t n, I16 (&acc)[P][N]) {
  if constexpr (kVnni && P == 1) {
    AddDotUnsigned(acc[0][n], weights[0], x);
  } else {
    const Bytes64 four = RepeatBytes4(x);
    for (size_t p = 0; p < P; ++p) {
      if constexpr (kVnni) {
        AddDotUnsigned(acc[p][n], weights[p], four);
      } else {
        AddDot(acc[p][n], weights[p], four);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

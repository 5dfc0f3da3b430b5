// FlushDenormals: while it lives, the thread treats subnormal floats as zero (FTZ and DAZ on x86,
// FZ on ARM), so that decayed recurrent states cost no microcode assists and give the same bits
// whichever thread works on them. Restores the former mode when it goes. Costs a few cycles when
// the mode is already set.

#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace mk {

class FlushDenormals {
 public:
  FlushDenormals() : saved_(Read()) {
    if ((saved_ & kMask) != kMask) Write(saved_ | kMask);
  }
  ~FlushDenormals() {
    if ((saved_ & kMask) != kMask) Write(saved_);
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__) || defined(__i386__)
  using Word = uint32_t;
  static constexpr Word kMask = 0x8040;  // flush to zero, denormals are zero
  static Word Read() {
    return _mm_getcsr();
  }
  static void Write(Word word) {
    _mm_setcsr(word);
  }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kMask = Word{1} << 24;  // FZ
  static Word Read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void Write(Word word) {
    asm volatile("msr fpcr, %0" : : "r"(word));
  }
#else
  using Word = uint32_t;
  static constexpr Word kMask = 0;
  static Word Read() {
    return 0;
  }
  static void Write(Word) {}
#endif

  Word saved_;
};

}  // namespace mk

// PassCosts: how long a forward pass takes, by its number of tokens, as measured.
//
// Times are kept for sizes that grow by halves, as averages that forget. Between sizes that were
// seen they are interpolated, beyond them extended; a pass never costs more than a larger one.

#pragma once

#include <array>
#include <cstddef>

namespace mk {

// One thread at a time.
class PassCosts {
 public:
  // A pass of `rows` tokens, over all its items, took so long. Ignores what cannot be.
  void Observe(size_t rows, double seconds);
  // Expected seconds of a pass of `rows` tokens, at least 1; 0 when nothing was measured.
  double Estimate(size_t rows) const;

 private:
  // Tokens of passes that count as one size: more than of the size before, and up to these.
  static constexpr std::array<size_t, 18> kUpTo = {1,  2,  3,  4,  6,   8,   12,  16,  24,
                                                   32, 48, 64, 96, 128, 192, 256, 384, 512};
  struct Size {
    double rows = 0;  // average of those seen
    double seconds = 0;
    bool seen = false;
  };
  static size_t IndexOf(size_t rows);

  std::array<Size, kUpTo.size()> sizes_{};
};

}  // namespace mk

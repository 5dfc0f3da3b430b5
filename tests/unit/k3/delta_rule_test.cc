// The delta rule kernels against the recurrence in f64, on every instruction set of the machine.

#include "engine/kernels/delta_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

// Inputs of `tokens` tokens; decays are e^g with g between `low` and `high`.
struct Problem {
  Problem(size_t dimension, size_t tokens, float low, float high, uint32_t seed)
      : dim(dimension), count(tokens), random(seed) {
    for (size_t t = 0; t < count; ++t) {
      Append(q, 1.0f / std::sqrt(static_cast<float>(dim)));
      Append(k, 1.0f);
      for (size_t c = 0; c < dim; ++c) {
        v.push_back(random.Normal());
        decay.push_back(std::exp(random.Uniform(low, high)));
      }
      beta.push_back(random.Uniform(0, 1));
    }
    state = random.Normals(dim * dim);
  }

  // A random vector of this length.
  void Append(std::vector<float>& to, float length) {
    const std::vector<float> x = random.Normals(dim);
    double squares = 0;
    for (const float value : x) squares += static_cast<double>(value) * value;
    for (const float value : x)
      to.push_back(value * length / static_cast<float>(std::sqrt(squares)));
  }

  DeltaRuleInput From(size_t t) const {
    return {dim,
            q.data() + t * dim,
            k.data() + t * dim,
            v.data() + t * dim,
            dim,
            decay.data() + t * dim,
            dim,
            beta.data() + t};
  }

  size_t dim, count;
  Random random;
  std::vector<float> q, k, v, decay, beta, state;
};

struct Answer {
  std::vector<double> out;    // [tokens][dim]
  std::vector<double> state;  // [dim][dim]
};

Answer Reference(const Problem& p) {
  const size_t n = p.dim;
  Answer a{{}, {p.state.begin(), p.state.end()}};
  for (size_t t = 0; t < p.count; ++t) {
    const size_t row = t * n;
    std::vector<double> predicted(n), out(n);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        a.state[i * n + j] *= p.decay[row + i];
        predicted[j] += p.k[row + i] * a.state[i * n + j];
      }
    }
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        a.state[i * n + j] +=
            static_cast<double>(p.beta[t]) * p.k[row + i] * (p.v[row + j] - predicted[j]);
        out[j] += p.q[row + i] * a.state[i * n + j];
      }
    }
    a.out.insert(a.out.end(), out.begin(), out.end());
  }
  return a;
}

// Largest difference by the largest expected value.
double Relative(const std::vector<float>& got, const std::vector<double>& expected) {
  double most = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(got[i] - expected[i]);
    if (!(difference <= most)) most = difference;
    largest = std::max(largest, std::abs(expected[i]));
  }
  return most / largest;
}

struct Outcome {
  std::vector<float> out, state;
};

// Chunks where they fit when `chunked`, else steps in calls of `cut` tokens.
Outcome RunKernels(const Problem& p, bool chunked, size_t cut) {
  const FlushDenormals flush;
  Outcome run{std::vector<float>(p.count * p.dim), p.state};
  std::vector<float> scratch(DeltaRuleScratch(p.dim));
  for (size_t t = 0; t < p.count;) {
    float* out = run.out.data() + t * p.dim;
    if (chunked && p.count - t >= kDeltaRuleChunk) {
      DeltaRuleChunk(p.From(t), run.state.data(), out, p.dim, scratch);
      t += kDeltaRuleChunk;
    } else {
      const size_t steps = std::min(cut, p.count - t);
      DeltaRuleSteps(p.From(t), steps, run.state.data(), run.state.data(), out, p.dim);
      t += steps;
    }
  }
  return run;
}

struct Range {
  float low, high;
};
// From almost perfect memory to the fastest forgetting of a lower bound of -5, a mix of both, and
// decays whose product over a chunk is far below what a float can hold.
constexpr Range kDecays[] = {{-1e-4f, 0}, {-0.1f, 0}, {-5, -4.9f}, {-5, 0}, {-40, 0}};

TEST(DeltaRule, StepsMatchTheRecurrence) {
  for (const size_t dim : {1, 16, 20, 64, 100, 128}) {
    for (const Range& decay : kDecays) {
      const Problem p(dim, 40, decay.low, decay.high, 1);
      const Answer expected = Reference(p);
      ForEachTarget([&] {
        const Outcome got = RunKernels(p, false, 40);
        EXPECT_LE(Relative(got.out, expected.out), 2e-6) << dim << " " << decay.low;
        EXPECT_LE(Relative(got.state, expected.state), 2e-6) << dim << " " << decay.low;
      });
    }
  }
}

TEST(DeltaRule, ChunksMatchTheRecurrence) {
  for (const size_t dim : {1, 16, 20, 64, 100, 128}) {
    for (const Range& decay : kDecays) {
      for (const size_t tokens : {1, 15, 16, 63, 64, 65, 128, 300}) {
        const Problem p(dim, tokens, decay.low, decay.high, 2);
        const Answer expected = Reference(p);
        ForEachTarget([&] {
          const Outcome got = RunKernels(p, true, 64);
          EXPECT_LE(Relative(got.out, expected.out), 1e-5) << dim << " " << decay.low;
          EXPECT_LE(Relative(got.state, expected.state), 1e-5) << dim << " " << decay.low;
        });
      }
    }
  }
}

// Out of place, and without reading, the same states come out, and the first one stays.
TEST(DeltaRule, AStateMayBeLeftAlone) {
  for (const size_t dim : {1, 20, 64, 100, 128, 160}) {
    for (const size_t tokens : {1, 2, 7}) {
      const Problem p(dim, tokens, -5, 0, 4);
      ForEachTarget([&] {
        const FlushDenormals flush;
        const Outcome expected = RunKernels(p, false, 1);
        std::vector<float> out(tokens * dim), state(dim * dim, -1), written(dim * dim, -1);
        const std::vector<float> from = p.state;
        DeltaRuleSteps(p.From(0), tokens, from.data(), state.data(), out.data(), dim);
        DeltaRuleInput no_queries = p.From(0);
        no_queries.q = nullptr;
        DeltaRuleWrites(no_queries, tokens, from.data(), written.data());
        EXPECT_EQ(out, expected.out) << dim;
        EXPECT_EQ(state, expected.state) << dim;
        EXPECT_EQ(written, expected.state) << dim;
        EXPECT_EQ(from, p.state) << dim;
      });
    }
  }
}

// A fast decay first, then almost none: sums of logarithms would lose the later ones.
TEST(DeltaRule, SlowDecaysAfterFastOnesKeepTheirPrecision) {
  Problem p(64, 64, -1e-3f, 0, 3);
  for (size_t i = 0; i < 32 * p.dim; ++i) p.decay[i] = std::exp(-5.0f);
  const Answer expected = Reference(p);
  ForEachTarget([&] {
    const Outcome got = RunKernels(p, true, 64);
    EXPECT_LE(Relative(got.out, expected.out), 2e-6);
    EXPECT_LE(Relative(got.state, expected.state), 2e-6);
  });
}

TEST(DeltaRule, ForgettingEverythingIsFinite) {
  Problem p(32, 64, -1, 0, 4);
  std::fill(p.decay.begin(), p.decay.end(), 0.0f);
  const Answer expected = Reference(p);
  ForEachTarget([&] {
    const Outcome got = RunKernels(p, true, 64);
    EXPECT_LE(Relative(got.out, expected.out), 1e-6);
    EXPECT_LE(Relative(got.state, expected.state), 1e-6);
  });
}

TEST(DeltaRule, EveryInstructionSetAndEveryCutGivesTheSameBits) {
  for (const size_t dim : {20, 128}) {
    const Problem p(dim, 150, -5, 0, 5);
    const Outcome steps = RunKernels(p, false, 150);
    const Outcome chunks = RunKernels(p, true, 150);
    ForEachTarget([&] {
      for (const size_t cut : {1, 7, 150}) {
        const Outcome got = RunKernels(p, false, cut);
        EXPECT_EQ(got.out, steps.out);
        EXPECT_EQ(got.state, steps.state);
      }
      const Outcome got = RunKernels(p, true, 150);
      EXPECT_EQ(got.out, chunks.out);
      EXPECT_EQ(got.state, chunks.state);
    });
  }
}

}  // namespace
}  // namespace mk

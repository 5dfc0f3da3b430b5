// Short ways to run a model in tests. All of them end the test on an error.

#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/executor.h"
#include "engine/model/model.h"

namespace mk::test {

std::shared_ptr<const Model> Load(const std::string& path, Precision precision = Precision::kExact);
std::unique_ptr<Executor> MakeExecutor(size_t threads);
std::unique_ptr<Sequence> MakeSequence(const Model& model, const SequenceOptions& options = {});

// Ingests tokens in one forward and returns the logits of every row, [tokens][vocab].
std::vector<float> Feed(const Model& model, Executor& executor, Sequence& sequence,
                        std::span<const int32_t> tokens, ForwardObserver* observer = nullptr);

// Ingests tokens in segments of at most `segment` tokens; logits of every row.
std::vector<float> FeedInSegments(const Model& model, Executor& executor, Sequence& sequence,
                                  std::span<const int32_t> tokens, size_t segment);

// Tokens 0..vocab-1 in a fixed pseudo-random order.
std::vector<int32_t> RandomTokens(size_t count, size_t vocab, uint32_t seed);

// Id of the largest logit, the smallest id on a tie.
int32_t ArgMax(std::span<const float> logits);

// Equal as bytes: a NaN equals itself, +0 differs from -0.
testing::AssertionResult SameBits(std::span<const float> a, std::span<const float> b);

}  // namespace mk::test

#include "tests/unit/model/run_model.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace mk::test {
namespace {

template <typename T>
T Must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "unexpected error: %s\n", result.error().ToString().c_str());
    std::abort();
  }
  return std::move(*result);
}

}  // namespace

std::shared_ptr<const Model> Load(const std::string& path, Precision precision) {
  LoadOptions options;
  options.precision = precision;
  return Must(LoadModel(path, options));
}

std::unique_ptr<Executor> MakeExecutor(size_t threads) {
  return Must(Executor::Create(threads));
}

std::unique_ptr<Sequence> MakeSequence(const Model& model, const SequenceOptions& options) {
  return Must(model.NewSequence(options));
}

std::vector<float> Feed(const Model& model, Executor& executor, Sequence& sequence,
                        std::span<const int32_t> tokens, ForwardObserver* observer) {
  std::vector<float> logits(tokens.size() * model.info().vocab);
  ForwardItem item{&sequence, tokens, LogitsWanted::kAll, logits};
  const Status done = model.Forward(executor, {&item, 1}, observer);
  if (!done) {
    std::fprintf(stderr, "forward failed: %s\n", done.error().ToString().c_str());
    std::abort();
  }
  return logits;
}

std::vector<float> FeedInSegments(const Model& model, Executor& executor, Sequence& sequence,
                                  std::span<const int32_t> tokens, size_t segment) {
  std::vector<float> all;
  for (size_t first = 0; first < tokens.size(); first += segment) {
    const std::vector<float> logits = Feed(
        model, executor, sequence, tokens.subspan(first, std::min(segment, tokens.size() - first)));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

std::vector<int32_t> RandomTokens(size_t count, size_t vocab, uint32_t seed) {
  std::vector<int32_t> tokens(count);
  uint32_t state = seed * 2654435761u + 1;
  for (int32_t& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<int32_t>((state >> 8) % vocab);
  }
  return tokens;
}

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

testing::AssertionResult SameBits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) {
    return testing::AssertionFailure() << a.size() << " against " << b.size() << " floats";
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return testing::AssertionFailure()
             << "float " << i << " of " << a.size() << ": " << a[i] << " against " << b[i];
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace mk::test

#include "engine/pack/pack_diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "engine/pack/pack_reader.h"

namespace mk {
namespace {

// Adds up how elements differ, as numbers of type T.
template <typename T>
SectionDifference Compare(const PackSection& section, std::span<const std::byte> a,
                          std::span<const std::byte> b) {
  SectionDifference result;
  result.section = section;
  double squares = 0, differences = 0;
  for (size_t at = 0; at + sizeof(T) <= a.size(); at += sizeof(T)) {
    T x, y;
    std::memcpy(&x, a.data() + at, sizeof x);
    std::memcpy(&y, b.data() + at, sizeof y);
    if (std::memcmp(&x, &y, sizeof x) != 0) ++result.different;
    const double distance = static_cast<double>(x) - static_cast<double>(y);
    squares += static_cast<double>(x) * static_cast<double>(x);
    differences += distance * distance;
    result.largest = std::max(result.largest, std::abs(distance));
  }
  if (squares > 0) result.relative = std::sqrt(differences / squares);
  return result;
}

SectionDifference CompareBytes(const PackSection& section, std::span<const std::byte> a,
                               std::span<const std::byte> b) {
  SectionDifference result;
  result.section = section;
  for (size_t i = 0; i < a.size(); ++i) result.different += a[i] != b[i];
  return result;
}

SectionDifference CompareAs(const PackSection& section, std::span<const std::byte> a,
                            std::span<const std::byte> b) {
  switch (section.element) {
    case StateType::kF32:
      return Compare<float>(section, a, b);
    case StateType::kU32:
      return Compare<uint32_t>(section, a, b);
    case StateType::kI8:
      return Compare<int8_t>(section, a, b);
    case StateType::kBytes:
      return CompareBytes(section, a, b);
  }
  return {};
}

// The section of `other` that stands for the n-th of its type and layer.
const PackSection* Counterpart(const PackInfo& info, const PackSection& section, size_t nth) {
  for (const PackSection& other : info.sections) {
    if (other.type != section.type || other.layer != section.layer) continue;
    if (nth-- == 0) return &other;
  }
  return nullptr;
}

size_t CommonPrefix(std::span<const std::byte> a, std::span<const std::byte> b) {
  size_t n = 0;
  while ((n + 1) * 4 <= std::min(a.size(), b.size()) &&
         std::memcmp(a.data() + n * 4, b.data() + n * 4, 4) == 0) {
    ++n;
  }
  return n;
}

size_t CountComparable(const PackInfo& info) {
  return static_cast<size_t>(std::count_if(
      info.sections.begin(), info.sections.end(),
      [](const PackSection& section) { return !section.Is(PackSectionType::kLineage); }));
}

Result<PackDifference> Diff(const PackReader& a, const PackReader& b) {
  PackDifference result;
  const PackInfo& x = a.info();
  const PackInfo& y = b.info();
  result.same_model =
      x.architecture == y.architecture && x.fingerprint == y.fingerprint && x.shape == y.shape;
  result.same_precision = x.key.options.precision == y.key.options.precision;
  size_t matched = 0;
  for (size_t i = 0; i < x.sections.size(); ++i) {
    const PackSection& section = x.sections[i];
    if (section.Is(PackSectionType::kLineage)) continue;
    // Vectors of MKMEM001 share type and layer.
    const auto begin = x.sections.begin();
    const auto nth = static_cast<size_t>(std::count_if(
        begin, begin + static_cast<std::ptrdiff_t>(i), [&](const PackSection& earlier) {
          return earlier.type == section.type && earlier.layer == section.layer;
        }));
    const PackSection* other = Counterpart(y, section, nth);
    if (other == nullptr) continue;
    Result<std::vector<std::byte>> mine = a.Read(section);
    if (!mine) return Fail(mine.error());
    Result<std::vector<std::byte>> theirs = b.Read(*other);
    if (!theirs) return Fail(theirs.error());
    if (section.Is(PackSectionType::kTokens)) result.common_tokens = CommonPrefix(*mine, *theirs);
    if (section.element != other->element || section.dims != other->dims) continue;
    ++matched;
    result.sections.push_back(CompareAs(section, *mine, *theirs));
  }
  result.unmatched = CountComparable(x) + CountComparable(y) - 2 * matched;
  result.identical =
      result.same_model && result.same_precision && result.unmatched == 0 &&
      std::all_of(result.sections.begin(), result.sections.end(),
                  [](const SectionDifference& difference) { return difference.different == 0; });
  return result;
}

int32_t HighestArgMax(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] >= logits[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

Result<std::vector<int32_t>> Continue(LoadedPack pack, const Model& model, Executor& executor,
                                      std::span<const int32_t> prompt, size_t max_new) {
  std::vector<float> logits = std::move(pack.contents.logits);
  const auto feed = [&](std::span<const int32_t> tokens) {
    logits.resize(model.info().vocab);
    ForwardItem item{pack.sequence.get(), tokens, LogitsWanted::kLast, logits};
    return model.Forward(executor, {&item, 1});
  };
  while (!prompt.empty()) {
    // In blocks at absolute multiples.
    const size_t room = kPrefillBlock - pack.sequence->length() % kPrefillBlock;
    const size_t count = std::min(room, prompt.size());
    if (Status fed = feed(prompt.first(count)); !fed) return Fail(fed.error());
    prompt = prompt.subspan(count);
  }
  std::vector<int32_t> chosen;
  while (chosen.size() < max_new) {
    if (!chosen.empty()) {
      const int32_t last = chosen.back();
      if (Status fed = feed({&last, 1}); !fed) return Fail(fed.error());
    }
    chosen.push_back(HighestArgMax(logits));
  }
  return chosen;
}

}  // namespace

Result<PackDifference> DiffPacks(const std::string& a, const std::string& b) {
  Result<PackReader> first = PackReader::Open(a);
  if (!first) return Fail(first.error());
  Result<PackReader> second = PackReader::Open(b);
  if (!second) return Fail(second.error());
  try {
    return Diff(*first, *second);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for comparing packs");
  }
}

Result<Divergence> ComparePacks(const std::vector<std::string>& packs, const Model& model,
                                Executor& executor, std::span<const int32_t> prompt, size_t max_new,
                                const LoadPackOptions& options) {
  Divergence result;
  for (const std::string& path : packs) {
    Result<LoadedPack> pack = LoadPack(path, model, options);
    if (!pack) return Fail(pack.error());
    if (prompt.empty() && pack->contents.logits.empty()) {
      return Fail(ErrorCode::kInvalidArgument,
                  path + " does not say what comes next: it has no logits",
                  "give a prompt to go on with");
    }
    Result<std::vector<int32_t>> tokens =
        Continue(std::move(*pack), model, executor, prompt, max_new);
    if (!tokens) return Fail(tokens.error());
    result.tokens.push_back(std::move(*tokens));
    const std::vector<int32_t>& first = result.tokens.front();
    const std::vector<int32_t>& last = result.tokens.back();
    size_t equal = 0;
    for (size_t i = 0; i < max_new; ++i) equal += first[i] == last[i];
    result.equal.push_back(equal);
  }
  return result;
}

}  // namespace mk

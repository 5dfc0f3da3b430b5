#include "engine/pack/pack_math.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/pack/mkmem1.h"
#include "engine/pack/pack_reader.h"
#include "engine/pack/pack_writer.h"

namespace mk {
namespace {

using nlohmann::json;

// What becomes of one array: the values of all packs, in order, to those of the result in the
// first.
using Combine = std::function<void(std::vector<std::vector<float>>& values)>;

struct Operation {
  std::string name;
  json parameters;
  uint32_t flags = kPackExperimental;
  bool windows = false;  // of the convolutions too
  Combine combine;
};

bool Changes(const Operation& operation, const PackSection& section) {
  return section.Is(StateArray::kKdaMatrix) ||
         (operation.windows && section.Is(StateArray::kKdaConv));
}

Error Different(const PackReader& a, const PackReader& b, const std::string& what) {
  return {ErrorCode::kIncompatible, b.path() + " does not go with " + a.path() + ": " + what,
          "use packs of one model, saved in one format and precision"};
}

Status CheckPair(const PackReader& a, const PackReader& b) {
  const PackInfo& x = a.info();
  const PackInfo& y = b.info();
  if (x.format != y.format) return Fail(Different(a, b, "another format"));
  if (x.fingerprint != y.fingerprint) return Fail(Different(a, b, "another model"));
  if (x.shape != y.shape) return Fail(Different(a, b, "a model of other sizes"));
  if (x.key.options.precision != y.key.options.precision) {
    return Fail(Different(a, b, "another precision"));
  }
  return {};
}

// The recurrent arrays of a pack, in order.
std::vector<const PackSection*> RecurrentSections(const PackInfo& info) {
  std::vector<const PackSection*> found;
  for (const PackSection& section : info.sections) {
    if (section.Is(StateArray::kKdaMatrix) || section.Is(StateArray::kKdaConv)) {
      found.push_back(&section);
    }
  }
  return found;
}

Result<std::vector<PackReader>> OpenAll(const std::vector<std::string>& paths) {
  std::vector<PackReader> packs;
  for (const std::string& path : paths) {
    Result<PackReader> pack = PackReader::Open(path);
    if (!pack) return Fail(pack.error());
    if (pack->info().architecture != "k3") {
      return Fail(ErrorCode::kUnsupported,
                  path + " is the state of a " + pack->info().architecture +
                      " model, which cannot be scaled or added",
                  "only packs of k3 models can");
    }
    packs.push_back(std::move(*pack));
    if (Status fits = CheckPair(packs.front(), packs.back()); !fits) return Fail(fits.error());
  }
  const std::vector<const PackSection*> first = RecurrentSections(packs.front().info());
  for (const PackReader& pack : packs) {
    const std::vector<const PackSection*> other = RecurrentSections(pack.info());
    const bool equal = std::equal(first.begin(), first.end(), other.begin(), other.end(),
                                  [](const PackSection* a, const PackSection* b) {
                                    return a->type == b->type && a->layer == b->layer &&
                                           a->element == b->element && a->dims == b->dims;
                                  });
    if (!equal) return Fail(Different(packs.front(), pack, "a state of other sizes"));
  }
  if (first.empty()) {
    return Fail(ErrorCode::kUnsupported, packs.front().path() + " has no recurrent state");
  }
  return packs;
}

// The values of array `index` among the recurrent ones, after the operation.
Result<std::vector<float>> Apply(const Operation& operation, const std::vector<PackReader>& packs,
                                 size_t index) {
  std::vector<std::vector<float>> values;
  for (const PackReader& pack : packs) {
    const PackSection& section = *RecurrentSections(pack.info())[index];
    Result<std::vector<float>> read = pack.ReadFloats(section);
    if (!read) return Fail(read.error());
    values.push_back(std::move(*read));
  }
  operation.combine(values);
  for (const float value : values[0]) {
    if (std::isfinite(value)) continue;
    return Fail(ErrorCode::kNumeric, "the " + operation.name + " of " + packs[0].path() +
                                         " has values that are not finite");
  }
  return std::move(values[0]);
}

std::string LineageOf(const Operation& operation, const std::vector<PackReader>& packs,
                      const std::string& before) {
  json lineage;
  lineage["operation"] = operation.name;
  lineage["parameters"] = operation.parameters;
  lineage["parents"] = json::array();
  for (const PackReader& pack : packs) lineage["parents"].push_back(pack.info().state_id);
  lineage["unchanged_from_first"] =
      operation.windows ? "rows of attention" : "windows of convolutions, rows of attention";
  // Only what parses is passed on: the text comes from a file.
  json older = json::parse(before, nullptr, false);
  if (older.is_object()) lineage["first_parent"] = std::move(older);
  return lineage.dump();
}

// Sections of the result and, for each, the section of the first pack that it comes from.
Result<PackInfo> WriteMkmem2(const Operation& operation, const std::vector<PackReader>& packs,
                             const PackTarget& to) {
  const PackReader& first = packs.front();
  Result<std::string> before = first.ReadLineage();
  if (!before) return Fail(before.error());
  const std::string lineage = LineageOf(operation, packs, *before);
  PackInfo info = first.info();
  info.flags = operation.flags | (info.flags & (kPackExperimental | kPackDecayed));
  info.sections = {NewSection(PackSectionType::kLineage, StateType::kBytes, lineage.size())};
  std::vector<const PackSection*> sources = {nullptr};
  for (const PackSection& section : first.info().sections) {
    if (section.Is(PackSectionType::kLineage) || section.Is(PackSectionType::kLogits)) continue;
    info.sections.push_back(section);
    sources.push_back(&section);
    if (section.Is(PackSectionType::kTokens)) {
      info.sections.back().type = static_cast<uint16_t>(PackSectionType::kProvenanceTokens);
    }
  }
  Result<PackWriter> writer = PackWriter::Create(to.path, std::move(info));
  if (!writer) return Fail(writer.error());
  if (Status put = writer->Write(0, std::as_bytes(std::span(lineage))); !put) {
    return Fail(put.error());
  }
  size_t recurrent = 0;
  for (size_t i = 1; i < sources.size(); ++i) {
    const PackSection& source = *sources[i];
    const bool counts = source.Is(StateArray::kKdaMatrix) || source.Is(StateArray::kKdaConv);
    const size_t index = counts ? recurrent++ : 0;
    if (Changes(operation, source)) {
      Result<std::vector<float>> values = Apply(operation, packs, index);
      if (!values) return Fail(values.error());
      Status put = writer->Write(i, std::as_bytes(std::span(*values)));
      if (!put) return Fail(put.error());
      continue;
    }
    Result<std::vector<std::byte>> bytes = first.Read(source);
    if (!bytes) return Fail(bytes.error());
    if (Status put = writer->Write(i, *bytes); !put) return Fail(put.error());
  }
  return writer->Commit();
}

// Writes what lies between the vectors of the first file as it is, and the vectors.
Result<PackInfo> WriteMkmem1(const Operation& operation, const std::vector<PackReader>& packs,
                             const PackTarget& to) {
  const PackReader& first = packs.front();
  Result<AtomicFile> file = AtomicFile::Create(to.path, 0600);
  if (!file) return Fail(file.error());
  const std::string header = Mkmem1Header(first.info().shape);
  if (Status put = file->WriteAt(0, std::as_bytes(std::span(header))); !put) {
    return Fail(put.error());
  }
  uint64_t at = header.size();
  const auto put = [&](std::span<const std::byte> bytes) {
    Status written = file->WriteAt(at, bytes);
    at += bytes.size();
    return written;
  };
  size_t recurrent = 0;
  uint16_t layer = kGlobalLayer;
  for (const PackSection& section : first.info().sections) {
    const bool counts = section.Is(StateArray::kKdaMatrix) || section.Is(StateArray::kKdaConv);
    const size_t index = counts ? recurrent++ : 0;
    if (section.layer != layer && section.layer != kGlobalLayer) {
      layer = section.layer;
      const uint8_t tag = first.info().shape.kinds[layer];
      if (Status done = put(std::as_bytes(std::span(&tag, 1))); !done) return Fail(done.error());
    }
    Result<std::vector<float>> values =
        Changes(operation, section) ? Apply(operation, packs, index) : first.ReadFloats(section);
    if (!values) return Fail(values.error());
    if (section.Is(PackSectionType::kLogits)) values->clear();
    const auto count = static_cast<uint32_t>(values->size());
    if (Status done = put(std::as_bytes(std::span(&count, 1))); !done) return Fail(done.error());
    if (Status done = put(std::as_bytes(std::span(*values))); !done) return Fail(done.error());
  }
  if (Status done = file->Commit(); !done) return Fail(done.error());
  Result<PackReader> result = PackReader::Open(to.path);
  if (!result) return Fail(result.error());
  return result->info();
}

Result<PackInfo> Run(const Operation& operation, const std::vector<std::string>& from,
                     const PackTarget& to) {
  if (Status free = CheckPackTarget(to.path, to.replace); !free) return Fail(free.error());
  try {
    Result<std::vector<PackReader>> packs = OpenAll(from);
    if (!packs) return Fail(packs.error());
    return packs->front().info().format == PackFormat::kMkmem1 ? WriteMkmem1(operation, *packs, to)
                                                               : WriteMkmem2(operation, *packs, to);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for the arithmetic of packs");
  }
}

Status OutOfRange(const std::string& name, const std::string& range) {
  return Fail(ErrorCode::kInvalidArgument, "the " + name + " of packs must be " + range);
}

template <typename T>
void Sum(std::vector<std::vector<float>>& values, bool average) {
  const auto count = static_cast<T>(values.size());
  for (size_t i = 0; i < values[0].size(); ++i) {
    T sum = values[0][i];
    for (size_t p = 1; p < values.size(); ++p) sum += static_cast<T>(values[p][i]);
    values[0][i] = static_cast<float>(average ? sum / count : sum);
  }
}

}  // namespace

Result<PackInfo> DecayPack(const std::string& from, double half_life, double units,
                           const PackTarget& to) {
  if (!(half_life > 0) || !std::isfinite(half_life)) {
    return Fail(OutOfRange("half-life", "a number above 0").error());
  }
  if (!(units >= 0) || !std::isfinite(units)) {
    return Fail(OutOfRange("age", "a number from 0 up").error());
  }
  const auto factor = static_cast<float>(std::exp2(-units / half_life));
  const Operation operation{"decay",
                            {{"half_life", half_life}, {"units", units}},
                            kPackExperimental | kPackDecayed,
                            false,
                            [factor](std::vector<std::vector<float>>& values) {
                              for (float& value : values[0]) value *= factor;
                            }};
  return Run(operation, {from}, to);
}

Result<PackInfo> MergePacks(const std::vector<std::string>& from, const MergeOptions& options,
                            const PackTarget& to) {
  if (from.size() < 2) {
    return Fail(ErrorCode::kInvalidArgument, "a merge takes at least two packs",
                "name another pack");
  }
  if (options.shuffle && (*options.shuffle < 2 || *options.shuffle > from.size())) {
    return Fail(
        OutOfRange("number of the shuffled input", "from 2 to " + std::to_string(from.size()))
            .error());
  }
  Result<PackReader> first = PackReader::Open(from.front());
  if (!first) return Fail(first.error());
  const bool reference = first->info().format == PackFormat::kMkmem1;
  json parameters = {{"average", options.average}};
  if (options.shuffle) parameters["shuffle"] = *options.shuffle;
  const Operation operation{"merge", std::move(parameters), kPackExperimental, false,
                            [=](std::vector<std::vector<float>>& values) {
                              if (options.shuffle) {
                                ShuffleControl(values[*options.shuffle - 1], *options.shuffle);
                              }
                              reference ? Sum<float>(values, options.average)
                                        : Sum<double>(values, options.average);
                            }};
  return Run(operation, from, to);
}

Result<PackInfo> BlendPacks(const std::string& a, const std::string& b, double alpha,
                            const PackTarget& to) {
  if (!(alpha >= 0 && alpha <= 1)) return Fail(OutOfRange("alpha", "from 0 to 1").error());
  const auto share = static_cast<float>(alpha);
  const Operation operation{"blend",
                            {{"alpha", alpha}},
                            kPackExperimental,
                            true,
                            [share](std::vector<std::vector<float>>& values) {
                              for (size_t i = 0; i < values[0].size(); ++i) {
                                const float kept = share * values[0][i];
                                values[0][i] = kept + (1.0f - share) * values[1][i];
                              }
                            }};
  return Run(operation, {a, b}, to);
}

void ShuffleControl(std::span<float> values, uint64_t number) {
  uint64_t x = 0x9E3779B97F4A7C15ull + number;
  if (x == 0) x = 1;
  for (size_t i = values.size(); i-- > 1;) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    std::swap(values[i], values[static_cast<size_t>(x % (i + 1))]);
  }
}

}  // namespace mk

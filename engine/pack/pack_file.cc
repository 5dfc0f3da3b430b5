#include "engine/pack/pack_file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "engine/pack/mkmem1_state.h"
#include "engine/pack/pack_reader.h"
#include "engine/pack/pack_writer.h"

namespace mk {
namespace {

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

bool IsState(const PackSection& section) {
  return StateArrayName(static_cast<StateArray>(section.type)) != "unknown";
}

// ---- Saving ----

Status CheckContents(const Model& model, const Sequence& sequence, const PackContents& contents) {
  const size_t vocab = model.info().vocab;
  if (!contents.tokens.empty() && contents.tokens.size() != sequence.length()) {
    return Fail(ErrorCode::kInvalidArgument, std::to_string(contents.tokens.size()) +
                                                 " tokens are not those of a sequence of " +
                                                 std::to_string(sequence.length()));
  }
  if (!contents.logits.empty() && contents.logits.size() != vocab) {
    return Fail(ErrorCode::kInvalidArgument, "a row of logits has " + std::to_string(vocab) +
                                                 " values, not " +
                                                 std::to_string(contents.logits.size()));
  }
  return {};
}

Result<PackInfo> SaveMkmem2(const std::string& path, const Model& model, const StateKeeper& keeper,
                            const Sequence& sequence, const StateKey& key,
                            const PackContents& contents) {
  Result<std::vector<StateSection>> state = keeper.Sections(key);
  if (!state) return Fail(state.error());
  PackInfo info;
  info.architecture = model.info().architecture;
  info.fingerprint = model.info().fingerprint;
  info.key = key;
  std::vector<std::span<const std::byte>> extras;
  const auto add = [&](PackSectionType type, StateType element, const auto& values) {
    if (values.empty()) return;
    info.sections.push_back(NewSection(type, element, values.size()));
    extras.push_back(std::as_bytes(std::span(values)));
  };
  add(PackSectionType::kLineage, StateType::kBytes, contents.lineage);
  add(PackSectionType::kTokens, StateType::kU32, contents.tokens);
  add(PackSectionType::kLogits, StateType::kF32, contents.logits);
  if (!contents.tokens.empty()) info.flags |= kPackTokens;
  if (!contents.logits.empty()) info.flags |= kPackLogits;
  for (const StateSection& section : *state) info.sections.push_back(NewSection(section));

  Result<PackWriter> writer = PackWriter::Create(path, std::move(info));
  if (!writer) return Fail(writer.error());
  size_t next = 0;
  for (const std::span<const std::byte> bytes : extras) {
    if (Status written = writer->Write(next++, bytes); !written) return Fail(written.error());
  }
  Status saved =
      keeper.Save(sequence, key, [&](const StateSection&, std::span<const std::byte> bytes) {
        return writer->Write(next++, bytes);
      });
  if (!saved) return Fail(saved.error());
  return writer->Commit();
}

// ---- Loading ----

Status CheckModel(const PackInfo& info, const std::string& path, const Model& model) {
  const ModelInfo& own = model.info();
  if (info.architecture != own.architecture) {
    return Fail(
        ErrorCode::kIncompatible,
        path + " was saved with a " + info.architecture + " model, this one is " + own.architecture,
        "load the model that it was saved with");
  }
  if (info.format == PackFormat::kMkmem2 && info.fingerprint != own.fingerprint) {
    return Fail(ErrorCode::kIncompatible,
                path + " was saved with another model (" + info.fingerprint.substr(0, 12) +
                    ", this one is " + own.fingerprint.substr(0, 12) + ")",
                "load the model that it was saved with");
  }
  return {};
}

Status CheckPrecision(const PackInfo& info, const std::string& path,
                      const LoadPackOptions& options) {
  if (!options.precision || *options.precision == info.key.options.precision) return {};
  const std::string own(PrecisionName(info.key.options.precision));
  return Fail(ErrorCode::kIncompatible,
              path + " was saved in the precision " + own + ", not " +
                  std::string(PrecisionName(*options.precision)),
              "go on in its own: --precision " + own);
}

// The arrays of the state in the file are exactly those of a state with its key.
Result<std::vector<const PackSection*>> MatchState(const PackInfo& info, const std::string& path,
                                                   const StateKeeper& keeper) {
  Result<std::vector<StateSection>> wanted = keeper.Sections(info.key);
  if (!wanted) return Fail(DamagedPack(path, "is no state: " + wanted.error().message));
  std::vector<const PackSection*> found;
  for (const PackSection& section : info.sections) {
    if (IsState(section)) found.push_back(&section);
  }
  const auto equal = [](const PackSection* a, const StateSection& b) {
    return a->Is(b.array) && a->layer == b.layer && a->element == b.type && a->dims == b.dims;
  };
  if (!std::equal(found.begin(), found.end(), wanted->begin(), wanted->end(), equal)) {
    return Fail(DamagedPack(path, "does not have the sections of a state of this model"));
  }
  return found;
}

Result<PackContents> ReadContents(const PackReader& pack, size_t vocab) {
  PackContents contents;
  const PackInfo& info = pack.info();
  if (const PackSection* section = info.Find(PackSectionType::kTokens); section != nullptr) {
    if (section->element != StateType::kU32 || section->bytes != info.key.length * 4) {
      return Fail(DamagedPack(pack.path(), "does not have one token per position"));
    }
    Result<std::vector<uint32_t>> ids = pack.ReadNumbers(*section);
    if (!ids) return Fail(ids.error());
    if (std::any_of(ids->begin(), ids->end(), [&](uint32_t id) { return id >= vocab; })) {
      return Fail(DamagedPack(pack.path(), "has tokens outside of the vocabulary"));
    }
    contents.tokens.assign(ids->begin(), ids->end());
  }
  if (const PackSection* section = info.Find(PackSectionType::kLogits);
      section != nullptr && section->bytes > 0) {
    if (section->element != StateType::kF32 || section->bytes != vocab * sizeof(float)) {
      return Fail(DamagedPack(pack.path(), "has logits of another vocabulary"));
    }
    Result<std::vector<float>> logits = pack.ReadFloats(*section);
    if (!logits) return Fail(logits.error());
    if (!AllFinite(*logits)) {
      return Fail(DamagedPack(pack.path(), "has logits that are not finite"));
    }
    contents.logits = std::move(*logits);
  }
  Result<std::string> lineage = pack.ReadLineage();
  if (!lineage) return Fail(lineage.error());
  contents.lineage = std::move(*lineage);
  return contents;
}

Result<std::unique_ptr<Sequence>> RestoreMkmem2(const PackReader& pack, const StateKeeper& keeper,
                                                const StateKey& key) {
  Result<std::vector<const PackSection*>> sections = MatchState(pack.info(), pack.path(), keeper);
  if (!sections) return Fail(sections.error());
  size_t next = 0;
  return keeper.Restore(key, [&](const StateSection&, std::span<std::byte> out) {
    return pack.Read(*(*sections)[next++], out);
  });
}

// An error that does not name the file yet.
Error About(const std::string& path, Error error) {
  if (error.message.find(path) == std::string::npos) error.message = path + ": " + error.message;
  return error;
}

}  // namespace

Result<PackInfo> SavePack(const std::string& path, const Model& model, const Sequence& sequence,
                          const PackContents& contents, const SavePackOptions& options) {
  Result<const StateKeeper*> keeper = KeeperOf(model);
  if (!keeper) return Fail(keeper.error());
  Result<StateKey> key = (*keeper)->KeyOf(sequence);
  if (!key) return Fail(key.error());
  if (Status good = CheckContents(model, sequence, contents); !good) return Fail(good.error());
  if (Status free = CheckPackTarget(path, options.replace); !free) return Fail(free.error());
  try {
    if (options.format == PackFormat::kMkmem1) {
      return SaveMkmem1(path, model, **keeper, sequence, *key, contents.logits);
    }
    return SaveMkmem2(path, model, **keeper, sequence, *key, contents);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for saving " + path);
  }
}

Result<LoadedPack> LoadPack(const std::string& path, const Model& model,
                            const LoadPackOptions& options) {
  Result<const StateKeeper*> keeper = KeeperOf(model);
  if (!keeper) return Fail(keeper.error());
  Result<PackReader> pack = PackReader::Open(path);
  if (!pack) return Fail(pack.error());
  PackInfo info = pack->info();
  if (Status good = CheckModel(info, path, model); !good) return Fail(good.error());
  try {
    if (info.format == PackFormat::kMkmem1) {
      info.key.options.precision = options.precision.value_or(Precision::kExact);
      Result<size_t> length = LengthOfMkmem1(*pack, model, **keeper, info.key);
      if (!length) return Fail(length.error());
      info.key.length = *length;
    } else if (Status good = CheckPrecision(info, path, options); !good) {
      return Fail(good.error());
    }
    info.key.options.max_tokens = options.max_tokens;
    Result<PackContents> contents = ReadContents(*pack, model.info().vocab);
    if (!contents) return Fail(contents.error());
    Result<std::unique_ptr<Sequence>> sequence = info.format == PackFormat::kMkmem1
                                                     ? RestoreMkmem1(*pack, **keeper, info.key)
                                                     : RestoreMkmem2(*pack, **keeper, info.key);
    if (!sequence) return Fail(About(path, sequence.error()));
    return LoadedPack{std::move(info), std::move(*sequence), std::move(*contents)};
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for " + path);
  }
}

Result<PackInfo> DescribePack(const std::string& path) {
  Result<PackReader> pack = PackReader::Open(path);
  if (!pack) return Fail(pack.error());
  return pack->info();
}

Result<PackInfo> VerifyPack(const std::string& path) {
  Result<PackReader> pack = PackReader::Open(path);
  if (!pack) return Fail(pack.error());
  const bool checksums = pack->info().format == PackFormat::kMkmem2;
  for (const PackSection& section : pack->info().sections) {
    if (checksums) {
      if (Result<std::vector<std::byte>> read = pack->Read(section); !read) {
        return Fail(read.error());
      }
      continue;
    }
    Result<std::vector<float>> values = pack->ReadFloats(section);
    if (!values) return Fail(values.error());
    if (!AllFinite(*values)) return Fail(DamagedPack(path, "has values that are not finite"));
  }
  return pack->info();
}

}  // namespace mk

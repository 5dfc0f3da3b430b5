#include "daemon/prefix_file.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "daemon/run_task.h"
#include "engine/format/digest.h"
#include "engine/pack/pack_file.h"
#include "engine/pack/pack_reader.h"

namespace mk::daemon {
namespace {

Error NotOurs(const std::string& path, const std::string& what) {
  return {ErrorCode::kIncompatible, path + " " + what, "it is of no use here"};
}

}  // namespace

std::string PrefixFileName(const PrefixKind& kind, std::span<const int32_t> tokens) {
  std::array<char, 24> digest;
  std::snprintf(digest.data(), digest.size(), "%016llx",
                static_cast<unsigned long long>(Xxh3Of(std::as_bytes(tokens))));
  return std::string(digest.data()) + "-" + std::string(PrecisionName(kind.precision)) +
         (kind.chunked_prefill ? "" : "-single") + ".mkmem";
}

Result<PrefixHead> ReadPrefixHead(const std::string& path, const ModelInfo& model) {
  auto pack = PackReader::Open(path);
  if (!pack) return Fail(pack.error());
  const PackInfo& info = pack->info();
  if (info.format != PackFormat::kMkmem2 || info.architecture != model.architecture ||
      info.fingerprint != model.fingerprint) {
    return Fail(NotOurs(path, "is of another model"));
  }
  const PackSection* section = info.Find(PackSectionType::kTokens);
  if (section == nullptr || !info.has_tokens() || info.experimental() || info.decayed() ||
      info.key.options.expanded_kv || info.key.length == 0) {
    return Fail(NotOurs(path, "is not the state of a prompt"));
  }
  if (info.key.length > ContextLimit(model)) {
    return Fail(ErrorCode::kContextOverflow,
                path + " holds the state of " + std::to_string(info.key.length) + " tokens",
                "it is of no use here");
  }
  if (section->element != StateType::kU32 || section->bytes != info.key.length * 4) {
    return Fail(DamagedPack(path, "does not have one token per position"));
  }
  auto ids = pack->ReadNumbers(*section);
  if (!ids) return Fail(ids.error());
  if (std::any_of(ids->begin(), ids->end(), [&](uint32_t id) { return id >= model.vocab; })) {
    return Fail(DamagedPack(path, "has tokens outside of the vocabulary"));
  }
  PrefixHead head;
  head.kind = {info.key.options.precision, info.key.options.chunked_prefill};
  head.tokens.assign(ids->begin(), ids->end());
  head.logits = info.has_logits();
  return head;
}

Result<PrefixState> ReadPrefixState(const std::string& path, const Model& model,
                                    const PrefixHead& head) {
  LoadPackOptions options;
  options.precision = head.kind.precision;
  options.max_tokens = kAnyLength;
  auto loaded = LoadPack(path, model, options);
  if (!loaded) return Fail(loaded.error());
  const PackInfo& info = loaded->info;
  if (info.format != PackFormat::kMkmem2 || info.experimental() || info.decayed() ||
      info.key.options.expanded_kv || loaded->contents.tokens != head.tokens ||
      info.key.options.chunked_prefill != head.kind.chunked_prefill ||
      loaded->contents.logits.empty() == head.logits) {
    return Fail(DamagedPack(path, "is not what it was when its folder was read"));
  }
  return PrefixState{std::move(loaded->sequence), std::move(loaded->contents.logits)};
}

Result<uint64_t> WritePrefixFile(const std::string& path, const Model& model,
                                 std::span<const int32_t> tokens, std::span<const float> logits,
                                 const Sequence& state) {
  PackContents contents;
  contents.tokens.assign(tokens.begin(), tokens.end());
  contents.logits.assign(logits.begin(), logits.end());
  auto saved = SavePack(path, model, state, contents);
  if (!saved) return Fail(saved.error());
  return saved->file_bytes;
}

bool IsBadFile(ErrorCode code) {
  return code == ErrorCode::kCorrupt || code == ErrorCode::kInvalidArgument ||
         code == ErrorCode::kUnsupported || code == ErrorCode::kIncompatible ||
         code == ErrorCode::kContextOverflow;
}

}  // namespace mk::daemon

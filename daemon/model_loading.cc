#include "daemon/model_loading.h"

#include <algorithm>
#include <utility>

#include "engine/format/mkim_file.h"

namespace mk::daemon {
namespace {

constexpr size_t kTokenizersKept = 4;

}  // namespace

Result<LoadedTokenizer> LoadTokenizerOf(const ModelRef& ref) {
  OpenOptions options;
  options.checks = OpenOptions::Checks::kContainer;
  auto file = MkimFile::Open(ref.path, options);
  if (!file) return Fail(file.error());
  TokenizerSources sources;
  sources.model_path = ref.path;
  sources.model_vocab = (*file)->config().vocab;
  sources.config_label = (*file)->config().tokenizer;
  sources.vocab_path = ref.vocab_path;
  sources.rank_path = ref.rank_path;
  return LoadTokenizer(sources);
}

Result<LoadedModel> LoadWithEngine(const ModelRef& ref, const LoadOptions& options) {
  LoadedModel loaded;
  // A vocabulary that was named and is unusable is an error; one that is merely missing still
  // leaves a model that runs on token ids.
  auto tokenizer = LoadTokenizerOf(ref);
  if (tokenizer) {
    loaded.tokenizer = tokenizer->tokenizer;
    loaded.warnings = tokenizer->warnings;
  } else if (!ref.vocab_path.empty() || !ref.rank_path.empty()) {
    return Fail(tokenizer.error());
  } else {
    loaded.tokenizer_error = tokenizer.error();
  }
  auto model = LoadModel(ref.path, options);
  if (!model) return Fail(model.error());
  loaded.model = std::move(*model);
  for (size_t i = 0; i < kPrecisions; ++i) {
    loaded.pass_costs.push_back(std::make_shared<PassCosts>());
  }
  return loaded;
}

Result<std::shared_ptr<const Tokenizer>> TokenizerCache::Get(const ModelRef& ref) {
  auto opened = OpenForReading(ref.path);
  if (!opened) return Fail(opened.error());
  std::lock_guard lock(mutex_);
  const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.ref == ref && entry.identity == opened->identity;
  });
  if (known != entries_.end()) {
    std::rotate(known, known + 1, entries_.end());
    return entries_.back().tokenizer;
  }
  auto loaded = LoadTokenizerOf(ref);
  if (!loaded) return Fail(loaded.error());
  if (entries_.size() == kTokenizersKept) entries_.erase(entries_.begin());
  entries_.push_back({ref, opened->identity, loaded->tokenizer});
  return loaded->tokenizer;
}

}  // namespace mk::daemon

#include "daemon/score_text.h"

#include <algorithm>
#include <utility>

#include "daemon/errors.h"
#include "daemon/run_task.h"

namespace mk::daemon {
namespace {

protocol::Status CheckIds(std::span<const int32_t> ids, size_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && static_cast<size_t>(ids[i]) < vocab) continue;
    return protocol::Fail(protocol::ErrorCode::kBadRequest,
                          "id " + std::to_string(ids[i]) + " at position " + std::to_string(i) +
                              " is outside the vocabulary of " + std::to_string(vocab),
                          "ids are from 0 to " + std::to_string(vocab - 1));
  }
  return {};
}

uint64_t BytesOf(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  uint64_t bytes = 0;
  for (const int32_t id : ids) bytes += tokenizer.TokenBytes(id).size();
  return bytes;
}

protocol::Result<EncodedText> Encode(const Tokenizer& tokenizer, std::string_view text,
                                     bool plain) {
  auto encoded = plain ? tokenizer.EncodeText(text) : tokenizer.EncodePrompt(text);
  if (!encoded) return protocol::Fail(ToProtocol(encoded.error()));
  return std::move(*encoded);
}

// The number of tokens that end within the first `bytes` of the text.
size_t TokensWithin(const Tokenizer& tokenizer, std::span<const int32_t> ids, uint64_t bytes) {
  uint64_t end = 0;
  size_t count = 0;
  for (const int32_t id : ids) {
    end += tokenizer.TokenBytes(id).size();
    if (end > bytes) break;
    ++count;
  }
  return count;
}

// Where tokens do not tell their bytes: as far as the context alone is encoded the same.
protocol::Result<size_t> TokensInCommon(const Tokenizer& tokenizer, const std::string& context,
                                        std::span<const int32_t> ids, bool plain) {
  auto alone = Encode(tokenizer, context, plain);
  if (!alone) return protocol::Fail(std::move(alone.error()));
  const auto parted = std::mismatch(ids.begin(), ids.end(), alone->ids.begin(), alone->ids.end());
  return static_cast<size_t>(parted.first - ids.begin());
}

protocol::Result<ScoredText> EncodeText(const Tokenizer& tokenizer, const std::string& context,
                                        const std::string& text, bool plain) {
  const std::string whole = context + text;
  auto encoded = Encode(tokenizer, whole, plain);
  if (!encoded) return protocol::Fail(std::move(encoded.error()));
  ScoredText scored;
  scored.tokens = std::move(encoded->ids);
  scored.unknown = encoded->unknown;
  const bool spelled = BytesOf(tokenizer, scored.tokens) == whole.size();
  if (spelled) {
    scored.first = TokensWithin(tokenizer, scored.tokens, context.size());
  } else if (!context.empty()) {
    auto common = TokensInCommon(tokenizer, context, scored.tokens, plain);
    if (!common) return protocol::Fail(std::move(common.error()));
    scored.first = *common;
  }
  scored.first = std::min(std::max<size_t>(scored.first, 1), scored.tokens.size());
  // Of a token across the border, what lies beyond it.
  const uint64_t before = BytesOf(tokenizer, std::span(scored.tokens).first(scored.first));
  scored.bytes =
      whole.size() - std::min<uint64_t>(std::max<uint64_t>(before, context.size()), whole.size());
  return scored;
}

}  // namespace

protocol::Result<ScoredText> EncodeScored(const LoadedModel& loaded, protocol::ScoreItem item,
                                          bool plain) {
  const Tokenizer* tokenizer = loaded.tokenizer.get();
  if (item.text) {
    if (tokenizer == nullptr) return protocol::Fail(NoTokenizer(loaded));
    return EncodeText(*tokenizer, item.context, *item.text, plain);
  }
  ScoredText scored;
  scored.tokens = std::move(item.context_ids);
  scored.first = std::max<size_t>(scored.tokens.size(), 1);
  scored.tokens.insert(scored.tokens.end(), item.ids->begin(), item.ids->end());
  if (auto good = CheckIds(scored.tokens, loaded.model->info().vocab); !good) {
    return protocol::Fail(std::move(good.error()));
  }
  const auto those = std::span(scored.tokens).subspan(scored.first);
  if (tokenizer == nullptr) return scored;
  scored.bytes = BytesOf(*tokenizer, those);
  scored.unknown = static_cast<uint64_t>(
      std::count(scored.tokens.begin(), scored.tokens.end(), tokenizer->specials().unk));
  return scored;
}

}  // namespace mk::daemon

#include "engine/tokenizer/utf8_stream.h"

#include "engine/tokenizer/unicode.h"

namespace mk {
namespace {

// Bytes at the end of `bytes` that begin a character and do not finish it: 0..3.
size_t UnfinishedTail(std::string_view bytes) {
  const size_t most = bytes.size() < 3 ? bytes.size() : 3;
  for (size_t n = most; n > 0; --n) {
    // A tail is unfinished when all of it is one incomplete sequence. A longer tail that is one
    // wins over its own suffixes, which begin with continuation bytes and so begin nothing.
    if (Utf8IncompleteLength(bytes.substr(bytes.size() - n)) == n) return n;
  }
  return 0;
}

}  // namespace

std::string Utf8Stream::Push(std::string_view bytes) {
  std::string buffer = std::move(pending_);
  buffer.append(bytes);
  const size_t tail = UnfinishedTail(buffer);
  pending_.assign(buffer, buffer.size() - tail, tail);
  buffer.resize(buffer.size() - tail);
  return ReplaceIllFormed(buffer);
}

std::string Utf8Stream::Break() {
  const bool held = !pending_.empty();
  pending_.clear();
  return held ? std::string(kReplacement) : std::string();
}

}  // namespace mk

#include "engine/tokenizer/rank_table.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <functional>
#include <utility>

#include "engine/tokenizer/base64.h"

namespace mk {
namespace {

struct Line {
  std::string token;
  size_t rank = 0;
};

tl::unexpected<Error> Corrupt(std::string problem) {
  return Fail(ErrorCode::kCorrupt, std::move(problem),
              "copy the file again, or name another rank file with --tokenizer-file");
}

Result<Line> ParseLine(std::string_view line, const std::string& where) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return Corrupt(where + ": not a line '<base64> <rank>'");
  }
  std::optional<std::string> token = DecodeBase64(line.substr(0, space));
  if (!token) return Corrupt(where + ": bad base64");
  if (token->empty()) return Corrupt(where + ": empty token");
  if (token->size() > kMaxTokenBytes) {
    return Corrupt(where + ": token of " + std::to_string(token->size()) +
                   " bytes, at most 4096 are allowed");
  }
  const std::string_view digits = line.substr(space + 1);
  size_t rank = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
    return Corrupt(where + ": bad rank");
  }
  return Line{std::move(*token), rank};
}

// Calls `take(line, number)` for every line that is not blank, without its line end.
template <typename Take>
Status ForEachLine(std::string_view text, Take take) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (Status status = take(line, number); !status) return status;
  }
  return {};
}

}  // namespace

Result<RankTable> RankTable::Parse(std::string_view text, const std::string& what,
                                   std::optional<size_t> expected_size) {
  std::vector<std::string> tokens;
  std::vector<bool> seen;
  size_t count = 0;
  Status status = ForEachLine(text, [&](std::string_view line, size_t number) -> Status {
    const std::string where = what + " line " + std::to_string(number);
    Result<Line> parsed = ParseLine(line, where);
    if (!parsed) return Fail(parsed.error());
    if (parsed->rank >= kMaxRanks) {
      return Corrupt(where + ": rank " + std::to_string(parsed->rank) + " is too large");
    }
    if (parsed->rank >= tokens.size()) {
      tokens.resize(parsed->rank + 1);
      seen.resize(parsed->rank + 1);
    }
    if (seen[parsed->rank]) {
      return Corrupt(where + ": rank " + std::to_string(parsed->rank) + " appears twice");
    }
    seen[parsed->rank] = true;
    tokens[parsed->rank] = std::move(parsed->token);
    ++count;
    return {};
  });
  if (!status) return Fail(status.error());
  if (expected_size && count != *expected_size) {
    return Fail(ErrorCode::kIncompatible,
                what + " has " + std::to_string(count) + " tokens, " +
                    std::to_string(*expected_size) + " are needed",
                "give the rank file that belongs to the model");
  }
  if (count != tokens.size()) {
    const auto missing = std::find(seen.begin(), seen.end(), false) - seen.begin();
    return Corrupt(what + ": rank " + std::to_string(missing) + " is missing");
  }
  return FromTokens(tokens, what);
}

Result<RankTable> RankTable::FromTokens(const std::vector<std::string>& tokens,
                                        const std::string& what) {
  RankTable table;
  uint64_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  if (tokens.size() > kMaxRanks || bytes > kMaxRankFileBytes) {
    return Corrupt(what + ": too large for a rank table");
  }
  table.arena_.reserve(bytes);
  table.spans_.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string& token = tokens[id];
    if (token.empty() || token.size() > kMaxTokenBytes) {
      return Corrupt(what + ": token " + std::to_string(id) + " is empty or too long");
    }
    table.spans_.push_back(
        {static_cast<uint32_t>(table.arena_.size()), static_cast<uint32_t>(token.size())});
    table.arena_ += token;
  }
  if (Status status = table.Build(what); !status) return Fail(status.error());
  return table;
}

Status RankTable::Build(const std::string& what) {
  slots_.assign(std::bit_ceil(std::max<size_t>(16, spans_.size() * 2)), -1);
  const size_t mask = slots_.size() - 1;
  for (size_t id = 0; id < spans_.size(); ++id) {
    const std::string_view bytes = Bytes(static_cast<int32_t>(id));
    size_t slot = std::hash<std::string_view>()(bytes) & mask;
    for (; slots_[slot] >= 0; slot = (slot + 1) & mask) {
      if (Bytes(slots_[slot]) == bytes) {
        return Corrupt(what + ": ranks " + std::to_string(slots_[slot]) + " and " +
                       std::to_string(id) + " have the same bytes");
      }
    }
    slots_[slot] = static_cast<int32_t>(id);
    longest_ = std::max(longest_, bytes.size());
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (Find(std::string_view(&c, 1)) < 0) {
      return Corrupt(what + ": no token for the single byte " + std::to_string(byte));
    }
  }
  return {};
}

int32_t RankTable::Find(std::string_view bytes) const {
  if (bytes.empty() || bytes.size() > longest_) return -1;
  const size_t mask = slots_.size() - 1;
  for (size_t slot = std::hash<std::string_view>()(bytes) & mask;; slot = (slot + 1) & mask) {
    const int32_t id = slots_[slot];
    if (id < 0 || Bytes(id) == bytes) return id;
  }
}

}  // namespace mk

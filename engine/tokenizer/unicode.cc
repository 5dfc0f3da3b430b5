#include "engine/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

namespace mk {
namespace {

constexpr uint32_t kRanges[] = {
#include "engine/tokenizer/unicode_ranges.inc"
};

constexpr size_t kBlock = 256;  // code points per block
constexpr size_t kBlocks = 0x110000 / kBlock;

// Two-level lookup table: equal blocks are stored once. About 100 KB.
struct PropertyTable {
  std::array<uint16_t, kBlocks> index;
  std::vector<std::array<uint8_t, kBlock>> blocks;

  PropertyTable() {
    size_t range = 0;
    for (size_t b = 0; b < kBlocks; ++b) {
      std::array<uint8_t, kBlock> block;
      for (size_t i = 0; i < kBlock; ++i) {
        const auto point = static_cast<uint32_t>(b * kBlock + i);
        while (range + 1 < std::size(kRanges) && kRanges[range + 1] >> 8 <= point) ++range;
        block[i] = static_cast<uint8_t>(kRanges[range]);
      }
      const auto same = std::find(blocks.begin(), blocks.end(), block);
      index[b] = static_cast<uint16_t>(same - blocks.begin());
      if (same == blocks.end()) blocks.push_back(block);
    }
  }
};

// What the first byte of a sequence demands: its length, and the range of the second byte.
struct Lead {
  uint8_t length = 0;  // 0: starts no sequence
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

// The table of well-formed sequences of the Unicode standard.
Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

uint8_t ByteAt(std::string_view bytes, size_t i) {
  return static_cast<uint8_t>(bytes[i]);
}

// How many of the first bytes agree with the sequence that `lead` announces.
size_t AgreeingBytes(std::string_view bytes, const Lead& lead) {
  const size_t limit = std::min<size_t>(lead.length, bytes.size());
  size_t n = std::min<size_t>(1, limit);
  while (n < limit) {
    const uint8_t low = n == 1 ? lead.second_low : 0x80;
    const uint8_t high = n == 1 ? lead.second_high : 0xBF;
    if (ByteAt(bytes, n) < low || ByteAt(bytes, n) > high) break;
    ++n;
  }
  return n;
}

}  // namespace

CharProperties PropertiesOf(char32_t code_point) {
  static const PropertyTable table;
  if (code_point > 0x10FFFF) return CharProperties();
  return CharProperties(table.blocks[table.index[code_point / kBlock]][code_point % kBlock]);
}

size_t Utf8SequenceLength(std::string_view bytes) {
  if (bytes.empty()) return 0;
  const Lead lead = LeadOf(ByteAt(bytes, 0));
  return lead.length != 0 && AgreeingBytes(bytes, lead) == lead.length ? lead.length : 0;
}

size_t Utf8IncompleteLength(std::string_view bytes) {
  if (bytes.empty()) return 0;
  const Lead lead = LeadOf(ByteAt(bytes, 0));
  const size_t n = AgreeingBytes(bytes, lead);
  return n < lead.length ? n : 0;
}

Result<CodePoints> DecodeUtf8(std::string_view utf8) {
  if (utf8.size() > std::numeric_limits<uint32_t>::max()) {
    return Fail(ErrorCode::kInvalidArgument, "the text is longer than 4 GiB", "send it in parts");
  }
  CodePoints out;
  out.values.reserve(utf8.size());
  out.offsets.reserve(utf8.size() + 1);
  for (size_t i = 0; i < utf8.size();) {
    const size_t length = Utf8SequenceLength(utf8.substr(i));
    if (length == 0) {
      return Fail(ErrorCode::kInvalidArgument,
                  "the text is not UTF-8: bad byte at offset " + std::to_string(i),
                  "convert it to UTF-8 first");
    }
    char32_t value = ByteAt(utf8, i);
    if (length > 1) value &= 0x7Fu >> length;
    for (size_t k = 1; k < length; ++k) value = (value << 6) | (ByteAt(utf8, i + k) & 0x3Fu);
    out.values.push_back(value);
    out.offsets.push_back(static_cast<uint32_t>(i));
    i += length;
  }
  out.offsets.push_back(static_cast<uint32_t>(utf8.size()));
  return out;
}

std::string ReplaceIllFormed(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t whole = Utf8SequenceLength(bytes);
    if (whole != 0) {
      out.append(bytes.substr(0, whole));
      bytes.remove_prefix(whole);
    } else {
      out.append(kReplacement);
      bytes.remove_prefix(std::max<size_t>(1, Utf8IncompleteLength(bytes)));
    }
  }
  return out;
}

}  // namespace mk

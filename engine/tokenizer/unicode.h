// Unicode properties of code points, from generated tables (Unicode 16), and UTF-8 in and out.
// No locale is consulted. All functions are thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace mk {

// General categories, in the order of the generated table.
enum class Category : uint8_t {
  // clang-format off
  kLu, kLl, kLt, kLm, kLo, kMn, kMc, kMe, kNd, kNl, kNo, kPc, kPd, kPs, kPe, kPi, kPf, kPo,
  kSm, kSc, kSk, kSo, kZs, kZl, kZp, kCc, kCf, kCs, kCo, kCn,
  // clang-format on
};

// Properties of one code point in a byte.
class CharProperties {
 public:
  constexpr CharProperties() = default;
  constexpr explicit CharProperties(uint8_t bits) : bits_(bits) {}

  constexpr Category category() const { return static_cast<Category>(bits_ & 31); }
  constexpr bool IsHan() const { return (bits_ & 32) != 0; }         // Script=Han
  constexpr bool IsWhiteSpace() const { return (bits_ & 64) != 0; }  // White_Space
  // Whether the category is one of a set made by CategorySet.
  constexpr bool Is(uint32_t categories) const { return ((categories >> (bits_ & 31)) & 1) != 0; }

 private:
  uint8_t bits_ = static_cast<uint8_t>(Category::kCn);
};

template <typename... Categories>
constexpr uint32_t CategorySet(Categories... categories) {
  return ((uint32_t{1} << static_cast<uint32_t>(categories)) | ...);
}

inline constexpr uint32_t kLetters =
    CategorySet(Category::kLu, Category::kLl, Category::kLt, Category::kLm, Category::kLo);
inline constexpr uint32_t kMarks = CategorySet(Category::kMn, Category::kMc, Category::kMe);
inline constexpr uint32_t kNumbers = CategorySet(Category::kNd, Category::kNl, Category::kNo);
inline constexpr uint32_t kPunctuation =
    CategorySet(Category::kPc, Category::kPd, Category::kPs, Category::kPe, Category::kPi,
                Category::kPf, Category::kPo);
inline constexpr uint32_t kSymbols =
    CategorySet(Category::kSm, Category::kSc, Category::kSk, Category::kSo);

// Properties of any number; beyond U+10FFFF those of an unassigned code point.
CharProperties PropertiesOf(char32_t code_point);

// Length in bytes of the well-formed UTF-8 sequence at the start of `bytes`; 0 when there is none.
size_t Utf8SequenceLength(std::string_view bytes);

// Length in bytes of the longest prefix of `bytes` that could start a well-formed sequence but does
// not complete one: 0..3. For a complete sequence, or a byte that starts none, 0.
size_t Utf8IncompleteLength(std::string_view bytes);

// Text as code points and where each of them starts.
struct CodePoints {
  std::vector<char32_t> values;
  std::vector<uint32_t> offsets;  // byte offset of each value, then the length of the text
};

// Errors: kInvalidArgument when `utf8` is ill-formed (overlong forms, surrogates, values beyond
// U+10FFFF included), naming the byte offset, or longer than 4 GiB.
Result<CodePoints> DecodeUtf8(std::string_view utf8);

// Kept at 3 bytes per broken part: U+FFFD in UTF-8.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Copy with every maximal ill-formed part replaced by U+FFFD.
std::string ReplaceIllFormed(std::string_view bytes);

}  // namespace mk

#include "protocol/peek_id.h"

#include <cstddef>
#include <optional>

namespace mk::protocol {
namespace {

// Entries of a request's envelope; what stands behind them is not looked at.
constexpr int kMaxEntries = 4;

class Walker {
 public:
  explicit Walker(std::string_view bytes) : bytes_(bytes) {}

  std::optional<uint8_t> Byte() {
    if (bytes_.empty()) return std::nullopt;
    const auto byte = static_cast<uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte;
  }

  // An unsigned big-endian number of `width` bytes.
  std::optional<uint64_t> Number(size_t width) {
    if (bytes_.size() < width) return std::nullopt;
    uint64_t value = 0;
    for (size_t i = 0; i < width; ++i) value = value << 8 | static_cast<uint8_t>(bytes_[i]);
    bytes_.remove_prefix(width);
    return value;
  }

  std::optional<std::string_view> Text() {
    const std::optional<uint8_t> head = Byte();
    if (!head) return std::nullopt;
    std::optional<uint64_t> length;
    if (*head >= 0xa0 && *head <= 0xbf) length = *head & 0x1f;                  // fixstr
    if (*head >= 0xd9 && *head <= 0xdb) length = Number(1U << (*head - 0xd9));  // str 8, 16, 32
    if (!length || *length > bytes_.size()) return std::nullopt;
    const std::string_view text = bytes_.substr(0, *length);
    bytes_.remove_prefix(*length);
    return text;
  }

  std::optional<uint64_t> Unsigned() {
    const std::optional<uint8_t> head = Byte();
    if (!head) return std::nullopt;
    if (*head <= 0x7f) return *head;                                          // positive fixint
    if (*head >= 0xcc && *head <= 0xcf) return Number(1U << (*head - 0xcc));  // uint 8 to 64
    return std::nullopt;
  }

  bool NextIsText() const {
    const uint8_t head = bytes_.empty() ? 0 : static_cast<uint8_t>(bytes_.front());
    return (head >= 0xa0 && head <= 0xbf) || (head >= 0xd9 && head <= 0xdb);
  }

 private:
  std::string_view bytes_;
};

}  // namespace

uint64_t PeekId(std::string_view bytes) {
  Walker walker(bytes);
  const std::optional<uint8_t> head = walker.Byte();
  if (!head || (*head & 0xf0) != 0x80) return 0;  // fixmap
  for (int entry = 0; entry < kMaxEntries; ++entry) {
    const std::optional<std::string_view> key = walker.Text();
    if (!key) return 0;
    if (*key == "id") return walker.Unsigned().value_or(0);
    const bool skipped =
        walker.NextIsText() ? walker.Text().has_value() : walker.Unsigned().has_value();
    if (!skipped) return 0;
  }
  return 0;
}

}  // namespace mk::protocol

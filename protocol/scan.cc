#include "protocol/scan.h"

#include <array>
#include <cstdint>
#include <exception>
#include <msgpack.hpp>
#include <optional>
#include <string>

#include "protocol/field_check.h"
#include "protocol/utf8.h"

namespace mk::protocol {
namespace {

constexpr size_t kMaxDepth = 64;
static_assert(kLimits.depth <= kMaxDepth);

constexpr const char* kFormHint =
    "a message is one msgpack map whose keys are text, and nothing else";
constexpr const char* kSizeHint = "send less in one message";

std::string OverLimit(std::string_view what, uint64_t found, uint64_t allowed) {
  return std::string(what) + ": " + std::to_string(found) + ", " + std::to_string(allowed) +
         " are allowed";
}

// Called by msgpack's parser for every value; returning false stops it.
class Scanner : public msgpack::null_visitor {
 public:
  Scanner(const Limits& limits, uint64_t* id) : limits_(limits), id_(id) {}

  bool visit_nil() { return Value(); }
  bool visit_boolean(bool) { return Value(); }
  bool visit_positive_integer(uint64_t value) {
    if (id_ != nullptr && depth_ == 1 && !in_key_ && stack_[0].key == "id") *id_ = value;
    return Value();
  }
  bool visit_negative_integer(int64_t) { return Value(); }
  bool visit_float32(float) { return Value(); }
  bool visit_float64(double) { return Value(); }
  bool visit_ext(const char*, uint32_t) { return Refuse("extension types are not used here"); }

  bool visit_str(const char* data, uint32_t size) {
    const std::string_view text(data, size);
    if (in_key_) return Key(text);
    if (size > limits_.text_bytes) {
      return Refuse(OverLimit("too many bytes of text", size, limits_.text_bytes), kSizeHint);
    }
    return Value() && Utf8(text);
  }
  bool visit_bin(const char*, uint32_t size) {
    if (size > limits_.binary_bytes) {
      return Refuse(OverLimit("too many bytes of binary data", size, limits_.binary_bytes),
                    kSizeHint);
    }
    return Value();
  }

  bool start_array(uint32_t items) {
    if (items > limits_.array_items) {
      return Refuse(OverLimit("too many items of a list", items, limits_.array_items), kSizeHint);
    }
    return Value() && Push(false);
  }
  bool end_array_item() {
    ++stack_[depth_ - 1].index;
    return true;
  }
  bool end_array() { return Pop(); }

  bool start_map(uint32_t entries) {
    if (entries > limits_.map_entries) {
      return Refuse(OverLimit("too many entries of a map", entries, limits_.map_entries),
                    kSizeHint);
    }
    return Value() && Push(true);
  }
  bool start_map_key() {
    stack_[depth_ - 1].key = {};
    in_key_ = true;
    return true;
  }
  bool end_map_key() {
    in_key_ = false;
    return true;
  }
  bool end_map() { return Pop(); }

  void parse_error(size_t, size_t offset) {
    Refuse("byte " + std::to_string(offset) + " starts no msgpack value");
  }
  void insufficient_bytes(size_t, size_t) { Refuse("the message is cut off"); }

  const std::optional<Error>& error() const { return error_; }

 private:
  struct Frame {
    bool is_map = false;
    std::string_view key;
    size_t index = 0;
  };

  bool Push(bool is_map) {
    if (depth_ >= limits_.depth || depth_ >= kMaxDepth) {
      return Refuse("lists and maps are nested more than " + std::to_string(limits_.depth) +
                    " deep");
    }
    stack_[depth_++] = Frame{is_map, {}, 0};
    return true;
  }
  bool Pop() {
    --depth_;
    return true;
  }

  bool Value() {
    if (in_key_) return Refuse("a map has a key that is not text");
    if (++values_ > limits_.values) {
      return Refuse("more than " + std::to_string(limits_.values) + " values in one message",
                    kSizeHint);
    }
    return true;
  }
  bool Key(std::string_view key) {
    if (key.size() > limits_.key_bytes) {
      return Refuse(OverLimit("too many bytes of a map's key", key.size(), limits_.key_bytes));
    }
    if (FindInvalidUtf8(key) != std::string_view::npos) {
      return Refuse("a map has a key that is not UTF-8");
    }
    stack_[depth_ - 1].key = key;
    return true;
  }
  bool Utf8(std::string_view text) {
    const size_t bad = FindInvalidUtf8(text);
    if (bad == std::string_view::npos || error_) return true;
    const std::string field = Path();
    error_ = Error{ErrorCode::kBadRequest,
                   "`" + field + "` is not UTF-8: byte " + std::to_string(bad) +
                       " does not belong to a character",
                   "convert the text first, for example: iconv -f latin1 -t utf-8",
                   {{"field", field}, {"byte_offset", static_cast<int64_t>(bad)}}};
    return true;  // the message's id may still come
  }

  // "stop[2]" for what stands in a request's args: the name that its sender gave it. Elsewhere the
  // whole path.
  std::string Path() const {
    std::string path;
    const bool in_args = depth_ > 1 && stack_[0].is_map && stack_[0].key == "args";
    for (size_t i = in_args ? 1 : 0; i < depth_; ++i) {
      const Frame& frame = stack_[i];
      path = frame.is_map ? FieldName(path, frame.key)
                          : path + '[' + std::to_string(frame.index) + ']';
    }
    return path;
  }

  bool Refuse(std::string why, const char* hint = kFormHint) {
    if (!error_) {
      const std::string path = Path();
      error_ = Error{ErrorCode::kBadRequest,
                     "message refused: " + why + (path.empty() ? "" : " (at `" + path + "`)"),
                     hint,
                     {}};
      if (!path.empty()) error_->details["field"] = path;
    }
    return false;
  }

  const Limits& limits_;
  uint64_t* const id_;
  std::array<Frame, kMaxDepth> stack_;
  size_t depth_ = 0;
  size_t values_ = 0;
  bool in_key_ = false;
  std::optional<Error> error_;
};

}  // namespace

Status Scan(std::string_view bytes, const Limits& limits, uint64_t* id) {
  if (bytes.size() > limits.message_bytes) {
    return Fail(
        ErrorCode::kBadRequest,
        "message refused: " + OverLimit("too many bytes", bytes.size(), limits.message_bytes),
        kSizeHint);
  }
  Scanner scanner(limits, id);
  size_t end = 0;
  bool complete = false;
  try {
    complete = msgpack::parse(bytes.data(), bytes.size(), end, scanner);
  } catch (const std::exception& error) {
    return Fail(ErrorCode::kBadRequest, std::string("message refused: ") + error.what(), kFormHint);
  }
  if (scanner.error()) return Fail(*scanner.error());
  if (!complete) {
    return Fail(ErrorCode::kBadRequest, "message refused: the message is cut off", kFormHint);
  }
  if (end != bytes.size()) {
    return Fail(ErrorCode::kBadRequest,
                "message refused: " + std::to_string(bytes.size() - end) + " bytes follow its end",
                kFormHint);
  }
  return {};
}

}  // namespace mk::protocol

#include "engine/base/strict_json.h"

#include <cmath>
#include <utility>
#include <vector>

namespace mk {
namespace {

using nlohmann::json;

// Builds the value event by event and stops at the first thing that RFC 8259 leaves undefined.
class StrictBuilder final : public nlohmann::json_sax<json> {
 public:
  explicit StrictBuilder(size_t max_depth) : max_depth_(max_depth) {}

  bool null() override { return Put(json(nullptr)); }
  bool boolean(bool value) override { return Put(json(value)); }
  bool number_integer(number_integer_t value) override { return Put(json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Put(json(value)); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!std::isfinite(value)) return Stop("number " + text + " is out of range");
    return Put(json(value));
  }
  bool string(string_t& value) override { return Put(json(std::move(value))); }
  bool binary(binary_t& /*value*/) override { return Stop("binary value"); }
  bool start_object(std::size_t /*elements*/) override { return Open(json::object()); }
  bool start_array(std::size_t /*elements*/) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    json& object = *open_.back();
    if (object.contains(name)) return Stop("key \"" + name + "\" appears twice");
    slot_ = &object[name];
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) override {
    if (!problem_.empty()) return false;
    // "[json.exception.parse_error.101] parse error at line 1, column 2: <reason>"
    std::string reason = error.what();
    const size_t cut = reason.find("] ");
    if (cut != std::string::npos) reason.erase(0, cut + 2);
    return Stop(reason + " (byte " + std::to_string(position) + ")");
  }

  const std::string& problem() const { return problem_; }
  json TakeRoot() { return std::move(root_); }

 private:
  bool Stop(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  json* Place(json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& array = open_.back()->get_ref<json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  bool Put(json&& value) {
    Place(std::move(value));
    return true;
  }

  bool Open(json&& container) {
    if (open_.size() >= max_depth_) {
      return Stop("nested deeper than " + std::to_string(max_depth_) + " levels");
    }
    open_.push_back(Place(std::move(container)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  // Pointers stay valid: an element of an array is only referred to while it is the last one, and
  // nodes of an object do not move.
  std::vector<json*> open_;
  json* slot_ = nullptr;
  json root_;
  size_t max_depth_;
  std::string problem_;
};

}  // namespace

Result<nlohmann::json> ParseStrictJson(std::string_view text, const std::string& what,
                                       size_t max_depth) {
  const auto malformed = [&what](const std::string& reason) {
    return Fail(ErrorCode::kCorrupt, what + " is not valid JSON: " + reason,
                "the file is damaged or was written wrongly; copy it again or make it anew");
  };
  // The library takes a NUL for the end of the text and skips a byte order mark.
  if (text.find('\0') != std::string_view::npos) return malformed("it holds a NUL byte");
  if (text.starts_with("\xEF\xBB\xBF")) return malformed("it starts with a byte order mark");
  try {
    StrictBuilder builder(max_depth);
    if (!json::sax_parse(text.begin(), text.end(), &builder)) return malformed(builder.problem());
    return builder.TakeRoot();
  } catch (const json::exception& error) {
    return malformed(error.what());
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory to read " + what,
                "free some memory and try again");
  }
}

}  // namespace mk

#include "engine/format/verify_checkpoint.h"

#include <nlohmann/json.hpp>

#include "engine/base/strict_json.h"

namespace mk {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

std::string ToHex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<uint8_t>(c) >> 4];
    text += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return text;
}

// Fields of an object. After the first that is missing or of another type, ok() is false.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object), ok_(object.is_object()) {}

  void Take(const char* name, uint64_t& value) {
    if (const json* found = Find(name, &json::is_number_unsigned)) value = found->get<uint64_t>();
  }
  void Take(const char* name, int64_t& value) {
    if (const json* found = Find(name, &json::is_number_integer)) value = found->get<int64_t>();
  }
  void Take(const char* name, bool& value) {
    if (const json* found = Find(name, &json::is_boolean)) value = found->get<bool>();
  }
  void Take(const char* name, std::string& value) {
    if (const json* found = Find(name, &json::is_string)) value = found->get<std::string>();
  }
  void TakeHex(const char* name, std::string& bytes) {
    std::string text;
    Take(name, text);
    ok_ = ok_ && text.size() % 2 == 0;
    for (size_t i = 0; ok_ && i < text.size(); i += 2) {
      const int high = Digit(text[i]);
      const int low = Digit(text[i + 1]);
      ok_ = high >= 0 && low >= 0;
      bytes += static_cast<char>(high * 16 + low);
    }
  }
  const json* TakeArray(const char* name) { return Find(name, &json::is_array); }
  bool ok() const { return ok_; }

 private:
  static int Digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  }
  const json* Find(const char* name, bool (json::*is)() const noexcept) {
    if (!ok_) return nullptr;
    const auto found = object_.find(name);
    ok_ = found != object_.end() && ((*found).*is)();
    return ok_ ? &*found : nullptr;
  }

  const json& object_;
  bool ok_;
};

bool TakeProblems(Fields& fields, VerifyReport& report) {
  const json* problems = fields.TakeArray("problems");
  if (problems == nullptr || problems->size() > VerifyReport::kMaxProblems) return false;
  for (const json& one : *problems) {
    Fields parts(one);
    VerifyProblem problem;
    parts.Take("tensor", problem.tensor);
    parts.Take("message", problem.message);
    parts.Take("count", problem.count);
    if (!parts.ok()) return false;
    report.problems.push_back(std::move(problem));
  }
  return true;
}

}  // namespace

std::string VerifyCheckpoint::Encode() const {
  json problems = json::array();
  for (const VerifyProblem& one : report.problems) {
    problems.push_back({{"tensor", one.tensor}, {"message", one.message}, {"count", one.count}});
  }
  const json object = {{"version", int64_t{kVersion}},
                       {"device", identity.device},
                       {"inode", identity.inode},
                       {"size", identity.size},
                       {"mtime_ns", identity.mtime_ns},
                       {"fingerprint", fingerprint},
                       {"scanned", scanned},
                       {"next", next},
                       {"digest", ToHex(digest)},
                       {"values_checked", report.values_checked},
                       {"xxh3_128", report.xxh3_128},
                       {"problems_total", report.problems_total},
                       {"problems", std::move(problems)}};
  return object.dump();
}

std::optional<VerifyCheckpoint> VerifyCheckpoint::Decode(std::string_view text) {
  const Result<json> object = ParseStrictJson(text, "checkpoint", 4);
  if (!object) return std::nullopt;
  Fields fields(*object);
  VerifyCheckpoint read;
  int64_t version = 0;
  fields.Take("version", version);
  fields.Take("device", read.identity.device);
  fields.Take("inode", read.identity.inode);
  fields.Take("size", read.identity.size);
  fields.Take("mtime_ns", read.identity.mtime_ns);
  fields.Take("fingerprint", read.fingerprint);
  fields.Take("scanned", read.scanned);
  fields.Take("next", read.next);
  fields.TakeHex("digest", read.digest);
  fields.Take("values_checked", read.report.values_checked);
  fields.Take("xxh3_128", read.report.xxh3_128);
  fields.Take("problems_total", read.report.problems_total);
  if (!TakeProblems(fields, read.report) || !fields.ok() || version != kVersion) {
    return std::nullopt;
  }
  return read;
}

}  // namespace mk

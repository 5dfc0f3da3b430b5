#include "daemon/pack_lineage.h"

#include <algorithm>

#include "engine/base/strict_json.h"

namespace mk::daemon {
namespace {

using nlohmann::json;

constexpr const char* kClosing = "closing";
// More than any template needs.
constexpr size_t kMaxClosing = 64;

}  // namespace

void PutClosing(const std::vector<int32_t>& closing, json& lineage) {
  if (!closing.empty()) lineage[kClosing] = closing;
}

std::string ClosingLineage(const std::vector<int32_t>& closing) {
  json lineage = json::object();
  PutClosing(closing, lineage);
  return lineage.empty() ? std::string() : lineage.dump();
}

Result<std::vector<int32_t>> ClosingIn(const std::string& lineage, const std::string& path,
                                       size_t vocab) {
  std::vector<int32_t> closing;
  if (lineage.empty()) return closing;
  // Other programs may write there what they like.
  const Result<json> told = ParseStrictJson(lineage, "the lineage of " + path);
  if (!told || !told->is_object() || !told->contains(kClosing)) return closing;
  const json& ids = (*told)[kClosing];
  const bool good = ids.is_array() && ids.size() <= kMaxClosing &&
                    std::all_of(ids.begin(), ids.end(), [&](const json& id) {
                      return id.is_number_unsigned() && id.get<uint64_t>() < vocab;
                    });
  if (!good) {
    return Fail(ErrorCode::kCorrupt, path + " does not tell how its last answer ends",
                "make it again");
  }
  for (const json& id : ids) closing.push_back(id.get<int32_t>());
  return closing;
}

}  // namespace mk::daemon

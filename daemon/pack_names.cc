#include "daemon/pack_names.h"

#include <algorithm>

#include "daemon/dirs.h"

namespace mk::daemon {
namespace {

constexpr size_t kMaxName = 64;

bool IsPath(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(kPackSuffix);
}

// [A-Za-z0-9][A-Za-z0-9._-]{0,63}
bool IsName(const std::string& text) {
  const auto plain = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  };
  return !text.empty() && text.size() <= kMaxName && plain(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; });
}

}  // namespace

std::filesystem::path PackFolder() {
  return StateDirectory() / "packs";
}

Result<std::string> FindPack(const std::string& text) {
  if (IsPath(text)) return text;
  if (IsName(text)) return (PackFolder() / (text + std::string(kPackSuffix))).string();
  return Fail(ErrorCode::kInvalidArgument, "\"" + text + "\" is not the name of a pack",
              "names are letters, digits, '.', '_' and '-'; paths have a '/' or end in .mkmem");
}

Result<std::string> PlaceForPack(const std::string& text) {
  Result<std::string> path = FindPack(text);
  if (!path || IsPath(text)) return path;
  if (Status made = MakePrivateDirectory(PackFolder()); !made) return Fail(made.error());
  return path;
}

}  // namespace mk::daemon

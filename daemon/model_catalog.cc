#include "daemon/model_catalog.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "daemon/dirs.h"
#include "engine/format/mkim_file.h"
#include "protocol/home.h"

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;

// A folder with more files than this is no folder of models; listing stops there.
constexpr size_t kMaxListed = 256;

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

fs::path ExpandHome(const std::string& path) {
  if (path.rfind("~/", 0) != 0) return path;
  const std::string home = protocol::HomeDirectory();
  return home.empty() ? fs::path(path) : fs::path(home) / path.substr(2);
}

// `folder`/`name` or `folder`/`name`.bin, empty when neither exists.
fs::path InFolder(const fs::path& folder, const std::string& name) {
  if (folder.empty()) return {};
  for (const auto& candidate : {folder / name, folder / (name + ".bin")}) {
    if (IsFile(candidate)) return candidate;
  }
  return {};
}

Result<std::string> ResolvePath(const fs::path& path) {
  if (!path.is_absolute()) {
    return Fail(ErrorCode::kInvalidArgument, "not an absolute model path: " + path.string(),
                "send the path as seen from the root directory");
  }
  if (!IsFile(path)) {
    return Fail(ErrorCode::kNotFound, "no such model file: " + path.string(),
                "mk models lists what can be used");
  }
  return CanonicalPath(path.string());
}

Result<std::string> ResolveName(const std::string& name, const ModelFolders& folders) {
  for (const auto& folder : {folders.user, folders.bundled}) {
    if (const auto found = InFolder(folder, name); !found.empty()) {
      return CanonicalPath(found.string());
    }
  }
  return Fail(ErrorCode::kNotFound,
              "no model \"" + name + "\": it is no alias, and there is no such file in " +
                  folders.user.string() + " or " + folders.bundled.string(),
              "mk models lists what can be used; a path works too");
}

std::vector<fs::path> BinFiles(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".bin" && files.size() < kMaxListed) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

ModelFolders DefaultModelFolders() {
  return {UserModels(), BundledModels()};
}

Result<std::string> ResolveModel(const std::string& name, const Config& config,
                                 const ModelFolders& folders) {
  std::string wanted = name.empty() ? config.default_model : name;
  if (wanted.empty()) wanted = kBundledModel;
  if (const auto alias = config.aliases.find(wanted); alias != config.aliases.end()) {
    wanted = alias->second;
  }
  if (wanted.find('/') != std::string::npos) return ResolvePath(ExpandHome(wanted));
  return ResolveName(wanted, folders);
}

std::vector<CatalogEntry> ModelCatalog::List(const Config& config, const ModelFolders& folders) {
  const auto default_path = ResolveModel("", config, folders);
  std::vector<CatalogEntry> list;
  std::set<std::pair<std::string, std::string>> seen;
  const auto add = [&](const std::string& name, const std::string& path, const char* origin) {
    if (!seen.emplace(name, path).second) return;
    CatalogEntry entry = Describe(name, path, origin);
    entry.is_default = default_path && *default_path == path;
    list.push_back(std::move(entry));
  };
  for (const auto& [alias, target] : config.aliases) {
    const auto path = ResolveModel(alias, config, folders);
    add(alias, path ? *path : target, "alias");
  }
  for (const auto& file : BinFiles(folders.user)) {
    add(file.stem().string(), CanonicalPath(file.string()), "user");
  }
  for (const auto& file : BinFiles(folders.bundled)) {
    add(file.stem().string(), CanonicalPath(file.string()), "bundled");
  }
  return list;
}

CatalogEntry ModelCatalog::Describe(const std::string& name, const std::string& path,
                                    const std::string& origin) {
  CatalogEntry entry{name, path, origin, false, 0, {}, {}};
  auto opened = OpenForReading(path);
  if (!opened) {
    entry.error = opened.error().message;
    return entry;
  }
  entry.file_bytes = opened->identity.size;
  {
    std::lock_guard lock(mutex_);
    const auto known = headers_.find(path);
    if (known != headers_.end() && known->second.identity == opened->identity) {
      entry.architecture = known->second.architecture;
      entry.error = known->second.error;
      return entry;
    }
  }
  OpenOptions options;
  options.checks = OpenOptions::Checks::kContainer;
  auto file = MkimFile::Open(path, options);
  if (file) {
    entry.architecture = ArchitectureName((*file)->config().arch);
  } else {
    entry.error = file.error().message;
  }
  std::lock_guard lock(mutex_);
  headers_[path] = Header{opened->identity, entry.architecture, entry.error};
  return entry;
}

}  // namespace mk::daemon

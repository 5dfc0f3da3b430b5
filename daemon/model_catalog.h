// Which file a model's name stands for, and which models there are.
//
// Search order: a path; an alias of the config; a file in $XDG_DATA_HOME/microkimi/models; a file
// that came with the program. Names of files may leave out ".bin".

#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/config.h"
#include "engine/base/file.h"
#include "engine/base/result.h"

namespace mk::daemon {

// Folders that are searched; tests give their own.
struct ModelFolders {
  std::filesystem::path user;
  std::filesystem::path bundled;
};
ModelFolders DefaultModelFolders();

// File of the model that is used when a request names none and the config neither.
inline constexpr const char* kBundledModel = "story-k3.bin";

// Canonical path of an existing file. `name` empty: the default model. Errors: kNotFound (the
// message lists where was looked), kInvalidArgument (a relative path: only a client knows what it
// is relative to).
Result<std::string> ResolveModel(const std::string& name, const Config& config,
                                 const ModelFolders& folders);

struct CatalogEntry {
  std::string name;    // alias or file name without ".bin"
  std::string path;    // canonical
  std::string origin;  // "alias", "user", "bundled"
  bool is_default = false;
  uint64_t file_bytes = 0;
  std::string architecture;  // from the file's header; empty when the file cannot be used
  std::string error;         // why not
};

// Reads headers; remembers what it read of files that did not change. Thread-safe.
class ModelCatalog {
 public:
  // Every alias and every *.bin in the folders, in search order.
  std::vector<CatalogEntry> List(const Config& config, const ModelFolders& folders);

 private:
  struct Header {
    FileIdentity identity;
    std::string architecture;
    std::string error;
  };
  CatalogEntry Describe(const std::string& name, const std::string& path,
                        const std::string& origin);

  std::mutex mutex_;
  std::map<std::string, Header> headers_;  // by canonical path
};

}  // namespace mk::daemon

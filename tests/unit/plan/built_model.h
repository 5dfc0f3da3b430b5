// A small model that is built for a test and removed.

#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "engine/build/build_model.h"

namespace mk::test {

class BuiltModel {
 public:
  explicit BuiltModel(const std::string& arch, const std::string& preset = "tiny")
      : path_((std::filesystem::temp_directory_path() /
               ("mk_plan_" + arch + preset + std::to_string(::getpid()) + ".bin"))
                  .string()) {
    BuildOptions options;
    options.arch = arch;
    options.preset = preset;
    options.path = path_;
    options.force = true;
    const auto built = BuildModel(options);
    EXPECT_TRUE(built) << built.error().ToString();
  }
  ~BuiltModel() { ::unlink(path_.c_str()); }
  BuiltModel(const BuiltModel&) = delete;
  BuiltModel& operator=(const BuiltModel&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

}  // namespace mk::test

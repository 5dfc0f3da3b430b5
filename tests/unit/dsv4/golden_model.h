// The model of a recorded run, made again in a directory of its own.

#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/base/temp_directory.h"
#include "tests/unit/model/golden_data.h"

namespace mk::test {

class GoldenModel {
 public:
  // Fails the test when the file does not have the recorded SHA-256.
  explicit GoldenModel(const std::string& name);

  const GoldenCase& golden() const { return golden_; }
  std::string path() const { return directory_.Path("model.bin"); }

 private:
  TempDirectory directory_;
  GoldenCase golden_;
};

}  // namespace mk::test
